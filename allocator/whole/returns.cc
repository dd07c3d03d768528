// SPDX-License-Identifier: Apache-2.0
// What the small allocator does not use any more goes back to the window: for large blocks, for other arenas,
// and with its lease to the pool.
//
// Freed extents are kept by jemalloc for some seconds (dirty, 10 s of decay), and after that for good
// (retained). Two things are changed of that:
//   - when extents that decay make up what one request once brought, or several of them, side by side, that
//     goes back at once instead of being retained. A part stays: jemalloc fills it again sooner than others
//     could.
//   - before a request is refused (make_room(), or a large one: reclaim_small()) everything decays at once, and
//     if that is not enough every retained page goes back, wherever it lies.
//
// The functions of jemalloc's that are called or wrapped (embed.cmake) are its internal ones, of exactly
// version 5.3.0. An extent that goes back is first taken out of its set, under the set's lock, and out of the
// map of all extents (deregistered): nobody joins a neighbour with it from then on. Then its pages are freed
// and its record is put away.
//
// Where a part of a request went back, what lies behind the gap does not know that it begins something now:
// jemalloc marks the first extent of a request alone, and joins any other with what lies before it, even with
// another arena's, whose lock it does not hold. The window's runs do know, so no join goes over the beginning
// of one.
//
// Threads   Any. Whoever returns something may hold jemalloc's locks, but none that a holder of the heap's lock
//           waits for: that one calls nothing of jemalloc's.
#include <errno.h>

#include <utility>

#include "allocator/preload/libc/lock.h"
#include "allocator/preload/window/large_requests.h"
#include "allocator/preload/window/window.h"
#include "allocator/whole/small.h"

using namespace terrace::preload;

extern "C" {

// The beginning of jemalloc's edata_t: what it knows of an extent.
struct Extent {
  uint64_t bits;
  void* address;
  uint64_t bytes_and_serial;  // the low 12 bits are the latter's
  Extent* next_plain;         // jemalloc's for huge pages, which are off; nullptr but in return_retained()
};

// Opaque here: tsdn_t (nullptr: no thread), pac_t, ehooks_t, ecache_t, base_t, emap_t, eset_t.
void* je_base_ehooks_get(void* base);
Extent* je_ecache_evict(void* thread, void* pac, void* hooks, void* cache, size_t pages_min);
void je_extent_destroy_wrapper(void* thread, void* pac, void* hooks, Extent* extent);
void je_extent_record(void* thread, void* pac, void* hooks, void* cache, Extent* extent);
bool je_emap_register_boundary(void* thread, void* map, Extent* extent, unsigned size_class, bool slab);
void je_emap_deregister_boundary(void* thread, void* map, Extent* extent);
extern char je_arena_emap_global[];

bool __real_je_pac_init(void* thread, void* pac, void* base, void* map, void* records, void* now,
                        size_t oversize_from, intptr_t dirty_decay_ms, intptr_t muzzy_decay_ms, void* numbers,
                        void* numbers_lock);
void __real_je_pac_destroy(void* thread, void* pac);
bool __real_je_ecache_init(void* thread, void* cache, int state, unsigned index, bool joined_late);
void __real_je_extent_dalloc_wrapper(void* thread, void* pac, void* hooks, Extent* extent);
void __real_je_eset_insert(void* set, Extent* extent);
bool __real_je_tsd_tcache_enabled_data_init(void* thread);
void __real_je_iarena_cleanup(void* thread);
Extent* __real_je_emap_try_acquire_edata_neighbor(void* thread, void* map, Extent* extent, int allocator,
                                                  int state, bool forward);
Extent* __real_je_emap_try_acquire_edata_neighbor_expand(void* thread, void* map, Extent* extent, int allocator,
                                                         int state);
}

