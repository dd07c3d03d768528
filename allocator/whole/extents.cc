// SPDX-License-Identifier: Apache-2.0
// Where the small allocator's memory comes from and goes to: the window first, plain memory where there is
// none.
//
// jemalloc asks for an extent (2 MiB and more) through the functions below, whose own versions are weak in the
// embedded archive. Its book-keeping (base blocks) is plain memory: it is not the program's, and never moves.
//
// An extent is only ever taken from what is there: whoever asks holds jemalloc's locks, and must not make
// others wait for a supervisor. Where there is nothing the request fails here, and exports.cc makes room, with
// no lock held, and asks again.
//
// Freed pages go back to the kernel where they are private memory of the DDR part or plain; pages of leases and
// of a front that migrates keep their bytes, since dropping a mapping of a shared file drops nothing, and
// jemalloc is told so. What goes back to the window: returns.cc.
//
// Its fork handlers are left out where the program has one thread: what a signal handler's fork has interrupted
// in the middle of malloc would wait for itself, and goes on in the child as it does in the parent.
//
// Threads   Any, with jemalloc's locks held. A fork refuses the window's locks and is served plainly (lock.h).
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/window/large_requests.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/window.h"
#include "allocator/whole/small.h"

using namespace terrace::preload;

extern "C" {

extern uint8_t je_sz_size2index_tab[];
void* je_extent_alloc_mmap(void* wanted, size_t bytes, size_t alignment, bool* zero, bool* commit);
bool je_extent_dalloc_mmap(void* extent, size_t bytes);
void __real_je_sz_boot(const void* size_classes, bool random_offsets);
}

namespace {

// The first extents of a process are plain memory, so that a program which needs no more never looks for a
// supervisor: every shell command would pay for that.
constexpr size_t plain_bytes_first = 4u << 20;
constexpr size_t growth_bytes_min = 2u << 20;  // jemalloc's first step
constexpr size_t step_bytes_always = 8u << 20;
constexpr size_t drop_again_bytes = 256u << 10;
std::atomic<size_t> plain_bytes{0};
// Plain memory for a program that has used up its budgets, to see that and go on: each of its arenas may need
// an extent for the smallest of blocks.
constexpr size_t reserve_bytes_max = 1u << 20;
std::atomic<size_t> reserve_bytes{0};

void* plain_extent(void* wanted, size_t bytes, size_t alignment, bool* zero, bool* commit) {
  void* extent = je_extent_alloc_mmap(wanted, bytes, alignment, zero, commit);
  if (extent != nullptr) plain_held.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  return extent;
}

bool window_wanted(size_t bytes) {
  size_t had = plain_bytes.load(std::memory_order_relaxed);
  do
    if (had + bytes > plain_bytes_first)
      return large_from.load(std::memory_order_relaxed) != SIZE_MAX && next.madvise != nullptr;
  while (!plain_bytes.compare_exchange_weak(had, had + bytes, std::memory_order_relaxed));
  return false;
}

// jemalloc's steps of growth, by numbers of its page size classes: four to a doubling. Blocks of neighbouring
// extents are never joined, so that many short extents hold twice the pages that long ones do.
struct ExtentGrowth {
  unsigned next, limit;
};
constexpr unsigned growth_first = 31, growth_short = 39, growth_long = 63;  // 2 MiB, 8 MiB, 512 MiB
// Each arena's, in its book-keeping, which is never given back. Arenas beyond these have short steps.
constexpr uint32_t growths_max = 64;
ExtentGrowth* growths[growths_max];
std::atomic<uint32_t> growth_count{0};

// A step takes an eighth of what is free in DDR, a part of the CXL budget, at most: large blocks and other
// processes want some too.
bool leaves_room_for_others(size_t bytes) {
  if (bytes <= step_bytes_always || !is_armed() || window.control == nullptr) return true;
  const auto now = [](uint64_t& cell) { return std::atomic_ref(cell).load(std::memory_order_relaxed); };
  const terrace::supply::ControlHeader& run = *window.control;
  const uint64_t used = now(window.control->ddr_used);
  const uint64_t leased = window.slot == nullptr ? 0 : now(window.slot->live_cxl);
  return bytes <= (used < run.ddr_budget ? run.ddr_budget - used : 0) / 8 +
                      (leased < run.cxl_budget ? run.cxl_budget - leased : 0) / 32;
}

// From here on steps are short. True: they were not. Other arenas' may be written at the same time by jemalloc:
// what it writes last is within the limit or one step beyond it, once.
bool shorten_growth() {
  bool any = false;
  // acquire: pairs with je_exp_grow_init()
  const uint32_t count = growth_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < (count < growths_max ? count : growths_max); ++i) {
    ExtentGrowth* growth = __atomic_load_n(&growths[i], __ATOMIC_ACQUIRE);  // pairs with je_exp_grow_init()
    if (growth == nullptr || __atomic_load_n(&growth->limit, __ATOMIC_RELAXED) == growth_short) continue;
    __atomic_store_n(&growth->limit, growth_short, __ATOMIC_RELAXED);
    if (__atomic_load_n(&growth->next, __ATOMIC_RELAXED) > growth_short)
      __atomic_store_n(&growth->next, growth_short, __ATOMIC_RELAXED);
    any = true;
  }
  return any;
}

