// SPDX-License-Identifier: Apache-2.0
// Who did what, as rows of the audit log: made from a command that was applied, and durable with its changes.
//
// Place     daemon/event_loop; the engine adds the rows to the step's Delta.
// Threads   Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/state/command.h"
#include "daemon/state/state_machine.h"
#include "daemon/traces/tracer.h"

namespace terrace::daemon {

// On whose behalf a command is applied: "uid 0 (terrace[1234])". Empty: the manager itself.
struct Actor {
  std::string text;
  bool administrator = false;  // or operator; the log keeps what they do apart (daemon/store/row_writer.h)
  std::shared_ptr<CallTrace> trace = {};  // of the call; null: it is not traced
};

// The rows for one step; none for renewals (a lease's expiry says as much) and for the steps of work under way. Of
// refusals those are told that want a right, or room beyond a quota: their verb begins with "denied ". `state` is
// the machine after the step.
std::vector<AuditRow> audit_rows(const Command& command, const Step& step, const StateMachine& state,
                                 const Actor& actor, uint64_t wall_ns);

// A row for what was refused before it became a command: `what`, "admin" or "session".
AuditRow denial_row(const char* what, const std::string& tenant, const std::string& detail, const Actor& actor,
                    uint64_t wall_ns);

// A row for what an operator had done that is no command of the state machine: `subject` is "host hostb".
AuditRow note_row(const char* verb, const std::string& subject, const std::string& detail, const Actor& actor,
                  uint64_t wall_ns);

// How many denials of a tenant are told in a second: each costs a commit, and asking costs nothing.
class DenialLimit {
 public:
  static constexpr uint64_t rows_per_s = 5;

  // Whether `row` goes into the log; then it says how many did not since the last one.
  bool admit(AuditRow& row, uint64_t now_ns);

 private:
  static constexpr size_t tenants_max = 10'000;
  struct Told {
    uint64_t second_began_ns = 0, rows = 0, left_out = 0;
  };
  std::map<std::string, Told> tenants_;
};

// How often each tenant was refused. Tenants beyond a bound count as one.
class DenialCounts {
 public:
  static constexpr size_t tenants_max = 1'000;
  struct Count {
    uint64_t calls = 0;
    std::string last;  // what was refused last
  };

  void add(const std::string& tenant, const std::string& detail);
  const std::map<std::string, Count>& by_tenant() const { return tenants_; }

 private:
  std::map<std::string, Count> tenants_;
};

}  // namespace terrace::daemon
