// SPDX-License-Identifier: Apache-2.0
// One run of the simulation: the parts, the nemeses that hurt them, and at the end the calm in which
// everything must come to rest.
//
// Place     tests/sim; main.cc and the tests run it.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/actors/sim_client.h"
#include "tests/sim/actors/sim_operator.h"
#include "tests/sim/actors/sim_owners.h"
#include "tests/sim/manager/sim_store.h"

namespace terrace::sim {

struct Outcome {
  bool passed = true;
  std::string failure;
  uint64_t step = 0;
  std::deque<std::string> lines;  // the last events, when they were traced
  uint64_t grants = 0;
  uint64_t commits = 0;
  uint64_t crashes = 0;
  uint64_t recoveries = 0;
  uint64_t moves = 0;         // by the manager
  std::set<size_t> accepted;  // commands, by Command::index()
};

class World {
 public:
  explicit World(const Options& options);

  Outcome run();

 private:
  // world.cc: turns and nemeses
  void turn_of_client(size_t index);
  void turn_of_operator();
  void turn_of_owners();
  void schedule(uint64_t interval_ns, std::function<void()> nemesis);
  void schedule_nemeses();
  void lose_a_device();
  void watch();
  void run_for(uint64_t ns);

  // world_rest.cc: what must be so while and after everything comes to rest
  void check_lost_devices();
  void check_progress();
  bool should_move(const daemon::WantedMove& move) const;
  void drain();
  void check_rest();
  void check_objects();
  void check_fitting_grant();
  void grant_all_of(const daemon::PoolRow& pool, uint64_t bytes);

  Options options_;
  Environment environment_;
  SimStore store_;
  SimBackend backend_;
  Ledger ledger_;
  std::unique_ptr<Manager> manager_;
  Manager& daemon_;
  Contents contents_;
  std::vector<std::unique_ptr<SimClient>> clients_;
  SimOperator operator_;
  SimOwners owners_;
  bool calm_ = false;
  bool silent_ = false;                                            // clients answer nothing any more
  uint64_t calm_since_ns_ = 0;                                     // steady
  std::map<LeaseId, std::pair<std::string, uint64_t>> under_way_;  // what, since when (steady)
};

// Runs `options.seed`; a failing seed is run again with its trace.
Outcome run_seed(Options options);

}  // namespace terrace::sim
