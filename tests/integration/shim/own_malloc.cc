// SPDX-License-Identifier: Apache-2.0
// A program with a malloc of its own in front of the C library's, as counters and tracers have it: two
// functions are replaced and call the library's by its other names, all others are not, and blocks of both
// meet.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

extern "C" {
void* __libc_malloc(size_t bytes);
void __libc_free(void* block);
}

namespace {
std::atomic<long> made{0}, freed{0};
}

extern "C" void* malloc(size_t bytes) {
  ++made;
  return __libc_malloc(bytes);
}

extern "C" void free(void* block) {
  ++freed;
  __libc_free(block);
}

int main() {
  for (size_t bytes : {10ul, 1000ul, 50'000ul, 100'000ul, 3'000'000ul}) {
    void* block = nullptr;
    if (posix_memalign(&block, 64, bytes) != 0) return 1;
    memset(block, 1, bytes);
    free(block);
    free(aligned_alloc(4096, 8192));
    free(calloc(10, bytes));
    auto* grown = static_cast<char*>(malloc(bytes));
    memset(grown, 7, bytes);
    grown = static_cast<char*>(realloc(grown, 3 * bytes));
    if (grown == nullptr || grown[bytes - 1] != 7 || malloc_usable_size(grown) < 3 * bytes) return 2;
    free(grown);
    free(strdup("text"));
  }
  puts(made >= 10 && freed >= 25 ? "well" : "not counted");
  return 0;
}
