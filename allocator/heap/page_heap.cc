// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/page_heap.h"

#include <bit>

#include "core/base/check.h"

namespace terrace::heap {
namespace {

// The free tree is a treap over (pages, first). Its priorities are a hash of the page number: nothing to
// store, and the shape does not depend on the order of calls.
uint32_t priority(uint32_t page) {
  uint32_t hash = page * 0x9E3779B1u;
  hash ^= hash >> 15;
  hash *= 0x85EBCA77u;
  return hash ^ (hash >> 13);
}

// Links hold page + 1, so that zeroed memory is an empty tree.
constexpr uint32_t link_of(uint32_t page) {
  return page + 1;
}
constexpr uint32_t page_of(uint32_t link) {
  return link - 1;
}

// Free runs looked at for one that fits an alignment, before asking for a run that fits wherever it lies.
constexpr int aligned_tries = 32;

}  // namespace

size_t PageHeap::table_bytes(uint32_t page_count) {
  return size_t{page_count} * sizeof(RunRecord) + 8 + (size_t{page_count} + 63) / 64 * 8;
}

void PageHeap::init(void* table, uint32_t page_count, uint64_t first_page_number) {
  records_ = static_cast<RunRecord*>(table);
  size_t records_bytes = (size_t{page_count} * sizeof(RunRecord) + 7) & ~size_t{7};
  dirty_ = reinterpret_cast<uint64_t*>(static_cast<char*>(table) + records_bytes);
  page_count_ = page_count;
  first_page_number_ = first_page_number;
}

bool PageHeap::less(uint32_t a, uint32_t b) const {
  return records_[a].pages != records_[b].pages ? records_[a].pages < records_[b].pages : a < b;
}

void PageHeap::tree_insert(uint8_t arena, uint32_t node) {
  uint32_t* link = &root_[arena];
  while (*link != 0 && priority(page_of(*link)) >= priority(node)) {
    RunRecord& at = records_[page_of(*link)];
    link = less(node, page_of(*link)) ? &at.left : &at.right;
  }
  // Split what hung here by the new key into the new node's children.
  uint32_t rest = *link;
  *link = link_of(node);
  uint32_t* smaller = &records_[node].left;
  uint32_t* larger = &records_[node].right;
  while (rest != 0) {
    RunRecord& at = records_[page_of(rest)];
    if (less(page_of(rest), node)) {
      *smaller = rest;
      smaller = &at.right;
      rest = at.right;
    } else {
      *larger = rest;
      larger = &at.left;
      rest = at.left;
    }
  }
  *smaller = 0;
  *larger = 0;
  free_pages_[arena] += records_[node].pages;
}

void PageHeap::tree_erase(uint8_t arena, uint32_t node) {
  uint32_t* link = &root_[arena];
  while (*link != link_of(node)) {
    TERRACE_CHECK(*link != 0, "H3: a free run is not in its tree");
    RunRecord& at = records_[page_of(*link)];
    link = less(node, page_of(*link)) ? &at.left : &at.right;
  }
  uint32_t a = records_[node].left;
  uint32_t b = records_[node].right;
  while (a != 0 && b != 0) {
    if (priority(page_of(a)) >= priority(page_of(b))) {
      *link = a;
      link = &records_[page_of(a)].right;
      a = *link;
    } else {
      *link = b;
      link = &records_[page_of(b)].left;
      b = *link;
    }
  }
  *link = a != 0 ? a : b;
  free_pages_[arena] -= records_[node].pages;
}

// The smallest free run that is at least (pages, first) in the tree's order.
uint32_t PageHeap::lower_bound(uint8_t arena, uint32_t pages, uint32_t first) const {
  uint32_t best = no_page;
  for (uint32_t link = root_[arena]; link != 0;) {
    uint32_t page = page_of(link);
    const RunRecord& at = records_[page];
    if (at.pages > pages || (at.pages == pages && page >= first)) {
      best = page;
      link = at.left;
    } else {
      link = at.right;
    }
  }
  return best;
}

uint32_t PageHeap::longest_free_run(uint8_t arena) const {
  uint32_t pages = 0;
  for (uint32_t link = root_[arena]; link != 0; link = records_[page_of(link)].right)
    pages = records_[page_of(link)].pages;
  return pages;
}

uint32_t PageHeap::aligned_skip(uint32_t first, uint32_t align_pages) const {
  uint64_t number = first_page_number_ + first;
  return static_cast<uint32_t>((align_pages - (number & (align_pages - 1))) & (align_pages - 1));
}

void PageHeap::mark(PageSpan span, uint8_t arena, RunState state) {
  RunRecord& head = records_[span.first];
  head.pages = span.pages;
  head.arena = arena;
  head.state = state;
  records_[span.first + span.pages - 1].back = span.pages;
}

// Makes a span free and joins it with free neighbours of its arena. Returns the joined run.
PageSpan PageHeap::release(PageSpan span, uint8_t arena) {
  uint32_t after = span.first + span.pages;
  if (after < page_count_ && records_[after].state == RunState::free && records_[after].arena == arena) {
    tree_erase(arena, after);
    span.pages += records_[after].pages;
  }
  if (span.first > 0 && records_[span.first - 1].back != 0) {
    uint32_t before = span.first - records_[span.first - 1].back;
    if (records_[before].state == RunState::free && records_[before].arena == arena) {
      tree_erase(arena, before);
      // The start in the middle keeps `free`: a stale pointer to it is never taken for a run in use.
      records_[span.first].state = RunState::free;
      span = {before, span.pages + records_[before].pages};
    }
  }
  mark(span, arena, RunState::free);
  tree_insert(arena, span.first);
  return span;
}

void PageHeap::add(PageSpan span, uint8_t arena, bool dirty) {
  TERRACE_CHECK(span.pages > 0 && span.first + span.pages <= page_count_, "a range outside the heap");
  set_dirty(span, dirty);
  release(span, arena);
}

uint32_t PageHeap::allocate(uint8_t arena, uint32_t pages, uint32_t align_pages, uint16_t tag) {
  if (pages == 0 || free_pages_[arena] < pages) return no_page;
  uint32_t found = lower_bound(arena, pages, 0);
  uint32_t skip = 0;
  if (align_pages > 1) {
    int tries = 0;
    for (; found != no_page; found = lower_bound(arena, records_[found].pages, found + 1)) {
      skip = aligned_skip(found, align_pages);
      if (uint64_t{skip} + pages <= records_[found].pages) break;
      if (++tries == aligned_tries) {
        uint64_t enough = uint64_t{pages} + align_pages - 1;
        found = enough > page_count_ ? no_page : lower_bound(arena, static_cast<uint32_t>(enough), 0);
        if (found != no_page) skip = aligned_skip(found, align_pages);
        break;
      }
    }
  }
  if (found == no_page) return no_page;

  tree_erase(arena, found);
  uint32_t rest = records_[found].pages - skip - pages;
  if (skip > 0) {
    mark({found, skip}, arena, RunState::free);
    tree_insert(arena, found);
  }
  uint32_t first = found + skip;
  if (rest > 0) {
    mark({first + pages, rest}, arena, RunState::free);
    tree_insert(arena, first + pages);
  }
  mark({first, pages}, arena, RunState::used);
  records_[first].tag = tag;
  return first;
}

PageSpan PageHeap::free(uint32_t first) {
  TERRACE_CHECK(is_used(first), "freeing pages that are not in use");
  RunRecord& head = records_[first];
  head.state = RunState::free;
  return release({first, head.pages}, head.arena);
}

bool PageHeap::resize(uint32_t first, uint32_t pages) {
  TERRACE_CHECK(is_used(first) && pages > 0, "resizing pages that are not in use");
  RunRecord& head = records_[first];
  uint32_t had = head.pages;
  if (pages == had) return true;
  if (pages < had) {
    mark({first, pages}, head.arena, RunState::used);
    release({first + pages, had - pages}, head.arena);
    return true;
  }
  uint32_t more = pages - had;
  uint32_t after = first + had;
  if (after >= page_count_) return false;
  const RunRecord& next = records_[after];
  if (next.state != RunState::free || next.arena != head.arena || next.pages < more) return false;
  tree_erase(head.arena, after);
  uint32_t rest = next.pages - more;
  mark({first, pages}, head.arena, RunState::used);
  if (rest > 0) {
    mark({first + pages, rest}, head.arena, RunState::free);
    tree_insert(head.arena, first + pages);
  }
  return true;
}

void PageHeap::split(uint32_t first, uint32_t pages) {
  TERRACE_CHECK(is_used(first) && pages > 0 && pages < records_[first].pages,
                "splitting what is no run in use");
  const RunRecord whole = records_[first];
  mark({first, pages}, whole.arena, RunState::used);
  mark({first + pages, whole.pages - pages}, whole.arena, RunState::used);
  records_[first + pages].tag = whole.tag;
  records_[first + pages].right = whole.right;  // the owner's
}

uint32_t PageHeap::used_run_with(uint32_t page) const {
  if (page >= page_count_) return no_page;
  for (uint32_t first = page;; --first) {
    if (records_[first].state == RunState::used) return records_[first].pages > page - first ? first : no_page;
    if (first == 0) return no_page;
  }
}

void PageHeap::move(PageSpan span, uint8_t arena) {
  uint32_t end = span.first + span.pages;
  for (uint32_t page = span.first; page < end;) {
    RunRecord& head = records_[page];
    TERRACE_CHECK(head.state != RunState::unmanaged, "moving pages that the heap does not hold");
    uint32_t pages = head.pages;
    if (head.state == RunState::free) {
      tree_erase(head.arena, page);
      // Not free while release() looks at the neighbours: its own range must not be joined twice.
      head.state = RunState::used;
      release({page, pages}, arena);
    } else {
      head.arena = arena;
    }
    page += pages;
  }
  TERRACE_CHECK(end <= page_count_, "moving pages outside the heap");
}

void PageHeap::move_part(uint32_t run, PageSpan part, uint8_t arena) {
  const RunRecord whole = records_[run];
  const uint32_t end = run + whole.pages, part_end = part.first + part.pages;
  TERRACE_CHECK(whole.state == RunState::free && whole.arena != arena && part.pages > 0 && part.first >= run &&
                    part_end <= end,
                "moving a part of what is no free run");
  tree_erase(whole.arena, run);
  // Used while the pieces are made: a neighbour must not be joined with a record that is about to go.
  mark(part, arena, RunState::used);
  if (part.first > run) {
    mark({run, part.first - run}, whole.arena, RunState::free);
    tree_insert(whole.arena, run);
  }
  if (part_end < end) {
    mark({part_end, end - part_end}, whole.arena, RunState::free);
    tree_insert(whole.arena, part_end);
  }
  release(part, arena);
}

uint32_t PageHeap::free_run_with(uint32_t page) const {
  if (page >= page_count_) return no_page;
  // Records inside of a free run may be those of runs that it was joined from: from the last run in use on,
  // each run says where the next one begins.
  uint32_t at = page;
  while (at > 0 && records_[at].state != RunState::used) --at;
  if (records_[at].state == RunState::used) at += records_[at].pages;
  while (at <= page) {
    if (records_[at].state == RunState::unmanaged) {
      ++at;
      continue;
    }
    if (records_[at].pages > page - at) return at;
    at += records_[at].pages;
  }
  return no_page;
}

void PageHeap::take_part(uint32_t run, PageSpan part, uint16_t tag) {
  const RunRecord whole = records_[run];
  const uint32_t end = run + whole.pages, part_end = part.first + part.pages;
  TERRACE_CHECK(whole.state == RunState::free && part.pages > 0 && part.first >= run && part_end <= end,
                "taking a part of what is no free run");
  tree_erase(whole.arena, run);
  mark(part, whole.arena, RunState::used);
  records_[part.first].tag = tag;
  if (part.first > run) {
    mark({run, part.first - run}, whole.arena, RunState::free);
    tree_insert(whole.arena, run);
  }
  if (part_end < end) {
    mark({part_end, end - part_end}, whole.arena, RunState::free);
    tree_insert(whole.arena, part_end);
  }
}

void PageHeap::set_dirty(PageSpan span, bool dirty) {
  for (uint32_t page = span.first, end = span.first + span.pages; page < end;) {
    uint32_t bit = page % 64;
    uint32_t count = end - page < 64 - bit ? end - page : 64 - bit;
    uint64_t mask = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << bit;
    dirty_[page / 64] = dirty ? dirty_[page / 64] | mask : dirty_[page / 64] & ~mask;
    page += count;
  }
}

uint32_t PageHeap::count_dirty(PageSpan span) const {
  uint32_t total = 0;
  for (uint32_t page = span.first, end = span.first + span.pages; page < end;) {
    uint32_t bit = page % 64;
    uint32_t count = end - page < 64 - bit ? end - page : 64 - bit;
    uint64_t mask = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << bit;
    total += static_cast<uint32_t>(std::popcount(dirty_[page / 64] & mask));
    page += count;
  }
  return total;
}

PageSpan PageHeap::dirty_stretch(PageSpan span) const {
  auto is_dirty = [&](uint32_t page) { return (dirty_[page / 64] >> (page % 64) & 1) != 0; };
  uint32_t first = span.first;
  uint32_t end = span.first + span.pages;
  while (first < end && !is_dirty(first))
    first += dirty_[first / 64] >> (first % 64) == 0 ? 64 - first % 64 : 1;
  if (first >= end) return {span.first, 0};
  while (!is_dirty(end - 1)) --end;
  return {first, end - first};
}

uint64_t PageHeap::tree_pages(uint32_t link, uint32_t* nodes) const {
  if (link == 0) return 0;
  ++*nodes;
  const RunRecord& at = records_[page_of(link)];
  return at.pages + tree_pages(at.left, nodes) + tree_pages(at.right, nodes);
}

const char* PageHeap::check_all(PageSpan span) const {
  uint64_t free_pages[arenas_max] = {};
  uint32_t free_runs[arenas_max] = {};
  uint32_t end = span.first + span.pages;
  uint32_t before = no_page;
  for (uint32_t page = span.first; page < end;) {
    const RunRecord& head = records_[page];
    if (head.state == RunState::unmanaged || head.pages == 0 || head.pages > end - page) return "H1 tiling";
    if (records_[page + head.pages - 1].back != head.pages) return "H5 back length";
    if (head.state == RunState::free) {
      if (before != no_page && records_[before].state == RunState::free && records_[before].arena == head.arena)
        return "H2 free neighbours";
      free_pages[head.arena] += head.pages;
      ++free_runs[head.arena];
      if (lower_bound(head.arena, head.pages, page) != page) return "H3 free run not in its tree";
    }
    before = page;
    page += head.pages;
  }
  for (uint32_t arena = 0; arena < arenas_max; ++arena) {
    uint32_t nodes = 0;
    if (tree_pages(root_[arena], &nodes) != free_pages[arena] || free_pages_[arena] != free_pages[arena])
      return "H4 free pages";
    if (nodes != free_runs[arena]) return "H3 tree holds a run that is not free";
  }
  return nullptr;
}

}  // namespace terrace::heap