// Private memory that reads as zeros when the kernel has dropped it; not the private copy of a file that a fork
// made.
bool is_droppable(const void* pages) {
  if (!in_window(pages)) return true;
  return window.front_key == 0 && window.page_of(pages) < window.front_pages;
}

bool drop(void* pages, size_t bytes) {
  const int saved = errno;
  const bool dropped =
      is_droppable(pages) && next.madvise != nullptr && next.madvise(pages, bytes, MADV_DONTNEED) == 0;
  errno = saved;
  if (dropped) note_returned(bytes);
  return dropped;
}

}  // namespace

extern "C" {

using ForkHandler = void (*)();
int __register_atfork(ForkHandler, ForkHandler, ForkHandler, void*);
extern void* __dso_handle;
// The lock of the list of all streams, which fork takes after the handlers, and which its holder may take
// twice.
void _IO_list_lock();
void _IO_list_unlock();
void _IO_list_resetlock();
}

namespace {

ForkHandler small_prepare, small_parent, small_child;
bool fork_prepared = false;  // one fork at a time: the C library sees to it

void prepare_fork() {
  fork_prepared = !program_has_one_thread();
  if (!fork_prepared) return;
  // fflush(nullptr) holds the list while it waits for a stream, whose holder may wait for memory.
  _IO_list_lock();
  small_prepare();
}

void end_fork_in_parent() {
  if (!fork_prepared) return;
  small_parent();
  _IO_list_unlock();
}

void end_fork_in_child() {
  reset_returns_in_child();
  if (fork_prepared) {
    small_child();
    _IO_list_resetlock();  // as the C library does, where it knows of other threads
  }
  answer_small_in_child();
}

}  // namespace

