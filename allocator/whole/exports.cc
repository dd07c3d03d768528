// SPDX-License-Identifier: Apache-2.0
// malloc and its like where the whole heap is the window's (`terrace run`): large blocks are runs of pages
// there, all others are the embedded small allocator's, whose extents lie there too (extents.cc).
//
// Which of the two owns a block: a large one begins on a page of the window that is marked so. The way of a
// small request through its thread's cache is the small allocator's own, to the instruction. errno, alignment
// and the treatment of zero sizes are glibc's.
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "allocator/preload/libc/export.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/window/large_requests.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/window.h"
#include "allocator/whole/small.h"

extern "C" void* je_malloc_default(size_t bytes);
extern "C" void je_free_default(void* block);

namespace terrace::preload {

const size_t large_from_always = whole_large_from;

namespace {

// A bit a page of the window: a large block begins there. Made with the first one, never given back.
std::atomic<std::atomic<uint64_t>*> large_bits{nullptr};

std::atomic<uint64_t>* bits() {
  // acquire: pairs with the exchange below.
  std::atomic<uint64_t>* now = large_bits.load(std::memory_order_acquire);
  if (now != nullptr) return now;
  void* made = ::mmap(nullptr, (window.total_pages + 63) / 64 * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return nullptr;
  auto* fresh = static_cast<std::atomic<uint64_t>*>(made);
  // acq_rel: pairs with itself in another thread, and with the loads.
  if (large_bits.compare_exchange_strong(now, fresh, std::memory_order_acq_rel)) return fresh;
  ::munmap(made, (window.total_pages + 63) / 64 * sizeof(uint64_t));
  return now;
}

uint64_t bit_of(uint32_t page) {
  return uint64_t{1} << page % 64;
}

inline bool may_be_large(const void* block) {
  return reinterpret_cast<uintptr_t>(block) % page_bytes == 0;
}

bool is_large_block(const void* block) {
  if (!may_be_large(block) || !in_window(block)) return false;
  // acquire: pairs with bits()
  const std::atomic<uint64_t>* marks = large_bits.load(std::memory_order_acquire);
  const uint32_t page = window.page_of(block);
  return marks != nullptr && (marks[page / 64].load(std::memory_order_relaxed) & bit_of(page)) != 0;
}

// Where no blocks come or go meanwhile it is exact.
template <typename Visit>
void for_each_large(Visit visit) {
  // acquire: pairs with bits()
  const std::atomic<uint64_t>* marks = large_bits.load(std::memory_order_acquire);
  for (uint32_t word = 0; marks != nullptr && word < (window.mapped_pages + 63) / 64; ++word)
    for (uint64_t left = marks[word].load(std::memory_order_relaxed); left != 0; left &= left - 1)
      visit(word * 64 + static_cast<uint32_t>(__builtin_ctzll(left)));
}

void* out_of_memory() {
  errno = ENOMEM;
  return nullptr;
}

// nullptr with refusal use_next: the small allocator may serve it.
void* large(size_t bytes, size_t alignment, bool zero, Refusal* refusal) {
  *refusal = Refusal::exhausted;
  if (bytes > PTRDIFF_MAX) return out_of_memory();
  const int saved = errno;
  *refusal = Refusal::use_next;
  if (large_from.load(std::memory_order_relaxed) == SIZE_MAX) return nullptr;
  void* block = allocate_large(bytes, alignment, zero, refusal);
  if (engine_start_due.load(std::memory_order_relaxed)) [[unlikely]]
    start_engine_if_due();
  if (block != nullptr) {
    std::atomic<uint64_t>* marks = bits();
    if (marks == nullptr) {
      free_large(block);
      *refusal = Refusal::exhausted;
      return out_of_memory();
    }
    const uint32_t page = window.page_of(block);
    // A run that was kept (run_cache.h) has its bit still; neighbours' bits are in the same word.
    if ((marks[page / 64].load(std::memory_order_relaxed) & bit_of(page)) == 0)
      marks[page / 64].fetch_or(bit_of(page), std::memory_order_relaxed);
  }
  errno = block == nullptr && *refusal == Refusal::exhausted ? ENOMEM : saved;
  return block;
}

void forget_large(uint32_t page) {
  std::atomic<uint64_t>* marks = large_bits.load(std::memory_order_acquire);  // acquire: pairs with bits()
  if (marks != nullptr && (marks[page / 64].load(std::memory_order_relaxed) & bit_of(page)) != 0)
    marks[page / 64].fetch_and(~bit_of(page), std::memory_order_relaxed);
}

// For requests that the window leaves to the small allocator: with a fork under way, without a supervisor, with
// --fallback.
template <typename Call>
void* plainly(Call call) {
  Reaching reaching(Reach::plain);
  return call();
}

// The small allocator has no extent for a block: it only takes what is there (extents.cc).
template <typename Call>
__attribute__((noinline)) void* without_extent(size_t bytes, size_t alignment, bool zero, Call call) {
  if (bytes > PTRDIFF_MAX || alignment > PTRDIFF_MAX) return out_of_memory();
  void* block;
  make_room(bytes);
  for (Reach reach : {Reach::detached, Reach::reserve}) {
    Reaching reaching(reach);
    block = call();
    if (block != nullptr) return block;
  }
  // A run of its own: nothing longer is left.
  Refusal refusal;
  block = large(bytes == 0 ? 1 : bytes, alignment, zero, &refusal);
  return block == nullptr && refusal == Refusal::use_next ? plainly(call) : block;
}

template <typename Call>
inline void* small(size_t bytes, size_t alignment, bool zero, Call call) {
  const int saved = errno;
  void* block = call();
  if (block != nullptr) [[likely]]
    return block;
  block = without_extent(bytes, alignment, zero, call);
  if (block != nullptr) errno = saved;
  if (engine_start_due.load(std::memory_order_relaxed)) start_engine_if_due();
  return block;
}

__attribute__((noinline)) void* large_malloc(size_t bytes) {
  Refusal refusal;
  void* block = large(bytes, 1, false, &refusal);
  if (block != nullptr || refusal != Refusal::use_next) return block;
  return plainly([&] { return je_malloc_default(bytes); });
}

void* aligned(size_t alignment, size_t bytes) {
  if (alignment > SIZE_MAX / 2 + 1) {
    errno = EINVAL;
    return nullptr;
  }
  size_t power = 1;
  while (power < alignment) power <<= 1;
  // A small block of a large alignment would take an extent as long as that.
  if (bytes >= whole_large_from || power >= whole_large_from) {
    Refusal refusal;
    void* block = large(bytes == 0 ? 1 : bytes, power, false, &refusal);
    if (block != nullptr || refusal == Refusal::exhausted) return block;
    return plainly([&] { return small_memalign(power, bytes == 0 ? 1 : bytes); });
  }
  if (power < 16) power = 16;
  return small(bytes, power, false, [&] { return small_memalign(power, bytes == 0 ? 1 : bytes); });
}

void* move_block(void* block, size_t had, size_t bytes) {
  void* moved = malloc(bytes);
  if (moved == nullptr) return nullptr;
  memcpy(moved, block, had < bytes ? had : bytes);
  const int saved = errno;
  free(block);
  errno = saved;
  return moved;
}

// "arena.<i>.extent_hooks", and "arenas.create", whose value they are. Hooks put around ours would be called
// for memory that is not theirs.
bool names_extent_hooks(const size_t* mib, size_t mib_length) {
  size_t hooks[3], create[2];
  size_t hooks_length = 3, create_length = 2;
  if (small_mallctlnametomib("arena.0.extent_hooks", hooks, &hooks_length) != 0 ||
      small_mallctlnametomib("arenas.create", create, &create_length) != 0)
    return true;
  return (mib_length == 3 && mib[0] == hooks[0] && mib[2] == hooks[2]) ||
         (mib_length == 2 && mib[0] == create[0] && mib[1] == create[1]);
}

}  // namespace

void (*const forget_block)(uint32_t page) = forget_large;

LargeNumbers large_numbers() {
  free_kept_runs();
  LargeNumbers now{};
  for_each_large([&](uint32_t page) {
    ++now.blocks;
    now.bytes +=
        size_t{std::atomic_ref(window.heap.run(page).pages).load(std::memory_order_relaxed)} * page_bytes;
  });
  return now;
}

}  // namespace terrace::preload

using namespace terrace::preload;

// malloc and free are the small allocator's own (embed.cmake leaves it those names); what their thread caches
// do not serve comes here (redirect.py) instead of to its slow paths.
extern "C" __attribute__((visibility("hidden"))) void* terrace_malloc_slowly(size_t bytes) {
  if (bytes >= whole_large_from) [[unlikely]]
    return large_malloc(bytes);
  if (engine_start_due.load(std::memory_order_relaxed)) [[unlikely]]
    start_engine_if_due();
  if (statistics::times_asked() != small_answered.load(std::memory_order_relaxed)) [[unlikely]]
    answer_small();
  return small(bytes, 1, false, [&] { return je_malloc_default(bytes); });
}

extern "C" __attribute__((visibility("hidden"))) void terrace_free_slowly(void* block) {
  if (is_large_block(block)) return free_large(block);
  if (!is_small_block(block)) [[unlikely]]
    refuse_block(block);
  if (statistics::times_asked() != small_answered.load(std::memory_order_relaxed)) [[unlikely]]
    answer_small();
  je_free_default(block);
}

TERRACE_EXPORT void* calloc(size_t count, size_t bytes_each) {
  size_t bytes;
  if (__builtin_mul_overflow(count, bytes_each, &bytes)) return out_of_memory();
  const auto from_small = [&] { return small_calloc(count, bytes_each); };
  if (bytes < whole_large_from) [[likely]]
    return small(bytes, 1, true, from_small);
  Refusal refusal;
  void* block = large(bytes, 1, true, &refusal);
  return block == nullptr && refusal == Refusal::use_next ? plainly(from_small) : block;
}

TERRACE_EXPORT void* realloc(void* block, size_t bytes) {
  if (block == nullptr) return malloc(bytes);
  if (!is_large_block(block)) {
    if (!is_small_block(block)) [[unlikely]]
      refuse_realloc(block);
    if (bytes < whole_large_from) {
      const int saved = errno;
      void* same = small_realloc(block, bytes);
      if (same != nullptr || bytes == 0) return same;
      errno = saved;
      return move_block(block, small_malloc_usable_size(block), bytes);
    }
    // A block of the small allocator's that is large: there was no window for it.
    const size_t had = small_malloc_usable_size(block);
    if (had >= bytes || large_from.load(std::memory_order_relaxed) == SIZE_MAX)
      return plainly([&] { return small_realloc(block, bytes); });
    return small_xallocx(block, bytes, 0, 0) >= bytes ? block : move_block(block, had, bytes);
  }
  if (bytes == 0) {
    free_large(block);
    return nullptr;
  }
  if (bytes > PTRDIFF_MAX) return out_of_memory();
  if (bytes >= whole_large_from) {
    const int saved = errno;
    const bool fits = resize_large(block, bytes);
    errno = saved;
    if (fits) return block;
  }
  return move_block(block, usable_large(block), bytes);
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
  return aligned(alignment, bytes);
}

TERRACE_EXPORT int posix_memalign(void** block, size_t alignment, size_t bytes) {
  if (alignment % sizeof(void*) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  const int saved = errno;
  void* made = aligned(alignment, bytes);
  if (made == nullptr) return errno = ENOMEM;  // errno as well, as glibc has it
  errno = saved;
  *block = made;
  return 0;
}

TERRACE_EXPORT void* valloc(size_t bytes) {
  return aligned(page_bytes, bytes);
}

TERRACE_EXPORT void* pvalloc(size_t bytes) {
  if (bytes > SIZE_MAX - page_bytes) return out_of_memory();
  return aligned(page_bytes, bytes == 0 ? page_bytes : (bytes + page_bytes - 1) & ~(page_bytes - 1));
}

TERRACE_EXPORT size_t malloc_usable_size(void* block) {
  if (block == nullptr) return 0;
  return is_large_block(block) ? usable_large(block) : small_malloc_usable_size(block);
}

TERRACE_EXPORT int malloc_trim(size_t) {
  const uint64_t before = returned_bytes();
  reclaim_small(Reclaim::whole_runs);
  const bool small_blocks = returned_bytes() != before;
  return trim_large() || small_blocks ? 1 : 0;
}

// C23. glibc 2.36 has no such functions: a program that finds them gets free.
TERRACE_EXPORT void free_sized(void* block, size_t) {
  free(block);
}

TERRACE_EXPORT void free_aligned_sized(void* block, size_t, size_t) {
  free(block);
}

// jemalloc's own interface, which programs linked to it use beside malloc (redis to defragment): they get the
// blocks of this heap, not of a second one.
TERRACE_EXPORT void* mallocx(size_t bytes, int flags) {
  const auto from_small = [&] { return small_mallocx(bytes, flags); };
  void* block = from_small();
  if (block != nullptr) [[likely]]
    return block;
  make_room(bytes);
  Reaching reaching(window.fallback ? Reach::plain : Reach::reserve);
  return from_small();
}

TERRACE_EXPORT void* rallocx(void* block, size_t bytes, int flags) {
  if (!is_large_block(block)) {
    void* same = small_rallocx(block, bytes, flags);
    if (same != nullptr || bytes == 0) return same;
    make_room(bytes);
    Reaching reaching(window.fallback ? Reach::plain : Reach::reserve);
    return small_rallocx(block, bytes, flags);
  }
  if (flags == 0) return realloc(block, bytes);
  void* moved = mallocx(bytes, flags);
  if (moved == nullptr) return nullptr;
  const size_t had = usable_large(block);
  memcpy(moved, block, had < bytes ? had : bytes);
  free_large(block);
  return moved;
}

TERRACE_EXPORT size_t xallocx(void* block, size_t bytes, size_t extra, int flags) {
  if (!is_large_block(block)) return small_xallocx(block, bytes, extra, flags);
  // With an alignment or zeros asked for it stays as it is, which is allowed.
  if (bytes >= whole_large_from && flags == 0) resize_large(block, bytes);
  return usable_large(block);
}

TERRACE_EXPORT size_t sallocx(const void* block, int flags) {
  return is_large_block(block) ? usable_large(block) : small_sallocx(block, flags);
}

TERRACE_EXPORT void dallocx(void* block, int flags) {
  if (is_large_block(block)) return free_large(block);
  small_dallocx(block, flags);
}

TERRACE_EXPORT void sdallocx(void* block, size_t bytes, int flags) {
  if (is_large_block(block)) return free_large(block);
  small_sdallocx(block, bytes, flags);
}

TERRACE_EXPORT size_t nallocx(size_t bytes, int flags) {
  return small_nallocx(bytes, flags);
}

TERRACE_EXPORT int mallctl(const char* name, void* old, size_t* old_bytes, void* fresh, size_t fresh_bytes) {
  size_t mib[8];
  size_t mib_length = sizeof(mib) / sizeof(mib[0]);
  if (fresh != nullptr && small_mallctlnametomib(name, mib, &mib_length) == 0 &&
      names_extent_hooks(mib, mib_length))
    return EPERM;
  return small_mallctl(name, old, old_bytes, fresh, fresh_bytes);
}

TERRACE_EXPORT int mallctlnametomib(const char* name, size_t* mib, size_t* mib_length) {
  return small_mallctlnametomib(name, mib, mib_length);
}

TERRACE_EXPORT int mallctlbymib(const size_t* mib, size_t mib_length, void* old, size_t* old_bytes, void* fresh,
                                size_t fresh_bytes) {
  if (fresh != nullptr && names_extent_hooks(mib, mib_length)) return EPERM;
  return small_mallctlbymib(mib, mib_length, old, old_bytes, fresh, fresh_bytes);
}

TERRACE_EXPORT void malloc_stats_print(void (*write)(void*, const char*), void* opaque, const char* options) {
  small_malloc_stats_print(write, opaque, options);
}
