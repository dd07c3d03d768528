// SPDX-License-Identifier: Apache-2.0
// The interface of fork.cc for fork_call.cc: the window before a fork, and in the child.
//
// Threads   heap_lock is held, and lock_moves() was called; in the child there is one thread.
#pragma once

#include "allocator/preload/fork/fork.h"

namespace terrace::preload {

// Every shared range in use becomes private. False: not all could be.
bool make_window_private();
// The same where the heap's records are in the middle of a change: all of each lease and of the front, for
// good.
bool make_parts_private();
// Free shared ranges are inherited: just long enough that nothing else comes to lie there in the child.
void set_free_ranges_inherited(bool inherit);

// The child's own memory, records and slot.
void start_child();
// Of a child that lives without the heap (Window::abandoned): the records stay as they are.
void start_abandoned_child();

}  // namespace terrace::preload