namespace terrace::preload {
namespace {

#define TERRACE_THREAD_LOCAL thread_local constinit __attribute__((tls_model("initial-exec")))

// One of jemalloc's arenas, as far as its extents go (pac_t).
struct Arena {
  std::atomic<void*> pac{nullptr};
  void* base = nullptr;
  void* retained = nullptr;  // the cache of that state
};
constexpr uint32_t arenas_max = 4096;  // as jemalloc's
constexpr int retained_state = 3;
constexpr uint64_t state_bits = uint64_t{7} << 17;  // of Extent::bits; 0: active
constinit Arena arenas[arenas_max];
// An arena that is here while the lock is held is not destroyed meanwhile.
constinit ForkLock arenas_lock;
TERRACE_THREAD_LOCAL void* retained_last = nullptr;  // of the arena that this thread is making

// In the middle of an extent's way to the retained ones: where to put it instead.
TERRACE_THREAD_LOCAL Extent** taken_out = nullptr;
TERRACE_THREAD_LOCAL uint64_t returned = 0;

size_t bytes_of(const Extent* extent) {
  return extent->bytes_and_serial & ~uint64_t{page_bytes - 1};
}

constexpr size_t long_part_bytes = 64u << 20;

bool shall_go(const Extent* extent) {
  const size_t bytes = bytes_of(extent);
  return reinterpret_cast<uintptr_t>(extent->address) % page_bytes == 0 && in_window(extent->address) &&
         (bytes >= long_part_bytes || are_whole_runs(extent->address, bytes));
}

void decay_now() {
  small_mallctl("thread.tcache.flush", nullptr, nullptr, nullptr, 0);
  constexpr const char* all_arenas = "arena.4096.purge";
  small_mallctl(all_arenas, nullptr, nullptr, nullptr, 0);
}

// Whether the extent and what lies behind it, or before it, came with different requests. Pages outside of the
// window never go back in parts: jemalloc knows.
bool is_border(const Extent* extent, bool forward) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(extent->address) & ~uintptr_t{page_bytes - 1};
  const auto* page = reinterpret_cast<const char*>(forward ? begin + bytes_of(extent) : begin);
  return in_window(page) && begins_run(page);
}

// Plain memory stays where it is: the budgets have nothing of it.
void return_retained(const Arena& arena, void* pac) {
  constexpr unsigned no_size_class = 232;
  Extent* plain = nullptr;
  void* hooks = je_base_ehooks_get(arena.base);
  while (Extent* extent = je_ecache_evict(nullptr, pac, hooks, arena.retained, 0)) {
    if (in_window(extent->address))
      je_extent_destroy_wrapper(nullptr, pac, hooks, extent);
    else
      extent->next_plain = std::exchange(plain, extent);
  }
  while (Extent* extent = plain) {
    plain = std::exchange(extent->next_plain, nullptr);
    // Nobody's until it is in its set again: a neighbour that is freed would take it for retained, and out of
    // there.
    extent->bits &= ~state_bits;
    // Without memory for the map's nodes it is left alone for good: what the kernel had back would be
    // another's.
    if (!je_emap_register_boundary(nullptr, je_arena_emap_global, extent, no_size_class, false))
      je_extent_record(nullptr, pac, hooks, arena.retained, extent);
  }
}

bool return_retained() {
  if (!arenas_lock.enter()) return false;
  for (const Arena& arena : arenas)
    // acquire: pairs with __wrap_je_pac_init()
    if (void* pac = arena.pac.load(std::memory_order_acquire); pac != nullptr) return_retained(arena, pac);
  arenas_lock.leave();
  return true;
}

bool reclaim(Reclaim how) {
  const int saved = errno;
  bool looked = true;
  if (how == Reclaim::whole_runs)
    decay_now();
  else
    looked = return_retained();
  errno = saved;
  return looked;
}

}  // namespace

bool (*const reclaim_small)(Reclaim how) = reclaim;

thread_local constinit Reach Reaching::now_ = Reach::budget;

namespace {
TERRACE_THREAD_LOCAL bool thread_is_known = false;
}

bool small_knows_this_thread() {
  return thread_is_known;
}

