// The operator: adopts the devices, makes the pools, revokes leases now and then, and removes and remakes the
// second pool. Checks that what was acknowledged to it stays so.
//
// Place     tests/sim.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/sim/sim_client.h"

namespace terrace::sim {

class SimOperator {
 public:
  SimOperator(Environment& environment, SimDaemon& daemon, Ledger& ledger);

  void act();
  void end();
  void fall_silent() { silent_ = true; }

 private:
  void set_up();
  void revoke_one();
  void remake_pool();
  void check_pools() const;

  Environment& environment_;
  SimDaemon& daemon_;
  Ledger& ledger_;
  Connection connection_;
  std::vector<daemon::Command> preparations_;
  size_t prepared_ = 0;
  uint64_t sent_ns_ = 0;
  bool silent_ = false;
  uint64_t remakes_ = 0;        // only the answer to the latest one says how pool b is
  std::optional<bool> pool_b_;  // acknowledged as there or not there; nullopt: a change was asked for
};

}  // namespace terrace::sim
