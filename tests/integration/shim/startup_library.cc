// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/shim/startup_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr size_t block_sizes[] = {1, 40, 3000, 9000, 70'000, 300'000, 3 << 20};
constexpr size_t rounds = 6;
constexpr size_t block_count = rounds * sizeof(block_sizes) / sizeof(block_sizes[0]);

struct Block {
  unsigned char* at;
  size_t bytes;
} blocks[block_count];

// Side by side in whatever order the allocator likes, and each made a little longer later: what is in the same
// size class then was not always in the same one at the start (LibreOffice's crash: 8 bytes that became 16 in
// place).
constexpr size_t tiny_bytes_max = 64, tiny_each = 8, tiny_more = 8;
unsigned char* tiny[tiny_bytes_max][tiny_each];

unsigned char value_of(size_t i) {
  return static_cast<unsigned char>(i * 7 + 1);
}

bool holds(const unsigned char* block, size_t bytes, unsigned char value) {
  for (size_t at = 0; at < bytes; ++at)
    if (block[at] != value) return false;
  return true;
}

// Also from a constructor with the highest priority, and from a destructor with the lowest.
__attribute__((constructor(101))) void allocate_at_start() {
  for (size_t i = 0; i < block_count; ++i) {
    blocks[i].bytes = block_sizes[i % (block_count / rounds)];
    blocks[i].at = static_cast<unsigned char*>(malloc(blocks[i].bytes));
    if (blocks[i].at == nullptr) abort();
    memset(blocks[i].at, value_of(i), blocks[i].bytes);
    free(calloc(3, blocks[i].bytes));
  }
  for (size_t bytes = 1; bytes <= tiny_bytes_max; ++bytes)
    for (unsigned char*& block : tiny[bytes - 1]) {
      block = static_cast<unsigned char*>(malloc(bytes));
      if (block == nullptr) abort();
      memset(block, static_cast<int>(bytes), bytes);
    }
  void* aligned = nullptr;
  if (posix_memalign(&aligned, 4096, 100'000) != 0) abort();
  free(aligned);
}

__attribute__((destructor(101))) void free_at_end() {
  for (size_t i = 0; i < block_count; ++i) {
    if (!holds(blocks[i].at, blocks[i].at == nullptr ? 0 : blocks[i].bytes, value_of(i))) abort();
    free(blocks[i].at);
    blocks[i].at = nullptr;
  }
  free(malloc(200'000));
}

struct OfThread {
  unsigned char* block = nullptr;
  ~OfThread() {
    if (block != nullptr && !holds(block, 150'000, 9)) abort();
    free(block);
    free(malloc(90'000));
  }
};
thread_local OfThread of_thread;

}  // namespace

namespace {

bool tiny_blocks_grow() {
  for (size_t bytes = 1; bytes <= tiny_bytes_max; ++bytes)
    for (unsigned char*& block : tiny[bytes - 1]) {
      block = static_cast<unsigned char*>(realloc(block, bytes + tiny_more));
      if (!holds(block, bytes, static_cast<unsigned char>(bytes))) return false;
      memset(block, static_cast<int>(bytes), bytes + tiny_more);
    }
  for (size_t bytes = 1; bytes <= tiny_bytes_max; ++bytes)
    for (const unsigned char* block : tiny[bytes - 1])
      if (!holds(block, bytes + tiny_more, static_cast<unsigned char>(bytes))) return false;
  return true;
}

}  // namespace

bool library_is_well() {
  if (!tiny_blocks_grow()) return false;
  for (size_t i = 0; i < block_count; ++i) {
    if (!holds(blocks[i].at, blocks[i].bytes, value_of(i))) return false;
    if (i % 2 == 0) {
      free(blocks[i].at);
      blocks[i] = {};
      continue;
    }
    const size_t longer = blocks[i].bytes * 3;
    blocks[i].at = static_cast<unsigned char*>(realloc(blocks[i].at, longer));
    if (!holds(blocks[i].at, blocks[i].bytes, value_of(i))) return false;
    memset(blocks[i].at, value_of(i), longer);
    blocks[i].bytes = longer;
  }
  return true;
}

unsigned char* library_make(size_t bytes, unsigned char value) {
  auto* block = static_cast<unsigned char*>(malloc(bytes));
  if (block != nullptr) memset(block, value, bytes);
  return block;
}

void library_drop(unsigned char* block) {
  free(block);
}

void library_use_thread() {
  if (of_thread.block == nullptr) of_thread.block = library_make(150'000, 9);
}

bool library_fork_reads(const unsigned char* block, size_t bytes, unsigned char value) {
  const pid_t pid = fork();
  if (pid == 0) _exit(holds(block, bytes, value) ? 0 : 1);
  int status = 1;
  return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}
