// One run of the simulation: the parts, the nemeses that hurt them, and at the end the calm in which
// everything must come to rest.
//
// Place     tests/sim; main.cc and the tests run it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/sim_client.h"
#include "tests/sim/sim_operator.h"

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
};

class World {
 public:
  explicit World(const Options& options);

  Outcome run();

 private:
  void turn_of_client(size_t index);
  void turn_of_operator();
  void schedule_crash();
  void schedule_reboot();
  void schedule_jump();
  void run_for(uint64_t ns);
  void drain();
  void check_rest();
  void check_fitting_grant();

  Options options_;
  Environment environment_;
  SimStore store_;
  SimBackend backend_;
  Ledger ledger_;
  SimDaemon daemon_;
  std::vector<std::unique_ptr<SimClient>> clients_;
  SimOperator operator_;
  bool calm_ = false;
};

// Runs `options.seed`; a failing seed is run again with its trace.
Outcome run_seed(Options options);

}  // namespace terrace::sim
