// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/migration/fold_after_fork.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/migration/migration_state.h"
#include "allocator/preload/window/ddr_part.h"
#include "allocator/preload/window/page_marks.h"
#include "allocator/preload/window/supervisor_link.h"

namespace terrace::preload {

using namespace migration;
using tiering::Residency;

namespace {

constexpr size_t token_bytes = page_bytes;
constexpr uint32_t old_tokens_max = 16;
constexpr uint64_t slice_ns = 50'000'000;
constexpr uint64_t wait_ns_min = 1'000'000'000, wait_ns_max = 300'000'000'000;
constexpr uint64_t wait_per_work = 8;
constexpr timespec budget_pause = {.tv_sec = 0, .tv_nsec = 5'000'000};

enum class Stage : uint8_t { fresh, asked, alone };
enum Mark : uint8_t { is_shared_or_free = 0, to_fold = 1, folded = 2 };

// `page` is mapped through an open file of its own that has the lock; `fd` is another one of the same file.
struct Token {
  int fd = -1;
  uint32_t* page = nullptr;
};

// The range's lock guards stage, marks, kept_here and the times; the rest is the engine's thread's, but
// `token.page`, which is written with heap_lock and read by a child.
struct Fold {
  Token token;
  int descriptors_fd = -1;  // /proc/thread-self/fd of the engine's thread, which may not find it again (chroot)
  int maps_fd = -1;         // /proc/thread-self/maps of it
  int old_fds[old_tokens_max];
  uint32_t old_count = 0;
  uint8_t* marks = nullptr;  // a byte a granule
  std::atomic<Stage> stage{Stage::fresh};
  bool kept_here = false;                                            // detached pages are not inherited
  uint64_t not_before_ns = 0, wait_ns = wait_ns_min, worked_ns = 0;  // since the last fork
  uint64_t done_ns = 0;  // all was folded then, for the first time since the last fork
  std::atomic<bool> never{false};
};
Fold fold;

template <typename Value>
void put_more(uint64_t supply::Slot::*cell, Value more) {
  if (window.slot == nullptr) return;
  std::atomic_ref<uint64_t>(window.slot->*cell).fetch_add(more, std::memory_order_relaxed);
}

bool make_token(Token* token) {
  token->fd = static_cast<int>(::syscall(SYS_memfd_create, "terrace-fork", MFD_CLOEXEC));
  if (token->fd < 0) return false;
  char name[16];
  ::snprintf(name, sizeof(name), "%d", token->fd);
  int holder = -1;
  void* page = MAP_FAILED;
  if (::ftruncate(token->fd, token_bytes) == 0)
    holder = static_cast<int>(::syscall(SYS_openat, fold.descriptors_fd, name, O_RDWR | O_CLOEXEC));
  if (holder >= 0 && ::flock(holder, LOCK_EX | LOCK_NB) == 0)
    page = ::mmap(nullptr, token_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, holder, 0);
  close_raw(holder);
  if (page != MAP_FAILED) {
    token->page = static_cast<uint32_t*>(page);
    return true;
  }
  close_raw(token->fd);
  token->fd = -1;
  return false;
}

void drop_token(const Token& token) {
  ::munmap(token.page, token_bytes);
  close_raw(token.fd);
}

template <typename Visit>
void for_each_detached_run(Visit visit) {
  for (uint32_t i = 0; i < part_count(); ++i) {
    const Part one = part_at(i);
    const uint32_t end = one.span.first + one.span.pages;
    for (uint32_t page = one.span.first; page < end;) {
      const heap::RunRecord record = window.heap.run(page);
      if (record.arena == one.detached) visit(heap::PageSpan{page, record.pages}, one);
      page += record.pages;
    }
  }
}

// Neighbouring runs go together: each call may cost a mapping. What the program has mapped itself shows no file of ours,
// and keeps its advice: mremap may take it out of the window, where no fork would take ours back.
bool advise_detached(int advice) {
  heap::PageSpan span;
  bool ok = true;
  const auto flush = [&] {
    if (span.pages > 0 &&
        next.madvise(window.address(span.first), size_t{span.pages} * page_bytes, advice) != 0)
      ok = false;
    span = {};
  };
  for_each_detached_run([&](heap::PageSpan run, const Part&) {
    for_each_marked(run, [&](heap::PageSpan part, Marks marks, bool) {
      if ((marks & own_mapping) != 0) return;
      if (span.pages > 0 && span.first + span.pages != part.first) flush();
      if (span.pages == 0) span.first = part.first;
      span.pages += part.pages;
    });
  });
  flush();
  return ok;
}

uint32_t granule_of(uint32_t page) {
  return page / granule_pages;
}

bool is_folded(heap::PageSpan run) {
  for (uint32_t granule = granule_of(run.first); granule <= granule_of(run.first + run.pages - 1); ++granule)
    if (fold.marks[granule] != folded) return false;
  return true;
}

void forget_private(heap::PageSpan span) {
  for (uint32_t page = span.first; page < span.first + span.pages; ++page)
    window.private_bits[page / 64] &= ~(uint64_t{1} << page % 64);
}

// ---- the engine's thread

struct Locked {
  bool ok = window.heap_lock.enter();  // not while a fork is under way
  Locked() {
    if (ok) shared.self->memory.lock().enter();
  }
  ~Locked() {
    if (!ok) return;
    shared.self->memory.lock().leave();
    window.heap_lock.leave();
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

bool is_forked() {
  return shared.state.load(std::memory_order_relaxed) == State::forked;
}

// What was forked so far has the old token and the pages, what is forked from here on neither of them.
void ask() {
  if (fold.old_count == old_tokens_max) return;
  Token fresh;
  if (!make_token(&fresh)) return;
  const Token old = fold.token;
  {
    Locked locked;
    if (!locked.ok || !is_forked() || !advise_detached(MADV_DONTFORK)) return drop_token(fresh);
    fold.kept_here = true;
    fold.token = fresh;
    window.token_page = fresh.page;
    fold.stage = Stage::asked;
  }
  ::munmap(old.page, token_bytes);
  fold.old_fds[fold.old_count++] = old.fd;
}

// Old tokens that nobody maps any more. True: that is all of them.
bool look_for_children() {
  for (uint32_t i = 0; i < fold.old_count;) {
    const int fd = fold.old_fds[i];
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      ++i;
      continue;
    }
    uint32_t pinned = 0;
    if (::pread(fd, &pinned, sizeof(pinned), 0) != sizeof(pinned) || pinned != 0) never_fold();
    close_raw(fd);
    fold.old_fds[i] = fold.old_fds[--fold.old_count];
  }
  return fold.old_count == 0;
}

// The queues of an io_uring and of kernel AIO are mappings of these names, however they were made. What is
// under way there is in nobody's list, and no question tells of private pages.
bool has_queues() {
  static const char* const names[] = {"anon_inode:[io_uring]", "/[aio]"};
  constexpr size_t overlap = 32;
  static char text[overlap + 16384 + 1];
  if (fold.maps_fd < 0) return true;  // not to be known
  bool found = false;
  size_t kept = 0;
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(fold.maps_fd, text + kept, sizeof(text) - 1 - kept, at);
    if (got < 0) return true;
    if (got == 0) break;
    at += got;
    const size_t have = kept + static_cast<size_t>(got);
    text[have] = 0;
    for (const char* name : names) found = found || strstr(text, name) != nullptr;
    kept = have < overlap ? have : overlap;
    memmove(text, text + have - kept, kept);
  }
  return found;
}

bool mark_granules() {
  Locked locked;
  if (!locked.ok || fold.stage != Stage::alone) return false;
  import_heap_changes();
  for_each_detached_run([](heap::PageSpan run, const Part&) {
    for (uint32_t granule = granule_of(run.first); granule <= granule_of(run.first + run.pages - 1); ++granule)
      if (fold.marks[granule] != folded) fold.marks[granule] = to_fold;
  });
  return true;
}

// Nothing is folded for a while, which is longer the next time; or shorter, when the last one was `enough`.
void delay_next_fold(uint64_t now_ns, bool enough) {
  static const bool soon = secure_getenv("TERRACE_TEST_FOLD_SOON") != nullptr;  // test seam
  if (soon) return;
  const uint64_t wait_ns = enough ? fold.wait_ns / 2 : fold.wait_ns * 2;
  fold.wait_ns = wait_ns < wait_ns_min ? wait_ns_min : wait_ns > wait_ns_max ? wait_ns_max : wait_ns;
  const uint64_t of_work_ns = fold.worked_ns * wait_per_work;
  fold.not_before_ns = now_ns + (of_work_ns > fold.wait_ns ? of_work_ns : fold.wait_ns);
}

// True: one that could be folded is left.
bool fold_some() {
  Migration& my = *shared.self;
  tiering::CopyBudget& budget = my.engine.copy_budget();
  const uint64_t begin_ns = tiering::monotonic_ns(), end_ns = begin_ns + slice_ns;
  bool failed = false, more = false;
  for (uint32_t granule = 0; granule < my.memory.granule_count(); ++granule) {
    if (__atomic_load_n(&fold.marks[granule], __ATOMIC_RELAXED) != to_fold) continue;
    // A fork waits for one granule at most: it would not get the lock from whoever takes it again at once.
    if (tiering::monotonic_ns() > end_ns || window.heap_lock.forking()) {
      more = true;
      break;
    }
    if (budget.allowance(tiering::monotonic_ns()) == 0) {
      ::nanosleep(&budget_pause, nullptr);
      more = true;
      break;
    }
    my.memory.lock().enter();
    const bool go = fold.stage == Stage::alone && !shared.ending.load(std::memory_order_relaxed);
    if (go) {
      const tiering::MoveReport report = my.memory.fold(my.engine.mover(), granule);
      if (report.result == tiering::MoveResult::done) {
        forget_private({granule * granule_pages, granule_pages});
        __atomic_store_n(&fold.marks[granule], folded, __ATOMIC_RELAXED);
        put_more(&supply::Slot::folded_bytes, granule_bytes);
        budget.spend(granule_bytes);
      }
      failed =
          failed || (report.result != tiering::MoveResult::done && report.result != tiering::MoveResult::held);
    }
    my.memory.lock().leave();
    if (!go) return false;
  }
  my.memory.lock().enter();
  const uint64_t now_ns = tiering::monotonic_ns();
  fold.worked_ns += now_ns - begin_ns;
  if (failed && !more) delay_next_fold(now_ns, false);  // out of memory or of mappings: perhaps later
  my.memory.lock().leave();
  return more;
}

// Where a granule was given back while the engine did not look.
void forget_given_back() {
  tiering::TieredMemory& memory = shared.self->memory;
  for (uint32_t granule = 0; granule < window.ddr_pages / granule_pages; ++granule)
    if (window.charged[granule] == 0 && memory.residency(granule) == Residency::ddr)
      memory.forget(granule, 1, false);
}

void give_runs_back() {
  Locked locked;
  // A fork in a signal handler may have come after the last granule was folded.
  if (!locked.ok || !is_forked() || window.private_for_good || shared.ending.load(std::memory_order_relaxed))
    return;
  bool any = false, left = false;
  for (uint32_t i = 0; i < part_count(); ++i) {
    const Part one = part_at(i);
    const uint32_t end = one.span.first + one.span.pages;
    for (uint32_t page = one.span.first; page < end;) {
      // The records of runs behind this one keep their lengths, whatever is joined with them.
      const heap::RunRecord record = window.heap.run(page);
      const heap::PageSpan run{page, record.pages};
      page += record.pages;
      if (record.arena != one.detached) continue;
      if (!is_folded(run)) {
        left = true;
        continue;
      }
      window.heap.move(run, one.shared);
      any = true;
    }
  }
  if (any) recount_live();
  if (left) return;
  memset(fold.marks, 0, shared.self->memory.granule_count());
  fold.kept_here = false;
  fold.done_ns = tiering::monotonic_ns();
  forget_given_back();
  import_heap_changes();
  resume_moving();
  put_more(&supply::Slot::folds, uint64_t{1});
}

}  // namespace

void open_fold(int token_fd) {
  const size_t bytes = (shared.self->memory.granule_count() + page_bytes - 1) & ~(page_bytes - 1);
  fold.descriptors_fd = static_cast<int>(
      ::syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC));
  fold.maps_fd =
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/maps", O_RDONLY | O_CLOEXEC));
  void* marks = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (marks == MAP_FAILED || token_fd < 0) return never_fold();
  fold.marks = static_cast<uint8_t*>(marks);
  fold.token = {token_fd, window.token_page};
}

