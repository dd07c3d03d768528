// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/window/mapped_blocks.h"

#include <errno.h>
#include <string.h>

#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/libc/raw_calls.h"
#include "allocator/preload/window/large_requests.h"
#include "allocator/preload/window/page_marks.h"
#include "allocator/preload/window/window.h"

namespace terrace::preload {

std::atomic<size_t> mapped_from{SIZE_MAX};

namespace {

// As the kernel's: mappings whose length is a multiple of a huge page begin at one. A moved granule then holds
// pages of one mapping.
constexpr size_t huge_bytes = granule_bytes;
// From here on the kernel drops pages sooner than they can be written with zeros.
constexpr size_t drop_bytes_min = 8u << 20;

// A bit a page of the window; made with the first mapping that is served.
std::atomic<std::atomic<uint64_t>*> served_bits{nullptr};

// What was unmapped while the heap's lock was not to be had: first page + 1 above, pages below; 0: nothing.
constexpr uint32_t waiting_max = 256;
constinit std::atomic<uint64_t> waiting[waiting_max];
constinit std::atomic<uint32_t> waiting_count{0};  // at least as many are there

bool make_bits() {
  // acquire: pairs with the exchange below.
  if (served_bits.load(std::memory_order_acquire) != nullptr) return true;
  const size_t bytes = (size_t{window.total_pages} + 63) / 64 * sizeof(uint64_t);
  void* made =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return false;
  std::atomic<uint64_t>* none = nullptr;
  // acq_rel: pairs with the loads of served_bits (its acquire half with nothing)
  if (!served_bits.compare_exchange_strong(none, static_cast<std::atomic<uint64_t>*>(made),
                                           std::memory_order_acq_rel))
    ::munmap(made, bytes);
  return true;
}

// Calls visit(word, mask) for each word of bits that `span` has a part of.
template <typename Visit>
void for_each_word(heap::PageSpan span, Visit visit) {
  // acquire: pairs with make_bits()
  std::atomic<uint64_t>* const bits = served_bits.load(std::memory_order_acquire);
  const uint32_t end = span.first + span.pages;
  for (uint32_t page = span.first; page < end;) {
    const uint32_t bit = page % 64, count = end - page < 64 - bit ? end - page : 64 - bit;
    visit(bits[page / 64], (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << bit, page - bit);
    page += count;
  }
}

void set_bits(heap::PageSpan span) {
  for_each_word(span, [](std::atomic<uint64_t>& word, uint64_t mask, uint32_t) {
    word.fetch_or(mask, std::memory_order_relaxed);
  });
}

void defer_free(heap::PageSpan span) {
  waiting_count.fetch_add(1, std::memory_order_relaxed);
  const uint64_t entry = uint64_t{span.first + 1} << 32 | span.pages;
  for (std::atomic<uint64_t>& slot : waiting) {
    uint64_t empty = 0;
    // pairs with release_waiting()
    if (slot.compare_exchange_strong(empty, entry, std::memory_order_release)) return;
  }
  // As many at once, while one fork lasts: these pages stay in use, by nobody.
  waiting_count.fetch_sub(1, std::memory_order_relaxed);
}

void release(heap::PageSpan span) {
  if (!window.heap_lock.is_free_soon() || !free_mapped(span)) defer_free(span);
}

void release_waiting() {
  if (waiting_count.load(std::memory_order_relaxed) == 0 || window.heap_lock.forking()) return;
  for (std::atomic<uint64_t>& slot : waiting) {
    const uint64_t entry = slot.exchange(0, std::memory_order_acquire);  // acquire: pairs with defer_free()
    if (entry == 0) continue;
    waiting_count.fetch_sub(1, std::memory_order_relaxed);
    release({static_cast<uint32_t>(entry >> 32) - 1, static_cast<uint32_t>(entry)});
  }
}

size_t alignment_of(size_t bytes) {
  return bytes % huge_bytes == 0 ? huge_bytes : page_bytes;
}

void* take(size_t bytes) {
  if ((!is_armed() && !arm()) || !make_bits()) return nullptr;
  const size_t alignment = alignment_of(bytes);
  bool zero = true, forking = false;
  const auto present = [&] {
    zero = true;
    return allocate_present(bytes, alignment, false, &zero, &forking, statistics::Owner::mapping);
  };
  void* at = present();
  if (at != nullptr || forking || bytes > size_t{window.total_pages} * page_bytes) return at;
  if (!window.supply_lock.is_free_soon() || !window.supply_lock.enter()) return nullptr;
  const bool more = add_segment(bytes, alignment, true);
  window.supply_lock.leave();
  return more ? present() : nullptr;
}

// Old bytes in pages that a mapping grew into.
void make_zero(char* at, size_t bytes) {
  const bool anonymous = window.page_of(at + bytes - 1) < window.front_pages && window.front_key == 0;
  if (!anonymous || bytes < drop_bytes_min || next.madvise(at, bytes, MADV_DONTNEED) != 0) memset(at, 0, bytes);
}

}  // namespace

void* serve_mapping(size_t bytes) {
  if (large_from.load(std::memory_order_relaxed) == SIZE_MAX || bytes > PTRDIFF_MAX) return nullptr;
  const int saved = errno;
  bytes = (bytes + page_bytes - 1) & ~(page_bytes - 1);
  void* at = nullptr;
  if (window.supply_lock.is_free_soon() && window.heap_lock.is_free_soon()) {
    if (is_armed()) release_waiting();
    at = take(bytes);
  }
  if (at != nullptr) set_bits({window.page_of(at), static_cast<uint32_t>(bytes / page_bytes)});
  errno = saved;
  return at;
}

void stop_serving_mappings() {
  mapped_from.store(SIZE_MAX, std::memory_order_relaxed);
}

bool is_served(uint32_t page) {
  // acquire: pairs with make_bits()
  const std::atomic<uint64_t>* bits = served_bits.load(std::memory_order_acquire);
  return bits != nullptr && (bits[page / 64].load(std::memory_order_relaxed) >> page % 64 & 1) != 0;
}

bool any_served(heap::PageSpan span) {
  if (served_bits.load(std::memory_order_acquire) == nullptr) return false;  // acquire: pairs with make_bits()
  bool any = false;
  for_each_word(span, [&](std::atomic<uint64_t>& word, uint64_t mask, uint32_t) {
    any = any || (word.load(std::memory_order_relaxed) & mask) != 0;
  });
  return any;
}

void unmap_served(heap::PageSpan span) {
  if (served_bits.load(std::memory_order_acquire) == nullptr) return;  // acquire: pairs with make_bits()
  const int saved = errno;
  release_waiting();
  heap::PageSpan run;  // of pages that were this call's to take
  const auto add = [&](uint32_t page) {
    if (run.pages > 0 && run.first + run.pages != page) {
      release(run);
      run.pages = 0;
    }
    if (run.pages++ == 0) run.first = page;
  };
  for_each_word(span, [&](std::atomic<uint64_t>& word, uint64_t mask, uint32_t first) {
    // Cleared first: nobody else gives these pages back.
    // acq_rel: no partner, set_bits() is relaxed; blocks go from thread to thread by the program.
    uint64_t mine = word.fetch_and(~mask, std::memory_order_acq_rel) & mask;
    for (; mine != 0; mine &= mine - 1) add(first + static_cast<uint32_t>(__builtin_ctzll(mine)));
  });
  if (run.pages > 0) release(run);
  errno = saved;
}

bool grow_served(char* end, size_t more_bytes) {
  const uint32_t last = window.page_of(end - 1);
  const auto more = static_cast<uint32_t>(more_bytes / page_bytes);
  if (!is_served(last) || marks_of(last) != 0 || more_bytes > size_t{window.total_pages} * page_bytes ||
      !window.heap_lock.is_free_soon() || !window.heap_lock.enter())
    return false;
  const uint32_t first = window.heap.used_run_with(last);
  const uint32_t pages = first == heap::no_page ? 0 : window.heap.run(first).pages;
  window.heap_lock.leave();
  if (first + pages != last + 1 || !resize_large(window.address(first), (size_t{pages} + more) * page_bytes))
    return false;
  make_zero(end, more_bytes);
  set_bits({last + 1, more});
  return true;
}

bool claim_free_pages(heap::PageSpan span) {
  const uint32_t end = span.first + span.pages;
  for (uint32_t page = span.first; page < end;) {
    const uint32_t used = window.heap.used_run_with(page);
    if (used != heap::no_page) {
      page = used + window.heap.run(used).pages;
      continue;
    }
    const uint32_t run = window.heap.free_run_with(page);
    if (run == heap::no_page) {  // addresses that the heap does not hold
      ++page;
      continue;
    }
    const uint32_t run_end = run + window.heap.run(run).pages;
    const heap::PageSpan part{page, (run_end < end ? run_end : end) - page};
    if (!make_bits()) return false;
    // Addresses without memory are never given back: what comes there later must not find this in its way.
    if (claim_part(run, part)) set_bits(part);
    page = part.first + part.pages;
  }
  return true;
}

}  // namespace terrace::preload
