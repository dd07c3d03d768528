// SPDX-License-Identifier: Apache-2.0
// How long the scheduler lets a thread run before others get their turn. A thread that sleeps most of the time (it
// waits for a disk or a socket) and asks for a short slice gets its turn soon after it wakes; with the default one it
// waits, on a busy machine, for the end of a slice of whoever runs there: 2.8 to 4 ms.
//
// Source    sched_setattr(2): `sched_runtime` of an ordinary thread is its slice since Linux 6.12 (EEVDF), 0.1 to
//           100 ms, for every user. An older kernel takes the call and ignores the number.
// Threads   Each call is about the calling thread. New threads and children inherit the slice.
#pragma once

#include <cstdint>

#include "core/base/result.h"

namespace terrace {

inline constexpr uint64_t short_slice_ns = 100'000;

// Asks for short_slice_ns, and leaves policy, priority and nice value as they are. A thread of a real-time policy,
// or whose slice somebody made shorter still, stays as it is.
// Returns   the slice in force; 0: the kernel does not tell, as before 6.12, and has its own. For a real-time
//           thread, too, which needs none.
// Errors    os_error   of sched_getattr, sched_setattr
Result<uint64_t> take_short_slice();

// The kernel's own slice again, for who computes for long.
// Errors    os_error   of sched_getattr, sched_setattr
Status take_usual_slice();

}  // namespace terrace
