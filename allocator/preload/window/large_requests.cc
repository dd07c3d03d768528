// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/window/large_requests.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "allocator/preload/libc/message.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/window/ddr_part.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/page_marks.h"
#include "allocator/preload/window/run_cache.h"
#include "allocator/preload/window/window.h"

namespace terrace::preload {
namespace {

// A DDR run of at least this many pages is worth a system call of its own: when it is freed and too much is
// kept already, or when it is to be zeroed.
constexpr uint32_t purge_now_pages = 2048;
// A freed detached run of at least this many pages is replaced by fresh private memory, which frees its copies.
constexpr uint32_t replace_pages = 256;

struct Taken {
  statistics::Owner owner = statistics::Owner::program;
  char* address = nullptr;
  char* dirty = nullptr;  // the part that may hold old bytes
  size_t dirty_bytes = 0;
  bool anonymous = false;  // the kernel can make it zero
};

uint32_t pages_for(size_t bytes) {
  return static_cast<uint32_t>((bytes + page_bytes - 1) / page_bytes);
}

// heap_lock is held.
bool take_from(uint8_t arena, uint32_t pages, uint32_t align_pages, uint64_t supply::Slot::*counter,
               Taken* taken) {
  uint32_t first = window.heap.allocate(arena, pages, align_pages, window.generation);
  if (first == heap::no_page) return false;
  heap::PageSpan run{first, pages};
  heap::PageSpan dirty = window.heap.dirty_stretch(run);
  if (arena == ddr_arena && !window.tiered) window.free_dirty_pages -= window.heap.count_dirty(run);
  window.heap.set_dirty(run, true);
  *taken = {taken->owner, window.address(first), window.address(dirty.first), size_t{dirty.pages} * page_bytes,
            arena == ddr_arena && !window.tiered};
  window.heap.run(first).right = static_cast<uint32_t>(taken->owner);
  statistics::note_came(first, pages, taken->owner);
  count(counter);
  count_live(arena, static_cast<int64_t>(size_t{pages} * page_bytes));
  return true;
}

// The budget has room, but no run of free pages is long enough: more addresses, behind those in use so far.
// heap_lock is held, and the DDR part is anonymous memory.
bool widen_ddr(uint32_t pages, uint32_t align_pages) {
  const uint64_t enough = uint64_t{pages} + align_pages;
  const uint64_t step = window.front_pages / 16;
  const uint64_t left = window.front_pages - window.ddr_pages;
  uint64_t more = enough > step ? enough : step;
  more = (more + granule_pages - 1) / granule_pages * granule_pages;
  if (more > left) more = left;
  if (more == 0 ||
      next.mprotect(window.address(window.ddr_pages), more * page_bytes, PROT_READ | PROT_WRITE) != 0)
    return false;
  window.heap.add({window.ddr_pages, static_cast<uint32_t>(more)}, ddr_arena, false);
  window.ddr_pages += static_cast<uint32_t>(more);
  return true;
}

// What this process has charged for DDR pages that it does not use at the moment: a block that is
// allocated and freed again and again leaves the run's common counter alone. heap_lock is held; not for a
// window that migrates.
class SpareCharge {
 public:
  bool take(size_t bytes) {
    forget_the_parents();
    if (bytes <= bytes_) {
      bytes_ -= bytes;
      return true;
    }
    if (!charge(bytes - bytes_)) return false;
    bytes_ = 0;
    return true;
  }
  void give(size_t bytes) {
    forget_the_parents();
    bytes_ += bytes;
    const uint64_t most = window.control->ddr_budget / 64;  // other processes need the rest
    if (bytes_ <= (most < spare_max ? most : spare_max)) return;
    uncharge(bytes_);
    bytes_ = 0;
  }

