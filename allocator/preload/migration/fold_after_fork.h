// SPDX-License-Identifier: Apache-2.0
// Folding back: pages that a fork made private (fork.cc) go into the leases and the front's file again, and
// then migrate as before. Folding begins once no descendant of that fork can read those files any more.
//
//   fresh    a fork has made pages private; children may have them
//   asked    those pages are not inherited any more (MADV_DONTFORK); this process has unmapped the token, which
//            all earlier children have mapped
//   alone    the kernel has released that token: no process has it mapped, so none maps the files
//
// In the state `alone` the engine folds granule by granule (Mover::fold), until the next fork sets `fresh`. A
// run with all its granules folded goes back to its shared arena; after the last such run the engine goes on.
//
// After each fork folding waits for a time: the next fork makes folded pages private again, so a program that
// forks all the time would copy its memory for each fork. The time is at least eight times the duration of the
// last folding. It doubles with each fork that comes within it, or before the folding is done.
//
// The token is a page of a memory file that every process of the tree maps and inherits. It is mapped through
// an open file that holds a lock (flock), and only mappings keep that file open. Another open file gets the
// lock at the moment when the last mapping is gone. So there is no list of processes, which could be read too
// late or miss a process; and children made by raw system calls count, too.
//
// Place     engine_thread.cc → fold_back() between rounds; fork/ and interpose/ ask.
// Threads   fold_back(): the engine's thread. State that other threads read changes under the range's lock.
//
// Invariants
//   O1  No byte of a file is written where a private mapping of another process may show it: a granule is
//       folded only while `alone`, with the range's lock held, which a fork takes before it says `fresh`.
//   O2  Granules that are folded are mapped shared; a fork makes those private again that belong to runs which
//       are detached still.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/preload/window/window.h"

namespace terrace::preload {

// A part of the window with its arenas: a segment, or the front of a window that migrates.
struct Part {
  heap::PageSpan span;
  uint8_t shared, detached;
};
inline uint32_t part_count() {
  return window.segment_count + (window.tiered ? 1 : 0);
}
inline Part part_at(uint32_t i) {
  if (i < window.segment_count) return {window.segments[i].span, shared_arena(i), detached_arena(i)};
  return {{0, window.ddr_pages}, ddr_arena, detached_front_arena};
}

// ---- the engine's thread

// Before the first move. `token_fd`: another open file of the token that children inherit; -1: there is none,
// and nothing is folded.
void open_fold(int token_fd);
bool has_detached();  // heap_lock is held
// One step of what is above; takes heap_lock and the range's lock. True: there is more to do at once.
bool fold_back();

// ---- a fork, with all locks held

// The child will have what is private now.
void note_fork();
// What is private is inherited. False: the kernel refuses; the fork must not be.
bool let_children_inherit_detached();
// Pages will be private that must not be folded: a switch went wrong.
void never_fold();
// Calls visit(PageSpan) for the parts of detached runs that are folded; O2. False: visit returned false.
bool for_each_folded_part(bool (*visit)(void* argument, heap::PageSpan span), void* argument);
// They are private again.
void forget_folded();
void forget_folds_in_child();
// live_* of the slot, anew.
void recount_live();

// ---- any thread

// If this is a child: it has handed pages to a device or a pipe, and nobody knows until when they are read.
void note_lent_in_child();

}  // namespace terrace::preload
