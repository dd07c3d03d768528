// SPDX-License-Identifier: Apache-2.0
// Uses the malloc family as hard as it can and checks every byte: threads, sizes around all borders, realloc in
// both directions, calloc over dirty memory, alignments, C++ operators, blocks freed by other threads.
//   torture THREADS STEPS SEED
// Exit 0: nothing was wrong. Built without sanitizers: it runs under the preload library.
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace {

struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  }
  uint64_t below(uint64_t bound) { return next() % bound; }
};

enum class Kind { c, plain_new, array_new, aligned_new };

struct Block {
  unsigned char* bytes = nullptr;
  size_t size = 0;
  uint64_t seed = 0;
  Kind kind = Kind::c;
};

[[noreturn]] void wrong(const char* what, const void* address, size_t size) {
  fprintf(stderr, "torture: %s (block %p of %zu bytes)\n", what, address, size);
  abort();
}

unsigned char expected(uint64_t seed, size_t at) {
  return static_cast<unsigned char>((seed + at / 64) * 0x9E3779B97F4A7C15u >> 56);
}

void fill(Block& block) {
  for (size_t at = 0; at < block.size; at += 64)
    memset(block.bytes + at, expected(block.seed, at), block.size - at < 64 ? block.size - at : 64);
}

void check(const Block& block, size_t bytes) {
  for (size_t at = 0; at < bytes; ++at)
    if (block.bytes[at] != expected(block.seed, at)) wrong("a byte changed", block.bytes, block.size);
}

size_t random_size(Random& random) {
  static constexpr size_t borders[] = {0, 1, 16, 4095, 4096, 4097, 8192, 32767, 32768, 65536, 131072, 1u << 20};
  switch (random.below(6)) {
    case 0: return borders[random.below(sizeof(borders) / sizeof(borders[0]))];
    case 1: return random.below(512);
    case 2: return 1 + random.below(1u << 20);
    case 3: return 4096 * (1 + random.below(64));
    default: return 1 + random.below(64u << 10);
  }
}

void check_alignment(const void* address, size_t alignment, size_t size) {
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) wrong("alignment", address, size);
}

Block make(Random& random) {
  Block block;
  block.size = random_size(random);
  block.seed = random.next();
  size_t alignment = size_t{1} << (3 + random.below(18));  // 8 bytes to 2 MiB
  void* at = nullptr;
  errno = 77;
  switch (random.below(11)) {
    case 0: at = calloc(1, block.size); break;
    case 1: at = calloc(block.size / 8 + 1, 8); break;
    case 2:
      at = memalign(alignment, block.size);
      check_alignment(at, alignment, block.size);
      break;
    case 3:
      if (posix_memalign(&at, alignment, block.size) != 0) at = nullptr;
      check_alignment(at, alignment, block.size);
      break;
    case 4:
      at = aligned_alloc(alignment, block.size);
      check_alignment(at, alignment, block.size);
      break;
    case 5:
      at = valloc(block.size);
      check_alignment(at, 4096, block.size);
      break;
    case 6:
      at = operator new(block.size);
      block.kind = Kind::plain_new;
      break;
    case 7:
      at = operator new[](block.size, std::nothrow);
      block.kind = Kind::array_new;
      break;
    case 8:
      at = operator new (block.size, std::align_val_t{alignment});
      block.kind = Kind::aligned_new;
      check_alignment(at, alignment, block.size);
      break;
    case 9: at = reallocarray(nullptr, block.size / 4 + 1, 4); break;
    default: at = malloc(block.size);
  }
  if (at == nullptr) wrong("no memory", at, block.size);
  if (errno != 77) wrong("errno changed by a success", at, block.size);
  check_alignment(at, 16 < block.size ? 16 : 8, block.size);
  block.bytes = static_cast<unsigned char*>(at);
  if (malloc_usable_size(at) < block.size) wrong("usable size", at, block.size);
  return block;
}

Block make_checked(Random& random) {
  // calloc is told apart by doing it here: what it returns must be zero although freed blocks were full.
  if (random.below(8) == 0) {
    Block block;
    block.size = random_size(random);
    block.seed = random.next();
    block.bytes = static_cast<unsigned char*>(calloc(block.size, 1));
    if (block.bytes == nullptr) wrong("no memory", nullptr, block.size);
    for (size_t at = 0; at < block.size; ++at)
      if (block.bytes[at] != 0) wrong("calloc is not zero", block.bytes, block.size);
    fill(block);
    return block;
  }
  Block block = make(random);
  fill(block);
  return block;
}