 private:
  void forget_the_parents() {
    if (generation_ == window.generation) return;
    generation_ = window.generation;
    bytes_ = 0;
  }
  static constexpr uint64_t spare_max = 4u << 20;
  uint64_t bytes_ = 0;
  uint16_t generation_ = 0;
};
constinit SpareCharge spare_charge;

bool take_ddr(uint32_t pages, uint32_t align_pages, Taken* taken) {
  size_t bytes = size_t{pages} * page_bytes;
  const auto counter = &supply::Slot::allocations_ddr;
  if (window.tiered)
    return take_from(ddr_arena, pages, align_pages, counter, taken) ||
           (charge_front(pages, align_pages) && take_from(ddr_arena, pages, align_pages, counter, taken));
  if (!spare_charge.take(bytes)) return false;
  if (take_from(ddr_arena, pages, align_pages, counter, taken) ||
      (widen_ddr(pages, align_pages) && take_from(ddr_arena, pages, align_pages, counter, taken)))
    return true;
  spare_charge.give(bytes);
  return false;
}

bool take_in_budget(uint32_t pages, uint32_t align_pages, Taken* taken) {
  if (take_ddr(pages, align_pages, taken)) return true;
  for (uint32_t i = 0; i < window.segment_count; ++i)
    if (take_from(shared_arena(i), pages, align_pages, &supply::Slot::allocations_cxl, taken)) return true;
  return false;
}

bool take_detached(uint32_t pages, uint32_t align_pages, Taken* taken) {
  for (uint32_t i = 0; i < window.segment_count; ++i)
    if (take_from(detached_arena(i), pages, align_pages, &supply::Slot::allocations_detached, taken))
      return true;
  return take_from(detached_front_arena, pages, align_pages, &supply::Slot::allocations_detached, taken);
}

// use_next from a lock that refused: a fork is under way.
void* bypass(Refusal* refusal) {
  window.during_fork.fetch_add(1, std::memory_order_relaxed);
  *refusal = Refusal::use_next;
  return nullptr;
}

void* hand_out(const Taken& taken, bool zero) {
  if (!zero || taken.dirty_bytes == 0) return taken.address;
  // A long stretch is cheaper to give back: the program may never touch most of it. Fails where it is locked.
  if (!taken.anonymous || taken.dirty_bytes < purge_now_pages * page_bytes ||
      next.madvise(taken.dirty, taken.dirty_bytes, MADV_DONTNEED) != 0)
    memset(taken.dirty, 0, taken.dirty_bytes);
  return taken.address;
}

uint32_t checked_page(const void* pointer, const char* message) {
  uint32_t page = window.page_of(pointer);
  if (reinterpret_cast<uintptr_t>(pointer) % page_bytes != 0 || !window.heap.is_used(page)) fatal(message);
  return page;
}

// How many free DDR pages may stay resident for the next requests: as many as were in use at a time not long
// ago, as long as that is within the run's budget, and a few in any case. Fresh pages cost the kernel a fault
// and a clearing each, which is most of what a large block costs; a program that works on goes on needing them.
class KeptPages {
 public:
  // heap_lock is held: once for each DDR run that was freed.
  void freed(uint64_t bytes) {
    if (window.slot == nullptr) return;
    const uint64_t live =
        std::atomic_ref<uint64_t>(window.slot->live_ddr).load(std::memory_order_relaxed) + bytes;
    if (++frees_ % era_frees == 0) {
      era_before_ = era_;
      era_ = 0;
    }
    if (live > era_) era_ = live;
    const uint64_t recent = era_ > era_before_ ? era_ : era_before_;
    const uint64_t used = std::atomic_ref<uint64_t>(window.control->ddr_used).load(std::memory_order_relaxed);
    const uint64_t unused = used < window.control->ddr_budget ? window.control->ddr_budget - used : 0;
    max_.store((recent < unused ? recent : unused) / page_bytes, std::memory_order_relaxed);
  }
  // Any thread.
  uint64_t max() const { return window.free_dirty_pages_max + max_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t era_frees = 256;
  uint32_t frees_ = 0;
  uint64_t era_ = 0, era_before_ = 0;  // most bytes in use
  std::atomic<uint64_t> max_{0};
};
constinit KeptPages kept_pages;

// Gives free resident DDR pages back until at most `keep` are left. heap_lock is held, and the DDR part is
// anonymous memory.
void purge(uint64_t keep) {
  uint64_t kept = window.free_dirty_pages;
  window.heap.for_each_run({0, window.ddr_pages}, [&](heap::PageSpan run, heap::RunRecord& record) {
    if (record.state != heap::RunState::free || record.arena != ddr_arena || kept <= keep) return;
    const heap::PageSpan dirty = window.heap.dirty_stretch(run);
    if (dirty.pages == 0) return;
    const uint32_t pages = window.heap.count_dirty(dirty);
    // Fails where the program has locked it (mlock).
    if (next.madvise(window.address(dirty.first), size_t{dirty.pages} * page_bytes, MADV_DONTNEED) != 0) return;
    window.heap.set_dirty(dirty, false);
    kept -= pages;
  });
  window.free_dirty_pages = kept;
}

void purge_if_much() {
  const uint64_t most = kept_pages.max();
  // Down to less than that, so that the next ones need no system call.
  if (window.free_dirty_pages > most) purge(most / 2);
}

// A run of an ancestor's making: its charge, if any, was moved here when that ancestor ended.
void uncharge_inherited(size_t bytes) {
  if (window.slot == nullptr) return;
  std::atomic_ref<uint64_t> held(window.slot->inherited_charge);
  uint64_t now = held.load(std::memory_order_relaxed);
  uint64_t less = 0;
  do less = now < bytes ? now : bytes;
  while (!held.compare_exchange_weak(now, now - less, std::memory_order_relaxed));
  std::atomic_ref<uint64_t>(window.control->ddr_used).fetch_sub(less, std::memory_order_relaxed);
}

// heap_lock is held. `clean`: the pages are known to read as zeros now.
void free_locked(uint32_t page, bool clean) {
  const heap::RunRecord record = window.heap.run(page);
  heap::PageSpan run{page, record.pages};
  size_t bytes = size_t{run.pages} * page_bytes;
  // What cannot be cleaned stays in use, by nobody.
  if (any_marks.load(std::memory_order_relaxed)) [[unlikely]]
    if (!clean_marks(run, !is_shared(record.arena) && record.arena != ddr_arena)) return;
  if (clean)
    window.heap.set_dirty(run, false);
  else if (record.arena == ddr_arena && !window.tiered)
    window.free_dirty_pages += run.pages;
  statistics::note_goes(page, run.pages);
  heap::PageSpan joined = window.heap.free(page);
  count_live(record.arena, -static_cast<int64_t>(bytes));
  if (is_shared(record.arena)) return segment_freed(record.arena, joined);
  if (record.arena != ddr_arena) return;
  if (window.tiered) {
    kept_pages.freed(bytes);
    return front_freed(joined);
  }
  if (record.tag == window.generation)
    spare_charge.give(bytes);
  else
    uncharge_inherited(bytes);
  kept_pages.freed(bytes);
  purge_if_much();
}

// heap_lock is held.
void free_span_locked(heap::PageSpan span, bool clean) {
  const uint32_t end = span.first + span.pages;
  uint32_t page = window.heap.used_run_with(span.first);
  if (page == heap::no_page) fatal("small blocks: pages that are not in use came back");
  if (page < span.first) window.heap.split(page, span.first - page);
  for (page = span.first; page < end;) {
    if (!window.heap.is_used(page)) fatal("small blocks: pages that are not in use came back");
    if (window.heap.run(page).pages > end - page) window.heap.split(page, end - page);
    const uint32_t pages = window.heap.run(page).pages;
    free_locked(page, clean);
    page += pages;
  }
}

// Frees what threads have kept for themselves. heap_lock is held. True: there was something.
bool empty_shelves() {
  bool any = false;
  for (uint32_t page = take_any_kept_run(); page != heap::no_page; page = take_any_kept_run()) {
    if (forget_block != nullptr) forget_block(page);
    free_locked(page, false);
    any = true;
  }
  return any;
}

// What has waited for the heap's lock. It is held.
void catch_up() {
  free_deferred();
  if (!must_empty_shelves()) return;
  empty_shelves();
  note_shelves_emptied();
}

// Gives pages of the run at `run` that are being freed back to the kernel, if that pays. True: they read as
// zeros now. Before the lock is taken: they are still their owner's, nobody reads them any more, and a fork
// that runs meanwhile copies either state.
bool give_pages_back(uint32_t run, heap::PageSpan span) {
  // A fork may be moving the run from shared to detached: either answer is right, shared does nothing.
  uint8_t arena = __atomic_load_n(&window.heap.run(run).arena, __ATOMIC_RELAXED);
  char* at = window.address(span.first);
  size_t bytes = size_t{span.pages} * page_bytes;
  if (arena == ddr_arena) {
    if (window.tiered || span.pages < purge_now_pages) return false;
    // A look without the lock: a wrong number costs a system call, or leaves the work to purge().
    const uint64_t kept = __atomic_load_n(&window.free_dirty_pages, __ATOMIC_RELAXED);
    return kept + span.pages > kept_pages.max() && next.madvise(at, bytes, MADV_DONTNEED) == 0;
  }
  // Leased pages stay: punching them would give up the space that the lease has reserved.
  if (is_shared(arena) || span.pages < replace_pages) return false;
  if (window.tiered) {
    // The mapping stays what it is: parts of it may be folded, or will be. Held: a granule that is being folded
    // would lose its write-protection.
    const Held held = begin_hold(at, bytes);
    next.madvise(at, bytes, MADV_DONTNEED);
    end_hold(at, bytes, held);
    return false;
  }
  return ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) == at;
}

}  // namespace

bool charge(size_t bytes) {
  if (window.slot == nullptr) return false;
  std::atomic_ref<uint64_t> used(window.control->ddr_used);
  uint64_t now = used.load(std::memory_order_relaxed);
  do
    if (bytes > window.control->ddr_budget || now > window.control->ddr_budget - bytes) return false;
  while (!used.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
  // After the common counter: a process that dies in between leaves too much there, never too little.
  std::atomic_ref<uint64_t>(window.slot->ddr_charged).fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

void charge_anyway(size_t bytes) {
  if (window.slot == nullptr) return;
  std::atomic_ref<uint64_t>(window.control->ddr_used).fetch_add(bytes, std::memory_order_relaxed);
  std::atomic_ref<uint64_t>(window.slot->ddr_charged).fetch_add(bytes, std::memory_order_relaxed);
}

void uncharge(size_t bytes) {
  if (window.slot == nullptr) return;
  std::atomic_ref<uint64_t>(window.slot->ddr_charged).fetch_sub(bytes, std::memory_order_relaxed);
  std::atomic_ref<uint64_t>(window.control->ddr_used).fetch_sub(bytes, std::memory_order_relaxed);
}

// What the process ends with is what it did not free. Other threads may go on.
__attribute__((destructor)) void end_with_empty_shelves() {
  keep_no_runs();
  if (!is_armed() || !window.heap_lock.enter()) return;
  empty_shelves();
  window.heap_lock.leave();
}

uint64_t kept_ddr_pages_max() {
  return kept_pages.max();
}

namespace {

struct Wish {
  size_t bytes, alignment;
  uint32_t pages, align_pages;
};
enum class Found : uint8_t { yes, no, forking };

// What the window has, or a lease more. `at_once`: without waiting for what others are about to give back.
Found find(const Wish& wish, bool at_once, Taken* taken) {
  bool found = false;
  for (bool again = true; again;) {
    if (!window.heap_lock.enter()) return Found::forking;
    catch_up();
    found = take_in_budget(wish.pages, wish.align_pages, taken) ||
            (empty_shelves() && take_in_budget(wish.pages, wish.align_pages, taken));
    window.heap_lock.leave();
    // Promotions may have left CXL memory behind that could stand in for the reserve's.
    again = !found && !at_once && wait_for_reserve_memory(wish.pages, wish.align_pages);
  }
  if (found) return Found::yes;
  if (!window.supply_lock.enter()) return Found::forking;
  // Again: another thread may have brought a segment while this one waited.
  for (int round = 0; !found && round < 2; ++round) {
    if (round == 1 && !add_segment(wish.bytes, wish.alignment, at_once)) break;
    if (!window.heap_lock.enter()) {  // a fork in a signal handler that has interrupted the heap
      window.supply_lock.leave();
      return Found::forking;
    }
    found = take_in_budget(wish.pages, wish.align_pages, taken);
    window.heap_lock.leave();
  }
  window.supply_lock.leave();
  return found ? Found::yes : Found::no;
}

bool lets_leases_go() {
  if (!window.heap_lock.enter()) return false;
  bool soon = false;
  give_up_free_segments(&soon);
  window.heap_lock.leave();
  return soon && wait_for_trim();
}

// In the order of what it costs: the last is a wait.
Found find_or_reclaim(const Wish& wish, bool may_wait, Taken* taken) {
  Found found = Found::no;
  if (reclaim_small != nullptr) {
    found = find(wish, true, taken);
    for (Reclaim how : {Reclaim::whole_runs, Reclaim::every_page})
      if (found == Found::no && reclaim_small(how)) found = find(wish, true, taken);
  }
  if (found == Found::no && may_wait) found = find(wish, false, taken);
  // Leases that only the engine can give back, for one that is long enough.
  if (found == Found::no && may_wait && window.tiered && lets_leases_go()) found = find(wish, false, taken);
  return found;
}

// Said once in a process, and why. heap_lock is not held: these are numbers of a moment.
void say_refused(size_t bytes) {
  if (window.manager_away.load(std::memory_order_relaxed))
    return say(
        "out of memory: no lease for %u KiB, the pool manager does not answer: `terrace status` tells, a "
        "restarted "
        "one is found again (said once)",
        bytes >> 10);
  const uint64_t budget = window.control->ddr_budget;
  const uint64_t used = std::atomic_ref<uint64_t>(window.control->ddr_used).load(std::memory_order_relaxed);
  uint64_t leased = 0, leased_free = 0;
  for (uint32_t i = 0; i < window.segment_count; ++i) {
    leased += window.segments[i].span.pages;
    leased_free += window.heap.free_pages(shared_arena(i));
  }
  const uint64_t numbers[] = {bytes >> 10,
                              (used < budget ? budget - used : 0) >> 20,
                              budget >> 20,
                              leased_free * page_bytes >> 20,
                              leased * page_bytes >> 20,
                              window.control->cxl_budget >> 20};
  say_numbers(
      "out of memory: no room for %u KiB in one tier; DDR %u MiB free of the run's %u, leases %u MiB free (in "
      "pieces) of "
      "this "
      "process's %u, CXL budget of the run %u MiB and no more to be had: raise --ddr or --cxl, enlarge the "
      "pool, or "
      "allow plain memory with --fallback (said once)",
      numbers);
}

void say_too_long(size_t bytes) {
  const uint64_t numbers[] = {bytes >> 20, size_t{window.total_pages} * page_bytes >> 20};
  say_numbers(
      "a request of %u MiB is refused: it is longer than the window of this run, %u MiB from --ddr and --cxl "
      "(said once)",
      numbers);
}

}  // namespace

void* allocate_large(size_t bytes, size_t alignment, bool zero, Refusal* refusal, bool may_fail,
                     statistics::Owner owner) {
  *refusal = Refusal::use_next;
  if (!is_armed() && !arm()) return nullptr;
  if (alignment <= page_bytes && owner == statistics::Owner::program)
    if (void* kept = take_kept_run(bytes); kept != nullptr) return zero ? memset(kept, 0, bytes) : kept;
  const size_t window_bytes = size_t{window.total_pages} * page_bytes;
  const bool fits = bytes <= window_bytes && alignment <= window_bytes;
  Wish wish{bytes, alignment, 0, 1};
  Taken taken;
  taken.owner = owner;
  if (fits) {
    wish.pages = pages_for(bytes);
    if (alignment > page_bytes) wish.align_pages = static_cast<uint32_t>(alignment / page_bytes);
    const Found found = find_or_reclaim(wish, !may_fail, &taken);
    if (found == Found::yes) return hand_out(taken, zero);
    if (found == Found::forking) return bypass(refusal);
  }

  if (!window.heap_lock.enter()) return bypass(refusal);
  const bool found = fits && take_detached(wish.pages, wish.align_pages, &taken);
  const bool next_malloc = window.fallback || window.supply_gone.load(std::memory_order_relaxed);
  if (!found && !may_fail) {
    count(next_malloc ? &supply::Slot::fallbacks : &supply::Slot::refused);
    statistics::note_full(bytes, next_malloc);
  }
  bool* const said = fits ? &window.refusal_said : &window.too_long_said;
  const bool first_refusal = !found && !may_fail && !next_malloc && !*said;
  if (first_refusal) *said = true;
  window.heap_lock.leave();
  if (found) return hand_out(taken, zero);
  if (first_refusal) fits ? say_refused(bytes) : say_too_long(bytes);
  *refusal = next_malloc ? Refusal::use_next : Refusal::exhausted;
  return nullptr;
}

void* allocate_present(size_t bytes, size_t alignment, bool detached_too, bool* zero, bool* forking,
                       statistics::Owner owner) {
  *forking = false;
  const size_t window_bytes = size_t{window.total_pages} * page_bytes;
  if (!is_armed() || bytes > window_bytes || alignment > window_bytes) return nullptr;
  if (!window.heap_lock.enter()) {
    window.during_fork.fetch_add(1, std::memory_order_relaxed);
    *forking = true;
    return nullptr;
  }
  free_deferred();
  const uint32_t pages = pages_for(bytes);
  const uint32_t align_pages = alignment > page_bytes ? static_cast<uint32_t>(alignment / page_bytes) : 1;
  Taken taken;
  taken.owner = owner;
  const bool found = take_in_budget(pages, align_pages, &taken) ||
                     (empty_shelves() && take_in_budget(pages, align_pages, &taken)) ||
                     (detached_too && take_detached(pages, align_pages, &taken));
  window.heap_lock.leave();
  if (!found) return nullptr;
  const bool wanted = *zero;
  *zero = wanted || taken.dirty_bytes == 0;
  return hand_out(taken, wanted);
}

void free_span(void* at, size_t bytes, bool clean) {
  const uint32_t pages = pages_for(bytes);
  if (window.heap_lock.enter()) {
    free_span_locked({window.page_of(at), pages}, clean);
    catch_up();
    window.heap_lock.leave();
    return;
  }
  auto* span = static_cast<FreedSpan*>(at);
  span->pages = pages;
  span->next = window.deferred_spans.load(std::memory_order_relaxed);
  // release: pairs with free_deferred()
  while (!window.deferred_spans.compare_exchange_weak(span->next, span, std::memory_order_release)) {
  }
}

bool free_mapped(heap::PageSpan span) {
  // The pages' own run does not change before they are freed.
  const uint32_t run = window.heap.used_run_with(span.first);
  if (run == heap::no_page) fatal("munmap: pages of a mapping that are not in use");
  const bool inside = run + window.heap.run(run).pages >= span.first + span.pages;
  const bool clean = inside && give_pages_back(run, span);
  if (!window.heap_lock.enter()) return false;
  free_span_locked(span, clean);
  catch_up();
  window.heap_lock.leave();
  return true;
}

bool claim_part(uint32_t run, heap::PageSpan part) {
  const uint8_t arena = window.heap.run(run).arena;
  if (arena == address_arena || arena == reserve_arena) {
    window.heap.take_part(run, part, window.generation);
    window.heap.run(part.first).right = static_cast<uint32_t>(statistics::Owner::mapping);
    return false;
  }
  if (arena == ddr_arena && !window.tiered) {
    charge_anyway(size_t{part.pages} * page_bytes);
    window.free_dirty_pages -= window.heap.count_dirty(part);
  }
  window.heap.take_part(run, part, window.generation);
  window.heap.set_dirty(part, true);
  window.heap.run(part.first).right = static_cast<uint32_t>(statistics::Owner::mapping);
  statistics::note_came(part.first, part.pages, statistics::Owner::mapping);
  count_live(arena, static_cast<int64_t>(size_t{part.pages} * page_bytes));
  return true;
}

bool are_whole_runs(const void* at, size_t bytes) {
  uint32_t page = window.page_of(at);
  const uint32_t end = page + static_cast<uint32_t>(bytes / page_bytes);
  while (page < end && window.heap.is_used(page)) page += window.heap.run(page).pages;
  return page == end;
}

void free_kept_runs() {
  if (!is_armed() || !window.heap_lock.enter()) return;
  empty_shelves();
  window.heap_lock.leave();
}

bool begins_run(const void* at) {
  return window.heap.is_used(window.page_of(at));
}

void free_large(void* pointer) {
  uint32_t page = keep_run(checked_page(pointer, "free(): invalid pointer"));
  if (page == heap::no_page) return;
  const int saved = errno;
  if (forget_block != nullptr) forget_block(page);
  bool clean = give_pages_back(page, {page, window.heap.run(page).pages});
  if (window.heap_lock.enter()) {
    free_locked(page, clean);
    catch_up();
    window.heap_lock.leave();
  } else {
    // Treiber stack, push only; free_deferred() takes it whole, so no node can come back in between.
    heap::RunRecord& record = window.heap.run(page);
    uint32_t head = window.deferred.load(std::memory_order_relaxed);
    do std::atomic_ref<uint32_t>(record.left).store(head, std::memory_order_relaxed);
    // pairs with free_deferred()
    while (!window.deferred.compare_exchange_weak(head, page + 1, std::memory_order_release));
  }
  errno = saved;
}

void free_deferred() {
  if (window.deferred.load(std::memory_order_relaxed) == 0 &&
      window.deferred_spans.load(std::memory_order_relaxed) == nullptr &&
      window.during_fork.load(std::memory_order_relaxed) == 0)
    return;
  // acquire pairs with the push's release: the links are seen.
  FreedSpan* span = window.deferred_spans.exchange(nullptr, std::memory_order_acquire);
  while (span != nullptr) {
    const FreedSpan taken = *span;
    free_span_locked({window.page_of(span), static_cast<uint32_t>(taken.pages)}, false);
    span = taken.next;
  }
  uint32_t link = window.deferred.exchange(0, std::memory_order_acquire);  // acquire: pairs with free_large()
  while (link != 0) {
    uint32_t page = link - 1;
    link = window.heap.run(page).left;
    free_locked(page, false);
  }
  count(&supply::Slot::during_fork, window.during_fork.exchange(0, std::memory_order_relaxed));
}

bool resize_large(void* pointer, size_t bytes) {
  uint32_t page = checked_page(pointer, "realloc(): invalid pointer");
  size_t had = size_t{window.heap.run(page).pages} * page_bytes;
  if (bytes > size_t{window.total_pages} * page_bytes) return false;
  uint32_t pages = bytes == 0 ? 1 : pages_for(bytes);
  if (pages * page_bytes == had) return true;
  // During a fork a shorter block keeps its pages; a longer one moves.
  if (!window.heap_lock.enter()) return pages * page_bytes < had;
  const heap::RunRecord before = window.heap.run(page);
  size_t now = size_t{pages} * page_bytes;
  bool ddr = before.arena == ddr_arena && !window.tiered;  // charged page by page
  bool done = false;
  if (now < had) {
    heap::PageSpan tail{page + pages, before.pages - pages};
    if (any_marks.load(std::memory_order_relaxed)) [[unlikely]]
      if (!clean_marks(tail, !is_shared(before.arena) && before.arena != ddr_arena)) {
        window.heap_lock.leave();
        return true;  // it keeps its pages
      }
    if (ddr) window.free_dirty_pages += tail.pages;
    done = window.heap.resize(page, pages);
    if (ddr && before.tag == window.generation) uncharge(had - now);
    if (ddr && before.tag != window.generation) uncharge_inherited(had - now);
  } else if (!ddr || (before.tag == window.generation && charge(now - had))) {
    heap::PageSpan more{page + before.pages, pages - before.pages};
    bool inside = more.first + more.pages <= window.heap.page_count();
    uint32_t dirty = ddr && inside ? window.heap.count_dirty(more) : 0;
    done = window.heap.resize(page, pages);
    if (done) {
      window.heap.set_dirty(more, true);
      if (ddr) window.free_dirty_pages -= dirty;
    } else if (ddr) {
      uncharge(now - had);
    }
  }
  if (done) {
    count_live(before.arena, static_cast<int64_t>(now) - static_cast<int64_t>(had));
    statistics::note_resized(page, before.pages, pages);
  }
  purge_if_much();
  window.heap_lock.leave();
  return done;
}

size_t usable_large(const void* pointer) {
  return size_t{window.heap.run(checked_page(pointer, "malloc_usable_size(): invalid pointer")).pages} *
         page_bytes;
}

bool trim_large() {
  if (!is_armed() || !window.heap_lock.enter()) return false;
  free_deferred();
  empty_shelves();
  bool any = false;
  bool soon = false;  // the engine's thread has to do it
  if (window.tiered) {
    any = trim_front(&soon);
  } else {
    const uint64_t before = window.free_dirty_pages;
    purge(0);
    any = window.free_dirty_pages < before;
  }
  any = give_up_free_segments(&soon) || any;
  window.heap_lock.leave();
  return (soon && wait_for_trim()) || any;
}

}  // namespace terrace::preload
