// SPDX-License-Identifier: Apache-2.0
// Freed page runs of the DDR part, kept for the next request of the same length: a thread that allocates and
// frees large blocks again and again does so without the heap's lock.
//
// Each thread has a shelf (threads with equal numbers modulo shelf_count share one): a few words, each a run
// that is in use for the heap but free for the program. One atomic exchange takes or puts a word. So any thread
// can empty any shelf, a forked child finds its parent's shelves, and the end of a thread needs no work.
//
// Kept runs are charged to the budget and count as live. So shelves hold little (a 256th of the budget, at most
// 4 MiB each). They are emptied when the supervisor asks for statistics, on malloc_trim, and before a request
// that the budget or a lease cannot serve.
//
// Place     large_requests.cc asks before it takes the heap's lock, and empties the shelves with the lock held.
// Threads   Any; in a signal handler too.
//
// Invariant
//   K1  A run on a shelf is in use (page_heap.h), the program's by its owner, and on one shelf only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::preload {

// A kept run of exactly the pages that `bytes` need; nullptr: there is none. It holds old bytes.
void* take_kept_run(size_t bytes);

// Keeps the block that begins at `page`. Returns the page of the block that shall be freed instead: this one,
// or one that was kept longer; no_page: none. Ends the process when the block is kept already.
uint32_t keep_run(uint32_t page);

// Takes some run off the shelves; no_page: there is none left. With it go the numbers of what was taken and
// kept since the last time: heap_lock is held.
uint32_t take_any_kept_run();

// Whether the supervisor has asked for statistics since the shelves were emptied for it. Then nothing is taken
// or kept before note_shelves_emptied().
bool must_empty_shelves();
void note_shelves_emptied();

// Nothing is kept from now on: the process ends.
void keep_no_runs();

}  // namespace terrace::preload
