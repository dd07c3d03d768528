// SPDX-License-Identifier: Apache-2.0
// What /metrics would say, read back from its text and compared with what is so:
//   state    each figure of pools, devices, tenants and quotas, summed up anew from the rows, lease by lease; no series
//            more and none less
//   engine   what it counts, with what it was asked for and answered in this process
// `terrace status` and `terrace quota list` show the same sums (PoolUse, TenantUse), so that all three agree.
//
// Place     tests/sim; the managers call it behind their steps.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "daemon/event_loop/engine.h"
#include "daemon/state/state_machine.h"
#include "tests/sim/claims.h"
#include "tests/sim/environment.h"

namespace terrace::sim {

class MetricsCheck {
 public:
  explicit MetricsCheck(Environment& environment) : environment_(environment) {}

  void check_state(const daemon::StateMachine& machine, const Claims& claims);

  // --- a process of the engine: what it is asked for and what comes of it ---
  void process_began() { asked_ = {}; }
  void applied(const daemon::Command& command, const daemon::Step& step);
  void grant_answered(const Result<daemon::Reply>& answer);
  void committed() { ++asked_.commits; }
  // Between two turns, when nothing is on its way from the engine to who asked.
  void check_engine(const daemon::Engine& engine);

 private:
  struct Asked {
    uint64_t commands = 0, commits = 0, granted = 0, renewals = 0;
    std::map<ErrorCode, uint64_t> refused;
  };

  Environment& environment_;
  Asked asked_;
};

}  // namespace terrace::sim