void make_room(size_t bytes) {
  if (large_from.load(std::memory_order_relaxed) == SIZE_MAX) return;
  constexpr size_t step = 2u << 20;  // jemalloc's first
  Refusal refusal;
  void* room =
      allocate_large(bytes > step ? bytes : step, 1, false, &refusal, true, statistics::Owner::small_allocator);
  if (room != nullptr) free_large(room);  // else what was reclaimed on the way may do
}

uint64_t returned_bytes() {
  return returned;
}

void note_returned(size_t bytes) {
  returned += bytes;
}

void reset_returns_in_child() {
  arenas_lock.reset_in_child();
}

}  // namespace terrace::preload

extern "C" {

bool __wrap_je_ecache_init(void* thread, void* cache, int state, unsigned index, bool joined_late) {
  if (state == retained_state) retained_last = cache;
  return __real_je_ecache_init(thread, cache, state, index, joined_late);
}

bool __wrap_je_pac_init(void* thread, void* pac, void* base, void* map, void* records, void* now,
                        size_t oversize_from, intptr_t dirty_decay_ms, intptr_t muzzy_decay_ms, void* numbers,
                        void* numbers_lock) {
  if (__real_je_pac_init(thread, pac, base, map, records, now, oversize_from, dirty_decay_ms, muzzy_decay_ms,
                         numbers, numbers_lock))
    return true;
  if (!arenas_lock.enter()) return false;  // a signal handler's: that arena is not looked into
  for (Arena& arena : arenas) {
    if (arena.pac.load(std::memory_order_relaxed) != nullptr) continue;
    arena.base = base;
    arena.retained = retained_last;
    arena.pac.store(pac, std::memory_order_release);  // release: pairs with return_retained()
    break;
  }
  arenas_lock.leave();
  return false;
}

void __wrap_je_pac_destroy(void* thread, void* pac) {
  if (arenas_lock.enter()) {
    for (Arena& arena : arenas)
      if (arena.pac.load(std::memory_order_relaxed) == pac) arena.pac.store(nullptr, std::memory_order_relaxed);
    arenas_lock.leave();
  }
  __real_je_pac_destroy(thread, pac);
}

// The way of an extent from dirty to retained. The one insertion into a set that happens on it is the last
// step, with the set's lock held and the neighbours joined.
void __wrap_je_extent_dalloc_wrapper(void* thread, void* pac, void* hooks, Extent* extent) {
  Extent* whole = nullptr;
  Extent** const before = taken_out;
  taken_out = &whole;
  __real_je_extent_dalloc_wrapper(thread, pac, hooks, extent);
  taken_out = before;
  if (whole != nullptr) je_extent_destroy_wrapper(thread, pac, hooks, whole);
}

void __wrap_je_eset_insert(void* set, Extent* extent) {
  if (taken_out == nullptr || *taken_out != nullptr || !shall_go(extent))
    return __real_je_eset_insert(set, extent);
  je_emap_deregister_boundary(nullptr, je_arena_emap_global, extent);
  *taken_out = extent;
}

Extent* __wrap_je_emap_try_acquire_edata_neighbor(void* thread, void* map, Extent* extent, int allocator,
                                                  int state, bool forward) {
  if (is_border(extent, forward)) return nullptr;
  return __real_je_emap_try_acquire_edata_neighbor(thread, map, extent, allocator, state, forward);
}

Extent* __wrap_je_emap_try_acquire_edata_neighbor_expand(void* thread, void* map, Extent* extent, int allocator,
                                                         int state) {
  if (is_border(extent, true)) return nullptr;
  return __real_je_emap_try_acquire_edata_neighbor_expand(thread, map, extent, allocator, state);
}

// A thread's cache is made when it first allocates, or the thread cannot go on: memory that is short must not
// end it there.
bool __wrap_je_tsd_tcache_enabled_data_init(void* thread) {
  Reaching reaching(Reach::plain_exact);
  const bool failed = __real_je_tsd_tcache_enabled_data_init(thread);
  thread_is_known = true;
  return failed;
}

// The first step of a thread's end that is only ever that.
void __wrap_je_iarena_cleanup(void* thread) {
  thread_is_known = false;
  __real_je_iarena_cleanup(thread);
}
}
