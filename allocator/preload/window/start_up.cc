// SPDX-License-Identifier: Apache-2.0
// Start-up, the first large request, and new segments.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "allocator/preload/libc/message.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/window/mapped_blocks.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/process_look.h"
#include "allocator/preload/window/statistics.h"
#include "allocator/preload/window/supervisor_link.h"
#include "allocator/preload/window/window.h"

namespace terrace::preload {

Window window;
std::atomic<size_t> large_from{SIZE_MAX};
std::atomic<size_t> window_span{0};
std::atomic<uintptr_t> window_base{0};

namespace {

constexpr size_t window_alignment = 2u << 20;       // huge pages for the DDR part, granules of the leases
constexpr size_t wide_bytes_max = size_t{4} << 40;  // twice that many bytes are 2^31 pages
constexpr uint64_t retry_exhausted_ns = 100'000'000;
constexpr uint64_t retry_unavailable_ns = 1'000'000'000;
constexpr uint64_t free_dirty_bytes_max = 64u << 20;

std::atomic<bool> armed{false};

uint64_t now_ns() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

// Environment only: everything else waits for the first large request. A set-uid program never gets here
// with these variables (the loader drops LD_PRELOAD), secure_getenv makes sure.
__attribute__((constructor)) void start_up() {
  if (!ready()) return;
  remember_stderr();
  const char* path = secure_getenv(supply::socket_variable);
  if (path == nullptr || *path == 0) return;
  if (!set_supply_path(path)) return say("the supervisor's socket path is too long; running on plain malloc");
  uint64_t min_size = supply::min_size_default;
  if (const char* text = secure_getenv(supply::min_size_variable);
      text != nullptr && *text != 0 && strcmp(text, "0") != 0)
    min_size = strtoull(text, nullptr, 10);
  if (large_from_always != 0) min_size = large_from_always;
  // Below a page each request would cost a page.
  large_from.store(min_size < page_bytes ? page_bytes : min_size, std::memory_order_relaxed);
  const char* mmap_from = secure_getenv(supply::mmap_variable);
  const uint64_t mmap_bytes = mmap_from == nullptr ? 0 : strtoull(mmap_from, nullptr, 10);
  if (mmap_bytes != 0)
    mapped_from.store(mmap_bytes < supply::mmap_from_min ? supply::mmap_from_min : mmap_bytes,
                      std::memory_order_relaxed);
}

// At most 4 TiB a part: page numbers have 32 bits.
size_t round_to_window(uint64_t bytes) {
  constexpr uint64_t part_max = uint64_t{4} << 40;
  return ((bytes < part_max ? bytes : part_max) + window_alignment - 1) & ~(window_alignment - 1);
}

// `why` is true of this failure, and not of others.
bool give_up(const char* why) {
  large_from.store(SIZE_MAX, std::memory_order_relaxed);
  if (!window.abandoned) say("%s; running on plain malloc", why);
  return false;
}

bool addresses_are_limited(rlimit* limit) {
  return ::getrlimit(RLIMIT_AS, limit) == 0 && limit->rlim_cur != RLIM_INFINITY;
}

bool may_migrate() {
  const supply::ControlHeader& control = *window.control;
  if (control.policy[0] == 0 || control.ddr_budget < granule_bytes || control.cxl_budget == 0) return false;
  // The engine maps everything a second time, for itself.
  rlimit limit{};
  return !addresses_are_limited(&limit);
}

// One try at a window of `bytes`, of which `ddr_bytes` of `front_bytes` can be used at once.
bool reserve_exactly(size_t ddr_bytes, size_t front_bytes, size_t bytes) {
  void* at =
      ::mmap(nullptr, bytes + window_alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return false;
  uintptr_t start = reinterpret_cast<uintptr_t>(at);
  uintptr_t aligned = (start + window_alignment - 1) & ~(window_alignment - 1);
  if (aligned > start) ::munmap(at, aligned - start);
  if (size_t tail = start + window_alignment - aligned; tail > 0)
    ::munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  uint32_t pages = static_cast<uint32_t>(bytes / page_bytes);
  const size_t heap_bytes = (heap::PageHeap::table_bytes(pages) + 7) & ~size_t{7};
  const size_t bits_bytes = (size_t{pages} + 63) / 64 * 8;
  const size_t granules = (size_t{pages} + granule_pages - 1) / granule_pages;
  const size_t table_bytes = heap_bytes + bits_bytes + granules * (2 * sizeof(uint16_t) + 2);
  void* table =
      ::mmap(nullptr, table_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool usable = table != MAP_FAILED && (ddr_bytes == 0 || ::mprotect(reinterpret_cast<void*>(aligned),
                                                                     ddr_bytes, PROT_READ | PROT_WRITE) == 0);
  if (!usable) {
    if (table != MAP_FAILED) ::munmap(table, table_bytes);
    ::munmap(reinterpret_cast<void*>(aligned), bytes);
    return false;
  }
  window.private_bits = reinterpret_cast<uint64_t*>(static_cast<char*>(table) + heap_bytes);
  window.held_counts = reinterpret_cast<uint16_t*>(static_cast<char*>(table) + heap_bytes + bits_bytes);
  window.used_pages = window.held_counts + granules;
  window.charged = reinterpret_cast<uint8_t*>(window.used_pages + granules);
  window.held_for_good = window.charged + granules;
  window.base = reinterpret_cast<char*>(aligned);
  window.ddr_pages = static_cast<uint32_t>(ddr_bytes / page_bytes);
  window.front_pages = static_cast<uint32_t>(front_bytes / page_bytes);
  window.total_pages = pages;
  window.mapped_pages = window.front_pages;
  window.heap.init(table, pages, aligned / page_bytes);
  return true;
}

// Reserves the window. Where memory does not migrate, it has twice as many addresses as the budgets have pages,
// for when the free ones lie scattered (design/0010). Where addresses are limited (ulimit -v) it has
// none to spare, and all of the window is at most half of that limit, since the program's own mappings need the
// rest.
bool reserve(size_t ddr_bytes, size_t cxl_bytes) {
  const size_t wanted = ddr_bytes + cxl_bytes;
  size_t bytes = wanted;
  rlimit limit{};
  if (addresses_are_limited(&limit)) {
    if (bytes > limit.rlim_cur / 2) bytes = limit.rlim_cur / 2;
  } else if (!may_migrate() && wanted <= wide_bytes_max &&
             reserve_exactly(ddr_bytes, 2 * ddr_bytes, 2 * (ddr_bytes + cxl_bytes))) {
    return true;
  }
  for (; bytes >= window_alignment; bytes = bytes / 2) {
    bytes &= ~(window_alignment - 1);
    // The DDR part shrinks last: it needs nobody's grant.
    const size_t ddr = ddr_bytes < bytes ? ddr_bytes : bytes;
    if (!reserve_exactly(ddr, ddr, bytes)) continue;
    if (bytes < wanted) say("the address-space limit (ulimit -v) leaves a window of %u MiB only", bytes >> 20);
    return true;
  }
  return false;
}

uint32_t pages_of(size_t bytes) {
  return static_cast<uint32_t>((bytes + page_bytes - 1) / page_bytes);
}

supply::Request request_for(supply::RequestKind kind) {
  supply::Request request{};
  request.magic = supply::magic;
  request.version = supply::version;
  request.kind = static_cast<uint16_t>(kind);
  return request;
}

// Puts the supervisor's memory file in the place of the DDR part, so that its granules can be moved. False: it
// stays anonymous memory, and nothing will move.
bool map_front(Link& link) {
  if (!may_migrate()) return false;
  supply::Request request = request_for(supply::RequestKind::front);
  request.bytes = size_t{window.total_pages} * page_bytes;
  supply::Reply reply{};
  int fd = -1;
  if (!link.ask(request, &reply, &fd) || fd < 0) return false;
  const size_t bytes = size_t{window.ddr_pages} * page_bytes;
  bool mapped =
      ::mmap(window.base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == window.base;
  close_raw(fd);
  if (mapped) next.madvise(window.base, bytes, MADV_HUGEPAGE);  // a wish
  // W1, as leases.
  if (mapped && next.madvise(window.base, bytes, MADV_DONTFORK) == 0) {
    window.front_key = reply.segment_key;
    return true;
  }
  if (::mmap(window.base, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != window.base)
    fatal("start: the kernel took the window away and does not give it back");
  return false;
}

// What children will be known by, from before there is anything to inherit (fold_after_fork.h).
void map_token(Link& link) {
  supply::Reply reply{};
  int fd = -1;
  if (!link.ask(request_for(supply::RequestKind::token), &reply, &fd) || fd < 0) return;
  void* page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close_raw(fd);
  if (page == MAP_FAILED) return;
  window.token_page = static_cast<uint32_t*>(page);
  window.token_key = reply.segment_key;
}

void describe_window_in_slot() {
  window.slot->window_base = reinterpret_cast<uintptr_t>(window.base);
  window.slot->window_bytes = size_t{window.total_pages} * page_bytes;
  window.slot->ddr_window_bytes = size_t{window.ddr_pages} * page_bytes;
}

// The program has put itself (or was put by its parent) into a sandbox since the supervisor started it. Its
// filter may kill for a socket, and nothing tells before. Filters around the supervisor (a container's) are its
// own too.
bool in_own_sandbox() {
  const char* text = secure_getenv(supply::seccomp_variable);
  uint64_t outside = text == nullptr ? 0 : strtoull(text, nullptr, 10);
  return status_number("\nSeccomp_filters:", status_number("\nSeccomp:", 0)) > outside;
}

// Under supply_lock.
bool arm_locked() {
  if (armed.load(std::memory_order_relaxed)) return true;
  if (large_from.load(std::memory_order_relaxed) == SIZE_MAX) return false;  // gave up meanwhile
  // Before anything is opened: the filter may kill for that as well.
  if (links_forbidden()) return give_up(link_failure(EPERM));
  if (in_own_sandbox()) return give_up("in a seccomp sandbox that may kill for a socket");
  Link link;
  if (!link.open()) return give_up(link_failure(errno));
  const supply::Request request = request_for(supply::RequestKind::hello);
  supply::Reply reply{};
  int fd = -1;
  // A child that was forked in the middle of this has its parent's answer.
  if (!link.ask(request, &reply, &fd) || window.abandoned) return give_up(link_failure(errno));
  if (reply.status != static_cast<uint16_t>(supply::ReplyStatus::ok) || reply.slot >= supply::slots_max ||
      fd < 0) {
    close_raw(fd);
    return give_up("the run has as many processes as it can serve");
  }
  void* control = ::mmap(nullptr, supply::control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close_raw(fd);
  if (control == MAP_FAILED) return give_up("no address space for the control page (ulimit -v?)");
  window.control = static_cast<supply::ControlHeader*>(control);
  window.slot = &supply::slots_of(window.control)[reply.slot];
  window.fallback = window.control->fallback != 0;
  // Rounded up, so that segments begin at whole granules; the budget itself is kept by charge().
  size_t ddr_bytes = round_to_window(window.control->ddr_budget);
  size_t cxl_bytes = round_to_window(window.control->cxl_budget);
  const bool same = window.control->magic == supply::magic;
  if (!same || !reserve(ddr_bytes, cxl_bytes)) {
    ::munmap(control, supply::control_bytes);
    window.control = nullptr;
    window.slot = nullptr;
    return give_up(same ? "no address space for the window (ulimit -v?)" : link_failure(EPROTO));
  }
  uint64_t dirty_max = ddr_bytes / 8 < free_dirty_bytes_max ? ddr_bytes / 8 : free_dirty_bytes_max;
  window.free_dirty_pages_max = dirty_max / page_bytes;
  window.tiered = map_front(link);
  if (window.tiered) map_token(link);
  if (window.ddr_pages > 0)
    window.heap.add({0, window.ddr_pages}, window.tiered ? reserve_arena : ddr_arena, false);
  if (window.total_pages > window.front_pages)
    window.heap.add({window.front_pages, window.total_pages - window.front_pages}, address_arena, false);
  describe_window_in_slot();
  statistics::attach();
  window_base.store(reinterpret_cast<uintptr_t>(window.base), std::memory_order_relaxed);
  // pairs with in_window()
  window_span.store(size_t{window.total_pages} * page_bytes, std::memory_order_release);
  armed.store(true, std::memory_order_release);  // pairs with is_armed()
  return true;
}

}  // namespace

bool is_armed() {
  return armed.load(std::memory_order_acquire);  // acquire: pairs with arm_locked()
}

bool arm() {
  if (!window.supply_lock.enter()) return false;
  bool result = arm_locked();
  window.supply_lock.leave();
  return result;
}

namespace {

enum class Answer { mapped, full, failed };

// Maps the lease behind `fd`. Takes heap_lock, which only a fork by a signal handler that has interrupted the
// heap can refuse here: any other one would hold supply_lock.
bool map_segment(int fd, uint64_t key, uint32_t least_pages, uint64_t bytes, uint32_t index) {
  const size_t unit = window.tiered ? granule_bytes : page_bytes;
  const uint64_t most = bytes / unit * unit / page_bytes;
  if (!window.heap_lock.enter()) return false;
  const heap::PageSpan span =
      take_addresses(least_pages, most < window.total_pages ? static_cast<uint32_t>(most) : window.total_pages);
  window.heap_lock.leave();
  if (span.pages == 0) return false;
  char* const at = window.address(span.first);
  const size_t mapped = size_t{span.pages} * page_bytes;
  bool ok = ::mmap(at, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at;
  if (ok && window.tiered) next.madvise(at, mapped, MADV_HUGEPAGE);  // as the engine maps: neighbours join
  // W1: a child made behind this library's back gets no shared page to corrupt; it gets SIGSEGV.
  const bool usable = ok && next.madvise(at, mapped, MADV_DONTFORK) == 0;
  // Back to a reservation; if even that fails the addresses stay in use, by nobody.
  const bool reserved = !usable && ::mmap(at, mapped, PROT_NONE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at;
  if (!window.heap_lock.enter()) {
    // Nobody's addresses from now on, and nobody's lease.
    ::mmap(at, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return false;
  }
  if (usable)
    note_new_segment(index, key, span);
  else if (reserved)
    return_addresses(span);
  window.heap_lock.leave();
  return usable;
}

Answer ask_for_segment(size_t needed, bool at_once) {
  const uint32_t index = next_segment_index();
  supply::Request request = request_for(supply::RequestKind::segment);
  request.segment_index = index;
  request.bytes = needed;
  request.at_once = at_once ? 1 : 0;
  supply::Reply reply{};
  int fd = -1;
  // The link stays open until the segment is mapped: until then the supervisor keeps the lease without
  // looking for somebody who maps it.
  Link link;
  if (!link.open() || !link.ask(request, &reply, &fd)) {
    if (!window.supply_gone.exchange(true)) say("%s; new memory comes from plain malloc", link_failure(errno));
    return Answer::failed;
  }
  auto status = static_cast<supply::ReplyStatus>(reply.status);
  window.manager_away.store(status == supply::ReplyStatus::unavailable, std::memory_order_relaxed);
  const bool granted = status == supply::ReplyStatus::ok && fd >= 0 && reply.bytes >= needed;
  const bool mapped = granted && map_segment(fd, reply.segment_key, pages_of(needed), reply.bytes, index);
  close_raw(fd);
  if (mapped) return Answer::mapped;
  const bool away = status == supply::ReplyStatus::unavailable || granted;
  const uint64_t retry_ns = now_ns() + (away ? retry_unavailable_ns : retry_exhausted_ns);
  std::atomic_ref<uint64_t>(window.segment_retry_at_once_ns).store(retry_ns, std::memory_order_relaxed);
  if (away || !at_once)
    std::atomic_ref<uint64_t>(window.segment_retry_ns).store(retry_ns, std::memory_order_relaxed);
  return away ? Answer::failed : Answer::full;
}

}  // namespace

bool add_segment(size_t bytes, size_t alignment, bool at_once) {
  if (window.supply_gone.load(std::memory_order_relaxed)) return false;
  const size_t needed = bytes + (alignment > window_alignment ? alignment : 0);
  const size_t window_bytes = size_t{window.total_pages} * page_bytes;
  if (needed > window_bytes || next_segment_index() == supply::segments_max ||
      window.heap.free_pages(address_arena) < pages_of(needed))
    return false;
  Answer answer = Answer::full;
  uint64_t& retry_ns = at_once ? window.segment_retry_at_once_ns : window.segment_retry_ns;
  if (now_ns() >= std::atomic_ref<uint64_t>(retry_ns).load(std::memory_order_relaxed))
    answer = ask_for_segment(needed, at_once);
  if (answer == Answer::full) {
    // What this process holds without using it may be what is missing.
    if (!window.heap_lock.enter()) return false;
    bool soon = false;
    const bool any = give_up_free_segments(&soon);
    window.heap_lock.leave();
    if (any) answer = ask_for_segment(needed, at_once);
  }
  if (answer != Answer::mapped) return false;
  if (window.tiered) note_new_segment();
  return true;
}

bool claim_slot(uint32_t parent_slot) {
  supply::Slot* slots = supply::slots_of(window.control);
  auto pid = static_cast<uint32_t>(::getpid());
  uint32_t start = pid % supply::slots_max;
  for (uint32_t i = 0; i < supply::slots_max; ++i) {
    supply::Slot& slot = slots[(start + i) % supply::slots_max];
    uint32_t expected = 0;
    // acquire pairs with the supervisor's release when it clears a slot's counters and then its pid.
    if (!std::atomic_ref<uint32_t>(slot.pid).compare_exchange_strong(expected, pid, std::memory_order_acquire))
      continue;
    window.slot = &slot;
    slot.parent_slot = parent_slot;
    describe_window_in_slot();
    statistics::attach();
    return true;
  }
  window.slot = nullptr;
  statistics::attach();
  return false;
}

void count(uint64_t supply::Slot::*counter, uint64_t more) {
  if (window.slot == nullptr) return;
  std::atomic_ref<uint64_t> cell(window.slot->*counter);
  cell.store(cell.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

void count_live(uint8_t arena, int64_t bytes) {
  if (window.slot == nullptr) return;
  auto more = static_cast<uint64_t>(bytes);  // modulo 2^64: subtracts when negative
  if (arena == ddr_arena) {
    count(&supply::Slot::live_ddr, more);
  } else if (is_shared(arena)) {
    count(&supply::Slot::live_cxl, more);
    std::atomic_ref<uint64_t> cell(window.slot->segment_live[segment_of(arena)]);
    cell.store(cell.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  } else {
    count(&supply::Slot::live_detached, more);
  }
  if (bytes > 0) {
    const supply::Slot& slot = *window.slot;
    uint64_t live = slot.live_ddr + slot.live_cxl + slot.live_detached;
    if (live > slot.peak_live)
      std::atomic_ref<uint64_t>(window.slot->peak_live).store(live, std::memory_order_relaxed);
  }
}

}  // namespace terrace::preload
