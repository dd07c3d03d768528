#include "allocator/preload/fold.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "allocator/preload/front.h"
#include "allocator/preload/link.h"
#include "allocator/preload/migration_state.h"
#include "allocator/preload/next.h"

namespace terrace::preload {

using namespace migration;
using tiering::Residency;

namespace {

constexpr size_t token_bytes = page_bytes;
constexpr uint32_t old_tokens_max = 16;
constexpr uint64_t slice_ns = 50'000'000;
constexpr uint32_t failures_max = 256;  // passes in which a granule could not be folded, not for being held

enum class Stage : uint8_t { fresh, asked, alone };
enum Mark : uint8_t { is_shared_or_free = 0, to_fold = 1, folded = 2 };

// `page` is mapped through an open file of its own that has the lock; `fd` is another one of the same file.
struct Token {
  int fd = -1;
  uint32_t* page = nullptr;
};

// The range's lock guards stage, marks and kept_here; the rest is the engine's thread's, but `token.page`,
// which is written with heap_lock and read by a child.
struct Fold {
  Token token;
  int old_fds[old_tokens_max];
  uint32_t old_count = 0;
  uint8_t* marks = nullptr;  // a byte a granule
  std::atomic<Stage> stage{Stage::fresh};
  bool kept_here = false;  // detached pages are not inherited
  uint32_t failures = 0;
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
  char path[64];
  ::snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", token->fd);
  int holder = -1;
  void* page = MAP_FAILED;
  if (::ftruncate(token->fd, token_bytes) == 0)
    holder = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
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

// Neighbouring runs go together: each call may cost a mapping.
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
    if (span.pages > 0 && span.first + span.pages != run.first) flush();
    if (span.pages == 0) span.first = run.first;
    span.pages += run.pages;
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

bool mark_granules() {
  Locked locked;
  if (!locked.ok || fold.stage != Stage::alone) return false;
  meet_heap();
  for_each_detached_run([](heap::PageSpan run, const Part&) {
    for (uint32_t granule = granule_of(run.first); granule <= granule_of(run.first + run.pages - 1); ++granule)
      if (fold.marks[granule] != folded) fold.marks[granule] = to_fold;
  });
  return true;
}

// True: one that could be folded is left.
bool fold_some() {
  Migration& my = *shared.self;
  const uint64_t end_ns = tiering::monotonic_ns() + slice_ns;
  bool failed = false;
  for (uint32_t granule = 0; granule < my.memory.granule_count(); ++granule) {
    if (__atomic_load_n(&fold.marks[granule], __ATOMIC_RELAXED) != to_fold) continue;
    // A fork waits for one granule at most: it would not get the lock from whoever takes it again at once.
    if (tiering::monotonic_ns() > end_ns || window.heap_lock.forking()) return true;
    my.memory.lock().enter();
    const bool go = fold.stage == Stage::alone && !shared.ending.load(std::memory_order_relaxed);
    if (go) {
      const tiering::MoveReport report = my.memory.fold(my.engine.mover(), granule);
      if (report.result == tiering::MoveResult::done) {
        forget_private({granule * granule_pages, granule_pages});
        __atomic_store_n(&fold.marks[granule], folded, __ATOMIC_RELAXED);
        put_more(&supply::Slot::folded_bytes, granule_bytes);
      }
      failed =
          failed || (report.result != tiering::MoveResult::done && report.result != tiering::MoveResult::held);
    }
    my.memory.lock().leave();
    if (!go) return false;
  }
  if (failed && ++fold.failures == failures_max) never_fold();
  return false;
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
  if (!locked.ok || !is_forked() || shared.ending.load(std::memory_order_relaxed)) return;
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
  fold.failures = 0;
  forget_given_back();
  meet_heap();
  resume_moving();
  put_more(&supply::Slot::folds, uint64_t{1});
}

}  // namespace

void open_fold(int token_fd) {
  const size_t bytes = (shared.self->memory.granule_count() + page_bytes - 1) & ~(page_bytes - 1);
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
  if (fold.stage == Stage::fresh) ask();
  const bool alone = look_for_children();
  shared.self->memory.lock().enter();
  if (alone && fold.stage == Stage::asked) fold.stage = Stage::alone;
  shared.self->memory.lock().leave();
  if (fold.stage != Stage::alone || fold.never.load(std::memory_order_relaxed) || !mark_granules())
    return false;
  const bool more = fold_some();
  give_runs_back();
  return more;
}

void note_fork() {
  fold.stage = Stage::fresh;
}

bool let_inherit_detached() {
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

void recount_live() {
  if (window.slot == nullptr) return;
  window.slot->live_ddr = window.slot->live_cxl = window.slot->live_detached = 0;
  memset(window.slot->segment_live, 0, sizeof(window.slot->segment_live));
  window.heap.for_each_run({0, window.ddr_pages}, [](heap::PageSpan run, heap::RunRecord& record) {
    if (record.state == heap::RunState::used)
      count_live(record.arena, int64_t{run.pages} * int64_t{page_bytes});
  });
  for (uint32_t i = 0; i < window.segment_count; ++i)
    window.heap.for_each_run(window.segments[i].span, [](heap::PageSpan run, heap::RunRecord& record) {
      if (record.state == heap::RunState::used)
        count_live(record.arena, int64_t{run.pages} * int64_t{page_bytes});
    });
}

bool folds() {
  return window.tiered && !fold.never.load(std::memory_order_relaxed);
}

void note_pinned_in_child() {
  if (window.token_page != nullptr) __atomic_store_n(window.token_page, 1u, __ATOMIC_RELAXED);
}

}  // namespace terrace::preload
