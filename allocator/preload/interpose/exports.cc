// SPDX-License-Identifier: Apache-2.0
// malloc and its like where small requests are the program's own malloc's (`terrace run --min-size`): each
// decides where its request goes, and nothing else. allocator/whole/exports.cc is the other library's.
//
// Small requests and their blocks belong to the next malloc, large ones to the window. Which of the two owns a
// block is seen from its address. errno, alignment and the treatment of zero sizes are glibc's.
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "allocator/preload/libc/export.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/window/large_requests.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/window.h"

namespace terrace::preload {

const size_t large_from_always = 0;
bool (*const reclaim_small)(Reclaim) = nullptr;
void (*const forget_block)(uint32_t) = nullptr;

namespace {

inline bool is_large(size_t bytes) {
  return bytes >= large_from.load(std::memory_order_relaxed);
}

void* out_of_memory() {
  errno = ENOMEM;
  return nullptr;
}

// nullptr with refusal use_next: errno is as it was. nullptr with exhausted: errno is ENOMEM.
void* large(size_t bytes, size_t alignment, bool zero, Refusal* refusal) {
  *refusal = Refusal::exhausted;
  if (bytes > PTRDIFF_MAX) return out_of_memory();
  int saved = errno;
  void* block = allocate_large(bytes, alignment, zero, refusal);
  if (engine_start_due.load(std::memory_order_relaxed)) [[unlikely]]
    start_engine_if_due();
  errno = block == nullptr && *refusal == Refusal::exhausted ? ENOMEM : saved;
  return block;
}

__attribute__((noinline)) void* large_malloc(size_t bytes) {
  Refusal refusal;
  void* block = large(bytes, 1, false, &refusal);
  return block == nullptr && refusal == Refusal::use_next ? next.malloc(bytes) : block;
}

__attribute__((noinline)) void* large_calloc(size_t count, size_t bytes_each) {
  Refusal refusal;
  void* block = large(count * bytes_each, 1, true, &refusal);
  return block == nullptr && refusal == Refusal::use_next ? next.calloc(count, bytes_each) : block;
}

__attribute__((noinline)) void* early(size_t bytes, size_t alignment) {
  void* block = early_allocate(bytes, alignment);  // static memory, never reused: zeros
  return block != nullptr ? block : out_of_memory();
}

__attribute__((noinline)) void* realloc_window_block(void* block, size_t bytes) {
  if (bytes > PTRDIFF_MAX) return out_of_memory();
  const int saved = errno;
  if (resize_large(block, bytes)) {
    errno = saved;
    return block;
  }
  void* moved = malloc(bytes);
  if (moved == nullptr) return nullptr;
  size_t had = usable_large(block);
  memcpy(moved, block, had < bytes ? had : bytes);
  free_large(block);
  errno = saved;
  return moved;
}

// A block of the next malloc grows to a large one, or is one already because the window was full once.
__attribute__((noinline)) void* realloc_into_window(void* block, size_t bytes) {
  size_t had = next.malloc_usable_size(block);
  if (had >= bytes) return next.realloc(block, bytes);
  Refusal refusal;
  void* moved = large(bytes, 1, false, &refusal);
  if (moved == nullptr) return refusal == Refusal::use_next ? next.realloc(block, bytes) : nullptr;
  memcpy(moved, block, had);
  int saved = errno;
  next.free(block);
  errno = saved;
  return moved;
}

void* aligned(size_t alignment, size_t bytes) {
  if (!ready()) return early(bytes, alignment);
  if (!is_large(bytes)) return next.memalign(alignment, bytes);
  if (alignment > SIZE_MAX / 2 + 1) {
    errno = EINVAL;
    return nullptr;
  }
  size_t power = 1;
  while (power < alignment) power <<= 1;
  Refusal refusal;
  void* block = large(bytes, power, false, &refusal);
  return block == nullptr && refusal == Refusal::use_next ? next.memalign(alignment, bytes) : block;
}

}  // namespace
}  // namespace terrace::preload

using namespace terrace::preload;

