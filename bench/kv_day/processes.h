// SPDX-License-Identifier: Apache-2.0
// The engines as processes: started, killed, upgraded.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "bench/kv_day/shared.h"
#include "core/base/prng.h"
#include "core/base/result.h"

namespace terrace::bench::day {

struct Course {
  uint64_t upgrade_at = 0;     // engine 0 is killed and upgraded when so many requests are done; 0: never
  std::string next_program;    // that it then runs
  uint64_t reads = 0;          // stops after so many checked reads; 0: when all requests are served
  uint64_t kill_every_ns = 0;  // a random engine is killed about so often; 0: none
  uint64_t seconds_max = 0;    // stops then in any case; 0: no limit
  uint64_t stuck_after_ns = 0;
  uint64_t seed = 1;
};

// What happened.
struct Happened {
  uint64_t kills = 0;  // the upgrade's is one of them
  bool upgraded = false;
  double seconds = 0;
};

// Errors    unavailable  no process can be started, one ended by itself with an error, or nothing was done for the limit
//           cancelled    SIGINT or SIGTERM came
class Processes {
 public:
  Processes(const Shared& shared, Course course);
  ~Processes();  // none is left
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  Status start_all();      // until they are ready
  Result<Happened> run();  // until they have ended by themselves

 private:
  Status start(uint32_t engine, const std::string& program);
  Result<bool> collect();
  Result<bool> kill(uint32_t engine);
  Status upgrade();
  Status kill_one_when_due(uint64_t now);
  Status check_progress(uint64_t done);
  void stop_when_enough(uint64_t now);

  const Shared& shared_;
  Control& control_;
  const Course course_;
  Happened happened_;
  Prng prng_;
  std::string program_ = "/proc/self/exe", upgraded_;  // what engines run, and engine 0 since its upgrade
  uint64_t begin_ns_ = 0, next_kill_ns_ = 0, last_done_ = 0, last_progress_ns_ = 0;
  std::vector<pid_t> pids_;
};

uint64_t reads_of(const Control& control);  // that were checked by engines

}  // namespace terrace::bench::day
