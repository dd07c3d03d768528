// Who did what, as rows of the audit log: made from a command that was applied, and durable with its changes.
//
// Place     daemon/event_loop; the engine adds the rows to the step's Delta.
// Threads   Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/state/command.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

// On whose behalf a command is applied: "uid 0 (terrace[1234])". Empty: the manager itself.
struct Actor {
  std::string text;
};

// The rows for one successful step; none for refusals, for renewals (a lease's expiry says as much) and for the
// steps of work under way. `state` is the machine after the step.
std::vector<AuditRow> audit_rows(const Command& command, const Step& step, const StateMachine& state,
                                 const Actor& actor, uint64_t wall_ns);

}  // namespace terrace::daemon
