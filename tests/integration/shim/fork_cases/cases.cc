// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/shim/fork_cases/cases.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void wrong(const char* what) {
  fprintf(stderr, "fork_cases[%d]: %s\n", static_cast<int>(getpid()), what);
  _exit(1);
}

Blocks make_blocks(unsigned char value) {
  Blocks blocks;
  for (int i = 0; i < block_count; ++i) {
    auto* block = static_cast<unsigned char*>(malloc(block_bytes));
    if (block == nullptr) wrong("no memory");
    memset(block, value + i % 7, block_bytes);
    blocks.push_back(block);
  }
  return blocks;
}

void check_blocks(const Blocks& blocks, unsigned char value, const char* what) {
  for (size_t i = 0; i < blocks.size(); ++i)
    for (size_t at = 0; at < block_bytes; at += 512)
      if (blocks[i][at] != static_cast<unsigned char>(value + i % 7)) wrong(what);
}

void store_all(const Blocks& blocks, unsigned char value) {
  for (size_t i = 0; i < blocks.size(); ++i) memset(blocks[i], value + static_cast<int>(i % 7), block_bytes);
}

void churn(unsigned char value, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    Blocks more = make_blocks(value);
    check_blocks(more, value, "own new block is wrong");
    for (unsigned char* block : more) free(block);
    auto* zeros = static_cast<unsigned char*>(calloc(1, 8u << 20));
    if (zeros == nullptr) wrong("no memory for calloc");
    for (size_t at = 0; at < 8u << 20; at += 256)
      if (zeros[at] != 0) wrong("calloc is not zero");
    memset(zeros, value, 8u << 20);
    free(zeros);
  }
}

Pipe::Pipe() {
  if (pipe(ends) != 0) wrong("pipe");
}

void Pipe::tell() {
  if (write(ends[1], "x", 1) != 1) wrong("tell");
}

void Pipe::hear() {
  char byte;
  if (read(ends[0], &byte, 1) != 1) wrong("the other side ended");
}

void reap(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || status != 0) wrong("the child failed");
}

int count_shared(const Blocks& blocks) {
  FILE* maps = fopen("/proc/self/maps", "r");
  if (maps == nullptr) wrong("no /proc/self/maps");
  int shared = 0;
  char line[512];
  while (fgets(line, sizeof(line), maps) != nullptr) {
    unsigned long from = 0, to = 0;
    char rights[8] = {};
    if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || rights[3] != 's') continue;
    for (unsigned char* block : blocks) {
      const auto at = reinterpret_cast<unsigned long>(block);
      shared += at >= from && at < to ? 1 : 0;
    }
  }
  fclose(maps);
  return shared;
}

bool wait_until_shared(const Blocks& blocks, int least) {
  for (int i = 0; i < 1000; ++i) {
    if (count_shared(blocks) >= least) return true;
    usleep(10'000);
  }
  return false;
}