bool has_detached() {
  bool any = false;
  for_each_detached_run([&](heap::PageSpan, const Part&) { any = true; });
  return any;
}

bool fold_back() {
  if (!is_forked() || fold.never.load(std::memory_order_relaxed)) return false;
  shared.self->memory.lock().enter();
  const bool later = tiering::monotonic_ns() < fold.not_before_ns;
  shared.self->memory.lock().leave();
  if (later || shared.self->engine.suspended_paused(shared.self->range)) return false;
  if (fold.stage == Stage::fresh) ask();
  const bool alone = look_for_children();
  shared.self->memory.lock().enter();
  if (alone && fold.stage == Stage::asked) fold.stage = Stage::alone;
  shared.self->memory.lock().leave();
  if (fold.stage != Stage::alone || fold.never.load(std::memory_order_relaxed)) return false;
  if (has_queues()) {
    never_fold();
    return false;
  }
  if (!mark_granules()) return false;
  const bool more = fold_some();
  give_runs_back();
  return more;
}

void note_fork() {
  fold.stage = Stage::fresh;
  const uint64_t now_ns = tiering::monotonic_ns();
  // A program that never had to fold waits for the least time.
  const bool in_vain = fold.worked_ns > 0 && (fold.done_ns == 0 || now_ns < fold.done_ns + fold.wait_ns ||
                                              now_ns < fold.done_ns + fold.worked_ns * wait_per_work);
  delay_next_fold(now_ns, !in_vain);
  fold.worked_ns = fold.done_ns = 0;
}