void drop(const Block& block) {
  check(block, block.size);
  errno = 78;
  switch (block.kind) {
    case Kind::plain_new: operator delete(block.bytes); break;
    case Kind::array_new: operator delete[](block.bytes); break;
    case Kind::aligned_new: operator delete (block.bytes, std::align_val_t{16}); break;
    case Kind::c: free(block.bytes);
  }
  if (errno != 78) wrong("errno changed by free", block.bytes, block.size);
}

std::mutex hand_over_mutex;
std::vector<Block> hand_over;  // freed by whoever comes next
std::atomic<uint64_t> operations{0};

void work(uint64_t seed, int steps) {
  Random random{seed * 0x2545F4914F6CDD1Du + 1};
  std::vector<Block> blocks;
  for (int step = 0; step < steps; ++step) {
    uint64_t what = random.below(100);
    if (what < 45 || blocks.empty()) {
      if (blocks.size() > 60) continue;
      blocks.push_back(make_checked(random));
    } else if (what < 75) {
      size_t at = random.below(blocks.size());
      drop(blocks[at]);
      blocks[at] = blocks.back();
      blocks.pop_back();
    } else if (what < 92) {
      Block& block = blocks[random.below(blocks.size())];
      if (block.kind != Kind::c) continue;
      size_t size = 1 + random_size(random);
      auto* moved = static_cast<unsigned char*>(realloc(block.bytes, size));
      if (moved == nullptr) wrong("realloc failed", block.bytes, size);
      block.bytes = moved;
      check(block, size < block.size ? size : block.size);
      block.size = size;
      fill(block);
    } else {
      std::lock_guard lock(hand_over_mutex);
      hand_over.push_back(blocks.back());
      blocks.pop_back();
      if (hand_over.size() > 8) {
        drop(hand_over.front());
        hand_over.erase(hand_over.begin());
      }
    }
    operations.fetch_add(1, std::memory_order_relaxed);
  }
  for (const Block& block : blocks) drop(block);
}

void check_errors() {
  volatile size_t huge = SIZE_MAX - 100;
  errno = 0;
  if (malloc(huge) != nullptr || errno != ENOMEM) wrong("malloc of nearly everything", nullptr, huge);
  errno = 0;
  if (calloc(huge / 2, 4) != nullptr || errno != ENOMEM) wrong("calloc overflow", nullptr, huge);
  errno = 0;
  if (reallocarray(nullptr, huge / 2, 4) != nullptr || errno != ENOMEM)
    wrong("reallocarray overflow", nullptr, huge);
  void* kept = malloc(100000);
  memset(kept, 5, 100000);
  errno = 0;
  if (realloc(kept, huge) != nullptr || errno != ENOMEM) wrong("realloc of nearly everything", kept, huge);
  if (static_cast<char*>(kept)[99999] != 5) wrong("a failed realloc touched its block", kept, 100000);
  void* none = kept;
  if (posix_memalign(&none, 24, 100000) != EINVAL || none != kept) wrong("posix_memalign(24)", nullptr, 0);
  if (posix_memalign(&none, 64, huge) != ENOMEM) wrong("posix_memalign of nearly everything", nullptr, 0);
  errno = 0;
  volatile size_t wild = SIZE_MAX / 2 + 2;
  if (memalign(wild, 100000) != nullptr || errno != EINVAL) wrong("memalign, wild alignment", nullptr, 0);
  if (realloc(kept, 0) != nullptr) wrong("realloc to 0 must free and return NULL", kept, 0);
  void* empty = malloc(0);
  if (empty == nullptr) wrong("malloc(0)", nullptr, 0);
  free(empty);
  free(nullptr);
  if (malloc_usable_size(nullptr) != 0) wrong("usable size of NULL", nullptr, 0);
  bool thrown = false;
  try {
    operator delete(operator new(huge));
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  if (!thrown) wrong("operator new must throw", nullptr, huge);
  if (operator new(huge, std::nothrow) != nullptr) wrong("nothrow new", nullptr, huge);
  if (malloc_trim(0) < 0) wrong("malloc_trim", nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  check_errors();
  std::vector<std::thread> threads;
  for (int i = 0; i < atoi(argv[1]); ++i)
    threads.emplace_back(work, static_cast<uint64_t>(atoll(argv[3]) * 100 + i + 1), atoi(argv[2]));
  for (std::thread& thread : threads) thread.join();
  for (const Block& block : hand_over) drop(block);
  check_errors();
  printf("%llu operations\n", static_cast<unsigned long long>(operations.load()));
  return 0;
}
