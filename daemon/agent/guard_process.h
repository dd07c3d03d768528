// SPDX-License-Identifier: Apache-2.0
// Makes the guard's process one that comes to its work in time: on a busy machine, short of memory, after a suspension.
//
// Place     run_host_guard (daemon/role_agent.cc), before the guard's loop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::daemon {

// Of the calling process: a real-time priority (SCHED_FIFO, the lowest: above all ordinary threads), its memory locked
// as it is touched, and no OOM killer. Each takes a right that root has, and a container may lack; where there is no
// real-time priority, a short time slice.
// Returns   what could not be had, a sentence each
// Threads   The calling one and those that it starts later.
std::vector<std::string> protect_guard();

// Until `at_ns` of CLOCK_BOOTTIME, which goes on in a suspended machine: one that wakes up is late already.
void sleep_until_boot_ns(uint64_t at_ns);

}  // namespace terrace::daemon