TERRACE_EXPORT void* malloc(size_t bytes) {
  if (is_large(bytes)) [[unlikely]]
    return large_malloc(bytes);
  if (ready()) [[likely]]
    return next.malloc(bytes);
  return early(bytes, 16);
}

TERRACE_EXPORT void free(void* block) {
  if (in_window(block)) [[unlikely]]
    return free_large(block);
  if (is_early(block)) [[unlikely]]
    return;
  if (ready()) [[likely]]
    next.free(block);
}

TERRACE_EXPORT void* calloc(size_t count, size_t bytes_each) {
  size_t bytes;
  if (__builtin_mul_overflow(count, bytes_each, &bytes)) return out_of_memory();
  if (is_large(bytes)) [[unlikely]]
    return large_calloc(count, bytes_each);
  if (ready()) [[likely]]
    return next.calloc(count, bytes_each);
  return early(bytes, 16);
}

TERRACE_EXPORT void* realloc(void* block, size_t bytes) {
  if (block == nullptr) return malloc(bytes);
  if (in_window(block)) [[unlikely]] {
    if (bytes > 0) return realloc_window_block(block, bytes);
    free_large(block);
    return nullptr;
  }
  if (is_early(block)) [[unlikely]] {
    void* moved = malloc(bytes);
    size_t had = early_usable_size(block);
    if (moved != nullptr) memcpy(moved, block, had < bytes ? had : bytes);
    return moved;
  }
  if (is_large(bytes)) [[unlikely]]
    return realloc_into_window(block, bytes);
  return ready() ? next.realloc(block, bytes) : out_of_memory();
}

TERRACE_EXPORT void* reallocarray(void* block, size_t count, size_t bytes_each) {
  size_t bytes;
  if (__builtin_mul_overflow(count, bytes_each, &bytes)) return out_of_memory();
  return realloc(block, bytes);
}

TERRACE_EXPORT void* memalign(size_t alignment, size_t bytes) {
  return aligned(alignment, bytes);
}

TERRACE_EXPORT void* aligned_alloc(size_t alignment, size_t bytes) {
  if (ready() && !is_large(bytes)) return next.aligned_alloc(alignment, bytes);
  return aligned(alignment, bytes);
}

TERRACE_EXPORT int posix_memalign(void** block, size_t alignment, size_t bytes) {
  if (alignment % sizeof(void*) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  if (ready() && !is_large(bytes)) return next.posix_memalign(block, alignment, bytes);
  int saved = errno;
  void* made = aligned(alignment, bytes);
  if (made == nullptr) return errno = ENOMEM;  // errno as well, as glibc has it
  errno = saved;
  *block = made;
  return 0;
}

TERRACE_EXPORT void* valloc(size_t bytes) {
  if (ready() && next.valloc != nullptr && !is_large(bytes)) return next.valloc(bytes);
  return aligned(terrace::heap::page_bytes, bytes);
}

TERRACE_EXPORT void* pvalloc(size_t bytes) {
  constexpr size_t page = terrace::heap::page_bytes;
  if (bytes > SIZE_MAX - page) return out_of_memory();
  if (ready() && next.pvalloc != nullptr && !is_large(bytes)) return next.pvalloc(bytes);
  return aligned(page, bytes == 0 ? page : (bytes + page - 1) & ~(page - 1));
}

TERRACE_EXPORT size_t malloc_usable_size(void* block) {
  if (block == nullptr) return 0;
  if (in_window(block)) return usable_large(block);
  if (is_early(block)) return early_usable_size(block);
  return ready() ? next.malloc_usable_size(block) : 0;
}

TERRACE_EXPORT int malloc_trim(size_t keep_bytes) {
  bool ours = trim_large();
  bool theirs = ready() && next.malloc_trim != nullptr && next.malloc_trim(keep_bytes) != 0;
  return ours || theirs ? 1 : 0;
}

// C23. glibc 2.36 has no such functions: a program that finds them gets free.
TERRACE_EXPORT void free_sized(void* block, size_t) {
  free(block);
}

TERRACE_EXPORT void free_aligned_sized(void* block, size_t, size_t) {
  free(block);
}
