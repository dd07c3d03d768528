// SPDX-License-Identifier: Apache-2.0
// Large private anonymous mappings of the program, served from the window (docs/design/0021-mapped-memory.md):
// mmap takes pages of it, munmap gives them back, in any parts. All other calls treat these pages as blocks of
// malloc (mappings.cc, advice.cc).
//
// Place     mappings.cc asks before the kernel.
// Threads   Any; no lock is held. Nothing here calls malloc, and nothing waits long for a lock: the caller may
//           be an allocator with its own locks, or a collector that has stopped all other threads.
//
// Invariants
//   M1  A page has its bit exactly while it belongs to a mapping that was served; then it is in a run in use.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/heap/page_heap.h"

namespace terrace::preload {

// Mappings of at least this many bytes are served; SIZE_MAX: none are.
extern std::atomic<size_t> mapped_from;

// What mmap was asked for is memory like malloc's, and nothing beyond it.
inline bool is_servable(const void* wanted, size_t bytes, int protection, int flags, off_t offset) {
  return bytes >= mapped_from.load(std::memory_order_relaxed) && wanted == nullptr &&
         protection == (PROT_READ | PROT_WRITE) && flags == (MAP_PRIVATE | MAP_ANONYMOUS) &&
         offset % static_cast<off_t>(heap::page_bytes) == 0;
}

// Zeros, or nullptr: the kernel's mmap is to serve it. Leaves errno alone.
void* serve_mapping(size_t bytes);

// From now on the kernel serves all: the program does what only its own mappings can take.
void stop_serving_mappings();

bool is_served(uint32_t page);
bool any_served(heap::PageSpan span);

// munmap: gives the served pages of `span` back to the window. The others stay what they are.
void unmap_served(heap::PageSpan span);

// Makes the mapping that ends at `end` longer in place, by zeros. False: nothing changed.
bool grow_served(char* end, size_t more_bytes);

// heap_lock is held. A mapping with MAP_FIXED comes to lie over `span`: its free pages are in use from now on,
// as served ones, so that nobody is given them. False: no memory for the bits.
bool claim_free_pages(heap::PageSpan span);

}  // namespace terrace::preload
