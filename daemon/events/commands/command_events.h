// SPDX-License-Identifier: Apache-2.0
// What a command did, as events: made from a command that was applied, told once its changes are durable.
//
// Place     The engine calls it beside audit_rows(), which say who did it for longer than a process lives. Pure.
// Threads   Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/events/event.h"
#include "daemon/state/command.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

// What `command` is about and will have removed when it is applied, for command_events(). `state`: before that.
std::optional<Event> subject_before(const Command& command, const StateMachine& state);

struct CommandFacts {
  std::string_view actor = {};        // who asked; empty: the manager itself
  uint64_t took_ns = 0;               // of the work whose end the command reports; 0: not known
  std::optional<Event> subject = {};  // of subject_before()
};

// None for what was refused, for renewals, and for the steps of work under way. `state` is the machine after the step.
std::vector<Event> command_events(const Command& command, const Step& step, const StateMachine& state,
                                  CommandFacts facts);

// Of a lease, with what its row says.
Event lease_event(EventKind kind, const LeaseRow& lease, const StateMachine& state, std::string message);

// A call that was refused, from its row of the audit log.
Event denial_event(const AuditRow& row, std::string_view code);

}  // namespace terrace::daemon
