// SPDX-License-Identifier: Apache-2.0
// Which processes of this machine have ended: what the owner of a part can store until. A connection that is
// gone says nothing of that: the process that had it may live, and have the memory mapped.
//
// A ProcessId's `space` is the pid namespace that its number belongs to and the time namespace that its start
// is told in: seen from another one of either, neither says anything.
//
// Threads   Pure functions; a few system calls each.
#pragma once

#include <cstdint>

#include <optional>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

// The process that opened the connection, `pid` by SO_PEERCRED. It is told from a later one of the same number
// by the moment that it was started at, which is read while the connection shows that it lives. Errors
// unavailable   the connection is gone
//           unsupported   the process cannot be seen from here: another pid namespace, a hidden /proc, or one
//                         that belongs to another pid namespace than the manager does; says which
// `pidfd`: gets a descriptor of it.
Result<ProcessId> peer_process(int socket, int32_t pid, UniqueFd* pidfd = nullptr);

// A pidfd of just this process, while it lives; invalid: it has ended, or cannot be seen.
UniqueFd open_living(const ProcessId& process);

// Whether it runs no instruction any more: all its threads have let go of its memory. false when in doubt.
// Children that it forked are processes of their own, and do not count.
bool process_has_ended(const ProcessId& process);
// The same of an owner on this machine; of one on another host false.
bool owner_has_ended(const OwnerRow& owner);

// A process of this machine as it is told to another one, which asks about it later: `space` says the boot as well.
// Errors    unsupported   the boot's id cannot be read
Result<ProcessId> told_elsewhere(const ProcessId& process);
// Whether a process that was told elsewhere has ended. false when in doubt.
bool told_process_has_ended(const ProcessId& told);

// One who owns a part of the lease and lives, other than `but`. It holds the lease, whether it has a session
// now or not: what it stores while a move copies would be lost.
std::optional<OwnerRow> living_owner(const StateMachine& state, LeaseId lease, const ProcessId& but = {});

}  // namespace terrace::daemon