bool let_children_inherit_detached() {
  if (!fold.kept_here) return true;
  if (!advise_detached(MADV_DOFORK)) return false;
  fold.kept_here = false;
  return true;
}

void never_fold() {
  fold.never.store(true, std::memory_order_relaxed);
}

bool for_each_folded_part(bool (*visit)(void* argument, heap::PageSpan span), void* argument) {
  if (fold.marks == nullptr || shared.opened.load(std::memory_order_relaxed) == nullptr) return true;
  bool ok = true;
  for_each_detached_run([&](heap::PageSpan run, const Part&) {
    const uint32_t end = run.first + run.pages;
    for (uint32_t page = run.first; ok && page < end;) {
      const uint32_t granule_end = (granule_of(page) + 1) * granule_pages;
      const uint32_t next_page = granule_end < end ? granule_end : end;
      if (fold.marks[granule_of(page)] == folded) ok = visit(argument, {page, next_page - page});
      page = next_page;
    }
  });
  return ok;
}

void forget_folded() {
  if (fold.marks != nullptr && shared.opened.load(std::memory_order_relaxed) != nullptr)
    memset(fold.marks, 0, shared.self->memory.granule_count());
}

void forget_folds_in_child() {
  fold.never.store(true, std::memory_order_relaxed);
  fold.kept_here = false;
  fold.marks = nullptr;
}

