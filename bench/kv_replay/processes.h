// SPDX-License-Identifier: Apache-2.0
// The workers as processes: started, killed at random, followed by successors.
#pragma once

#include <sys/types.h>

#include <vector>

#include "bench/kv_replay/interrupts.h"
#include "bench/kv_replay/shared_run.h"
#include "core/base/prng.h"
#include "core/base/result.h"

namespace terrace::bench {

// Errors    unavailable  no process can be started, a worker ended by itself with an
//                        error, or nothing was done for the time limit, beyond the trace's own pauses
//           cancelled    SIGINT or SIGTERM came
class Workers {
 public:
  Workers(SharedRun& run, uint64_t seed, uint64_t stuck_after_ns);
  ~Workers();  // none is left
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  Status start_all();  // until they are ready
  // Until every worker has ended by itself. One of them is killed after about so many requests (0: none): the
  // others get no further than half as many more until it is done. Returns how many were killed.
  Result<uint64_t> run_all(uint64_t kill_every);

 private:
  Status start(uint32_t number);
  Result<bool> collect();
  Result<bool> kill_one();
  Status check_progress(uint64_t done);

  SharedRun& run_;
  Prng prng_;
  const uint64_t stuck_after_ns_;
  uint64_t last_done_ = 0, last_progress_ns_ = 0;
  std::vector<pid_t> pids_;
};

}  // namespace terrace::bench
