// SPDX-License-Identifier: Apache-2.0
// The guard of a host: a small process beside the agent. It fences the host's memory when the host lease ends
// and the agent did not fence, because it was killed, stopped or hangs. Without it programs of a killed agent's
// host would go on writing to memory which the manager gives to others.
//
//   agent ─ sets the moment ─► host-lease (a mapped page) ◄─ waits for it ─ guard: truncates every object file,
//                                                                           unbinds every dax device of a lease,
//                                                                           side by side (guard_fence.h)
//
// It needs nothing of the agent but the page, and no lock that the agent holds. An agent that has not fenced
// and said so when half of its margin is over (host_lease.h) is killed: stopped or hanging it could still have an
// order under way, and go on with it when the memory has another holder. The guard ends by itself
// once the agent is gone and no promise is left, or when the moment comes and its folder was removed; a restarted agent
// finds the present guard, or starts one.
//
// Its process has a real-time priority, locked memory and no OOM killer, as far as it may (guard_process.h).
//
// Place     The agent starts `terraced ... --guard` in a session of its own: killing the agent's process group,
//           or its terminal, leaves it. An event that kills both (a reboot, the end of a container) also kills
//           the programs.
// Threads   Some for the moment of unbinding.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/agent/guard_fence.h"

namespace terrace::daemon {

struct HostFiles {
  explicit HostFiles(const std::string& runtime_directory);
  std::string lease;        // HostLeaseFile
  std::string agent_lock;   // held by the agent while it lives
  std::string guard_lock;   // held by the guard; its pid is in it
  std::string directories;  // what the guard fences, one a line: GuardedMemory
  std::string consents;     // who agreed to be ended before it: ConsentFile
};

// Takes the agent's lock, for as long as the descriptor lives.
// Errors    busy   another agent runs in this runtime directory
Result<UniqueFd> lock_as_agent(const HostFiles& files);

// What the guard will fence; before anything is carved.
Status record_guarded(const HostFiles& files, const GuardedMemory& memory);

// What is recorded; nothing, when nothing is.
GuardedMemory read_guarded(const HostFiles& files);

// Fences all that is recorded. Done again it is no error.
Status fence_guarded(const HostFiles& files);

// Whether one holds its lock.
bool guard_runs(const HostFiles& files);

// Starts a guard unless one runs: `command` is this program's own command line.
Status ensure_guard(const HostFiles& files, const std::vector<std::string>& command);

// The guard itself. Returns when there is nothing left to guard.
Status run_guard(const HostFiles& files);

}  // namespace terrace::daemon
