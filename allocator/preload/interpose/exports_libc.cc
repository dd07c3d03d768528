// SPDX-License-Identifier: Apache-2.0
// The other names of the C library's malloc: programs that put a malloc of their own before it (to count, to
// trace) go on with these, and their blocks come to the functions that they did not replace.
#include <malloc.h>
#include <stdlib.h>

#include "allocator/preload/libc/export.h"

TERRACE_EXPORT void* __libc_malloc(size_t bytes) {
  return malloc(bytes);
}

TERRACE_EXPORT void __libc_free(void* block) {
  free(block);
}

TERRACE_EXPORT void* __libc_calloc(size_t count, size_t bytes_each) {
  return calloc(count, bytes_each);
}

TERRACE_EXPORT void* __libc_realloc(void* block, size_t bytes) {
  return realloc(block, bytes);
}

TERRACE_EXPORT void* __libc_memalign(size_t alignment, size_t bytes) {
  return memalign(alignment, bytes);
}

TERRACE_EXPORT void* __libc_valloc(size_t bytes) {
  return valloc(bytes);
}

TERRACE_EXPORT void* __libc_pvalloc(size_t bytes) {
  return pvalloc(bytes);
}

// Of programs that were linked before 2018.
TERRACE_EXPORT void cfree(void* block) {
  free(block);
}
