// SPDX-License-Identifier: Apache-2.0
// fork as POSIX has it, although leased memory is shared by nature. See fork.cc and fork_call.cc.
#pragma once

#include <sys/types.h>

namespace terrace::preload {

// Calls `real` (fork, _Fork, or a clone with memory of its own) with the window made safe for it.
// Errors    -1 and EAGAIN  leased pages could not be made private; nothing was changed.
// Signals   May be called by a signal handler, whatever that has interrupted.
// `bare`: the same without the C library's locks and handlers, for a signal handler that has interrupted this
// thread's own fork; nullptr: `real` has none of them.
pid_t fork_safely(pid_t (*real)(void*), void* argument, pid_t (*bare)(void*) = nullptr);
// Where `real` does not come back in the child (clone with a function): what fork_safely() does there.
void begin_child();

// children.cc. fork, clone or clone3 by number. False: not a case for this library.
bool fork_by_number(long number, long a, long b, long c, long d, long e, long* result);

}  // namespace terrace::preload
