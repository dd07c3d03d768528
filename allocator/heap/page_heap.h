// SPDX-License-Identifier: Apache-2.0
// The page-run heap of the preload library: keeps track of the used pages of one address window, in runs of
// pages. Pure bookkeeping: it never touches the pages themselves, makes no system call and takes no
// lock, so that it can be tested against a model.
//
// Place     allocator/preload (large_requests.cc) owns one, in front of the window's memory.
// Threads   One at a time: the caller's lock. `run()` of a run in use may be read without it.
//
// Pages are numbered from 0 in the window. Each belongs to one run, free or in use, of one *arena*: a set of
// pages with the same backing (the DDR part, one lease, ...). Runs never span arenas, neighbours that are free
// and of one arena are always one run. The records lie in a side table, never in the pages, so that payloads
// keep their alignment and untouched memory stays untouched.
//
// Invariants (check_all re-derives them)
//   H1  The runs of a managed range tile it: no gap, no overlap.
//   H2  Two neighbouring free runs of one arena do not exist.
//   H3  A run is in the free tree of its arena exactly when it is free.
//   H4  free_pages(arena) is the sum over its tree.
//   H5  The record of a run's last page holds the run's length (`back`), so that a neighbour finds its start.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::heap {

inline constexpr size_t page_bytes = 4096;
inline constexpr uint32_t no_page = UINT32_MAX;
inline constexpr uint32_t arenas_max = 200;

enum class RunState : uint8_t { unmanaged = 0, free = 1, used = 2 };

// One page's record. Which fields mean something depends on the page's place in its run.
struct RunRecord {
  uint32_t pages;  // first page: length of the run
  uint32_t back;   // last page: length of the run
  uint32_t left;   // first page, free: children in the tree; both are the owner's to use while in use
  uint32_t right;
  uint8_t arena;   // first page
  RunState state;  // first page
  uint16_t tag;    // first page, in use: the caller's
};
static_assert(sizeof(RunRecord) == 20);

struct PageSpan {
  uint32_t first = 0;
  uint32_t pages = 0;
};

class PageHeap {
 public:
  constexpr PageHeap() = default;

  // Bytes of side table for `page_count` pages.
  static size_t table_bytes(uint32_t page_count);

  // `table`: table_bytes(page_count) of zeros, which outlive the heap. `first_page_number`: the address of
  // page 0 divided by page_bytes; alignments are those of addresses.
  void init(void* table, uint32_t page_count, uint64_t first_page_number);

  // Hands an unmanaged range to `arena`, free. `dirty`: it may hold bytes other than zero.
  void add(PageSpan span, uint8_t arena, bool dirty);

  // The shortest free run that fits, of those the one with the lowest address. `align_pages`: power of two.
  // Returns no_page when no free run fits.
  uint32_t allocate(uint8_t arena, uint32_t pages, uint32_t align_pages, uint16_t tag);

  // `first` must be the first page of a run in use (is_used). Returns the free run that it is part of now.
  PageSpan free(uint32_t first);

  // Shrinks, or grows into a free neighbour behind the run. False: nothing changed.
  bool resize(uint32_t first, uint32_t pages);

  // Makes two runs of the one in use that begins at `first`; the first of them has `pages`.
  void split(uint32_t first, uint32_t pages);

  // The run in use that `page` is part of; no_page: there is none. Looks at each page before it.
  uint32_t used_run_with(uint32_t page) const;

  // The free run that `page` is part of; no_page: there is none. Looks at each run since the last one in use.
  uint32_t free_run_with(uint32_t page) const;

  // Takes `part` of the free run that begins at `run` into use.
  void take_part(uint32_t run, PageSpan part, uint16_t tag);

  // Moves whole runs to another arena, in use or free. `span` begins and ends at run boundaries, and none of
  // its runs is in `arena` already.
  void move(PageSpan span, uint8_t arena);

  // Moves a part of the free run that begins at `run` to another arena.
  void move_part(uint32_t run, PageSpan part, uint8_t arena);

  bool is_used(uint32_t page) const { return page < page_count_ && records_[page].state == RunState::used; }
  const RunRecord& run(uint32_t first) const { return records_[first]; }
  RunRecord& run(uint32_t first) { return records_[first]; }
  uint64_t free_pages(uint8_t arena) const { return free_pages_[arena]; }
  uint32_t longest_free_run(uint8_t arena) const;  // pages; 0: none is free
  uint32_t page_count() const { return page_count_; }

  // Dirty: may hold bytes other than zero. Kept per page, across splits and merges.
  void set_dirty(PageSpan span, bool dirty);
  uint32_t count_dirty(PageSpan span) const;
  // The stretch from the first to the last dirty page; pages 0 when all are known to be zero.
  PageSpan dirty_stretch(PageSpan span) const;

  // Calls visit(PageSpan, RunRecord&) for each run of a managed range that begins and ends at runs.
  template <typename Visit>
  void for_each_run(PageSpan span, Visit visit) {
    for (uint32_t page = span.first; page < span.first + span.pages;) {
      uint32_t pages = records_[page].pages;
      visit(PageSpan{page, pages}, records_[page]);
      page += pages;
    }
  }

  // Re-derives every invariant for one managed range; nullptr, or which one is broken. Tests only: slow.
  const char* check_all(PageSpan span) const;

 private:
  bool less(uint32_t a, uint32_t b) const;
  void tree_insert(uint8_t arena, uint32_t node);
  void tree_erase(uint8_t arena, uint32_t node);
  uint32_t lower_bound(uint8_t arena, uint32_t pages, uint32_t first) const;
  uint32_t aligned_skip(uint32_t first, uint32_t align_pages) const;
  void mark(PageSpan span, uint8_t arena, RunState state);
  PageSpan release(PageSpan span, uint8_t arena);
  uint64_t tree_pages(uint32_t node, uint32_t* nodes) const;

  RunRecord* records_ = nullptr;
  uint64_t* dirty_ = nullptr;
  uint32_t page_count_ = 0;
  uint64_t first_page_number_ = 0;
  uint32_t root_[arenas_max] = {};  // page + 1; 0: empty, so that the object is all zeros before init
  uint64_t free_pages_[arenas_max] = {};
};

}  // namespace terrace::heap