// jemalloc's names and their meanings: true is failure.
extern "C" {

// Blocks of up to 8 bytes get 16, aligned so, as glibc gives them. From the very first block on: with one of a
// class that the table does not know any more, a realloc to 16 bytes would find both in one class and leave it
// in place. Constructors of other libraries may allocate before any of this library runs.
void __wrap_je_sz_boot(const void* size_classes, bool random_offsets) {
  __real_je_sz_boot(size_classes, random_offsets);
  je_sz_size2index_tab[0] = je_sz_size2index_tab[1] = je_sz_size2index_tab[2];
}

// Its own memory is never the program's mapping.
__attribute__((visibility("hidden"))) void* small_mmap(void* wanted, size_t bytes, int protection, int flags,
                                                       int fd, off_t offset) {
  return terrace_raw_mmap(wanted, bytes, protection, flags, fd, offset);
}
__attribute__((visibility("hidden"))) int small_munmap(void* at, size_t bytes) {
  return terrace_raw_munmap(at, bytes);
}

// Heap profiles are not offered: no need for the unwinder's library in every program.
int small__Unwind_Backtrace(void*, void*) {
  return 5;  // the end of the stack
}
uintptr_t small__Unwind_GetIP(void*) {
  return 0;
}

int small_pthread_atfork(ForkHandler prepare, ForkHandler parent, ForkHandler child) {
  small_prepare = prepare;
  small_parent = parent;
  small_child = child;
  return __register_atfork(prepare_fork, end_fork_in_parent, end_fork_in_child, &__dso_handle);
}

extern const char* small_malloc_conf_2_conf_harder;
__attribute__((visibility("hidden"))) const char* small_malloc_conf_2_conf_harder =
    "retain:true,hpa:false,zero_realloc:free,abort:false,abort_conf:false";

void* je_ehooks_default_alloc_impl(void*, void* wanted, size_t bytes, size_t alignment, bool* zero,
                                   bool* commit, unsigned) {
  *commit = true;  // of memory from elsewhere as well, whatever the kernel's overcommit says
  const Reach reach = Reaching::now();
  if (reach == Reach::plain || !window_wanted(bytes))
    return plain_extent(wanted, bytes, alignment, zero, commit);
  if (wanted != nullptr) return nullptr;
  // Then jemalloc asks for just what it needs, and later for short steps.
  if (!leaves_room_for_others(bytes) && shorten_growth()) return nullptr;
  const int saved = errno;
  bool forking = false;
  void* extent = allocate_present(bytes, alignment, reach >= Reach::detached, zero, &forking);
  errno = saved;
  if (extent != nullptr) return extent;
  // A step of growth that fails is asked for again, as small as it need be.
  const bool exact = bytes < growth_bytes_min;
  if (forking || (reach == Reach::plain_exact && exact) ||
      (reach == Reach::reserve && exact &&
       reserve_bytes.fetch_add(bytes, std::memory_order_relaxed) < reserve_bytes_max))
    return plain_extent(wanted, bytes, alignment, zero, commit);
  return nullptr;
}

bool je_ehooks_default_dalloc_impl(void* extent, size_t bytes) {
  if (in_window(extent) || je_extent_dalloc_mmap(extent, bytes)) return true;
  plain_held.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  return false;
}

void je_ehooks_default_destroy_impl(void* extent, size_t bytes) {
  if (!in_window(extent)) {
    const int saved = errno;
    ::munmap(extent, bytes);
    errno = saved;
    plain_held.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
    return note_returned(bytes);
  }
  // Pages that were freed a while ago are gone already; a call costs more than a short extent is worth.
  free_span(extent, bytes, bytes >= drop_again_bytes && drop(extent, bytes));
  note_returned(bytes);
}

bool je_ehooks_default_commit_impl(void*, size_t, size_t) {
  return false;
}

bool je_ehooks_default_decommit_impl(void*, size_t, size_t) {
  return true;
}

bool je_ehooks_default_purge_lazy_impl(void*, size_t, size_t) {
  return true;
}

bool je_ehooks_default_purge_forced_impl(void* extent, size_t offset, size_t bytes) {
  return !drop(static_cast<char*>(extent) + offset, bytes);
}

void je_ehooks_default_zero_impl(void* pages, size_t bytes) {
  if (bytes < (1u << 20) || !drop(pages, bytes)) memset(pages, 0, bytes);
}

void je_exp_grow_init(ExtentGrowth* growth) {
  // acq_rel: pairs with shorten_growth(), its acquire half with nothing.
  const uint32_t number = growth_count.fetch_add(1, std::memory_order_acq_rel);
  *growth = {.next = growth_first, .limit = number < growths_max ? growth_long : growth_short};
  // pairs with shorten_growth()
  if (number < growths_max) __atomic_store_n(&growths[number], growth, __ATOMIC_RELEASE);
}
}

namespace terrace::preload {

SmallNumbers small_numbers() {
  uint64_t epoch = 1;
  size_t length = sizeof(epoch);
  small_mallctl("epoch", &epoch, &length, &epoch, sizeof(epoch));
  auto number = [](const char* name) {
    size_t value = 0, value_bytes = sizeof(value);
    return small_mallctl(name, &value, &value_bytes, nullptr, 0) == 0 ? value : 0;
  };
  return {.live_bytes = number("stats.allocated"),
          .mapped_bytes = number("stats.mapped"),
          .retained_bytes = number("stats.retained")};
}

}  // namespace terrace::preload