// Others read the numbers meanwhile: each changes once.
void recount_live() {
  if (window.slot == nullptr) return;
  static uint64_t of_segment[supply::segments_max];  // not on the stack of a fork
  memset(of_segment, 0, sizeof(of_segment));
  uint64_t ddr = 0, leased = 0, detached = 0;
  const auto add = [&](heap::PageSpan run, heap::RunRecord& record) {
    if (record.state != heap::RunState::used) return;
    const uint64_t bytes = uint64_t{run.pages} * page_bytes;
    if (is_shared(record.arena)) of_segment[segment_of(record.arena)] += bytes;
    (record.arena == ddr_arena ? ddr : is_shared(record.arena) ? leased : detached) += bytes;
  };
  window.heap.for_each_run({0, window.ddr_pages}, add);
  for (uint32_t i = 0; i < window.segment_count; ++i) window.heap.for_each_run(window.segments[i].span, add);
  const auto put = [](uint64_t& cell, uint64_t value) {
    std::atomic_ref(cell).store(value, std::memory_order_relaxed);
  };
  put(window.slot->live_ddr, ddr);
  put(window.slot->live_cxl, leased);
  put(window.slot->live_detached, detached);
  for (uint32_t i = 0; i < supply::segments_max; ++i) put(window.slot->segment_live[i], of_segment[i]);
}

void note_lent_in_child() {
  if (window.token_page != nullptr) __atomic_store_n(window.token_page, 1u, __ATOMIC_RELAXED);
}

}  // namespace terrace::preload
