// SPDX-License-Identifier: Apache-2.0
// What threads keep of freed page runs (allocator/preload/window/run_cache.h): kept_cases NAME. Prints "ok" and exits
// 0, or says what is wrong and exits 1.
//
// shelves  --ddr 256M and nothing else: what ended threads have kept serves a request that needs all of it.
// zeros    calloc of a run that was kept reads as zeros; realloc and aligned requests leave it whole.
// twice    a block that is freed twice ends the process (SIGABRT).
// realloc_stack, realloc_global, realloc_inside   of no block: the same
// pairs N  N pairs of malloc and free of 256 KiB, for whoever counts them.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <thread>
#include <vector>

namespace {

constexpr size_t kib = 1024, mib = 1024 * kib;

[[noreturn]] void fail(const char* what) {
  printf("%s\n", what);
  exit(1);
}

void shelves() {
  constexpr int thread_count = 32, blocks = 8;
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i)
    threads.emplace_back([] {
      void* mine[blocks];
      for (void*& block : mine) memset(block = malloc(128 * kib), 1, 128 * kib);
      for (void* block : mine) free(block);
    });
  for (std::thread& thread : threads) thread.join();
  char* all = static_cast<char*>(malloc(244 * mib));
  if (all == nullptr) fail("a request that fits the budget was refused");
  memset(all, 2, mib);
  free(all);
}

void zeros() {
  for (size_t bytes : {64 * kib, 100 * kib, 256 * kib, 1000 * kib, 2 * mib}) {
    for (int round = 0; round < 20; ++round) {
      auto* block = static_cast<unsigned char*>(malloc(bytes));
      memset(block, 0xa5, malloc_usable_size(block));
      free(block);
      block = static_cast<unsigned char*>(calloc(1, bytes));
      for (size_t i = 0; i < bytes; ++i)
        if (block[i] != 0) fail("calloc gave old bytes");
      memset(block, 7, bytes);
      block = static_cast<unsigned char*>(realloc(block, bytes + 8 * kib));
      for (size_t i = 0; i < bytes; ++i)
        if (block[i] != 7) fail("realloc lost bytes");
      free(block);
      void* aligned = nullptr;
      if (posix_memalign(&aligned, 64 * kib, bytes) != 0 ||
          reinterpret_cast<uintptr_t>(aligned) % (64 * kib) != 0)
        fail("not aligned");
      free(aligned);
    }
  }
}

void twice() {
  void* volatile block = malloc(256 * kib);
  void* const other = malloc(256 * kib);
  free(block);
  free(other);
  free(block);
  fail("a second free was taken");
}

void resize_none(const char* what) {
  static char global[256];
  char stack[256];
  char* const block = static_cast<char*>(malloc(256 * kib));
  char* volatile none = strcmp(what, "realloc_stack") == 0    ? stack + 16
                        : strcmp(what, "realloc_global") == 0 ? global + 16
                                                              : block + 64;
  none = static_cast<char*>(realloc(none, 512));
  fail("a realloc of no block was taken");
}

void pairs(int count) {
  for (int i = 0; i < count; ++i) {
    char* volatile block = static_cast<char*>(malloc(256 * kib));
    block[0] = 1;
    free(block);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* name = argc > 1 ? argv[1] : "";
  if (strcmp(name, "shelves") == 0)
    shelves();
  else if (strcmp(name, "zeros") == 0)
    zeros();
  else if (strcmp(name, "twice") == 0)
    twice();
  else if (strncmp(name, "realloc_", 8) == 0)
    resize_none(name);
  else if (strcmp(name, "pairs") == 0)
    pairs(atoi(argv[2]));
  else
    return 2;
  puts("ok");
}
