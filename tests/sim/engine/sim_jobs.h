// SPDX-License-Identifier: Apache-2.0
// The engine's workers, without threads: each job is done as a whole at a moment that the seed chooses, one after
// the other, and the loop takes its turns in between.
//
// Place     tests/sim/engine; the engine's Workers own the queues, EngineManager knows them all.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/event_loop/worker.h"
#include "tests/sim/environment.h"

namespace terrace::sim {

class SimQueue;

// The queues of one process.
class SimJobs final : public daemon::JobQueues {
 public:
  // `turn` runs after each job.
  SimJobs(Environment& environment, std::function<void()> turn)
      : environment_(environment), turn_(std::move(turn)) {}

  std::unique_ptr<daemon::JobQueue> make(const char* worker) override;
  // The process dies: takes those jobs that were begun, in the order of the queues.
  std::deque<std::function<void()>> take_begun();

 private:
  friend class SimQueue;
  Environment& environment_;
  std::function<void()> turn_;
  std::vector<SimQueue*> queues_;
};

class SimQueue final : public daemon::JobQueue {
 public:
  SimQueue(SimJobs& jobs, bool of_store) : jobs_(jobs), of_store_(of_store) {}
  ~SimQueue() override { std::erase(jobs_.queues_, this); }

  void add(std::function<void()> job, bool urgent, daemon::ShareKey share) override;
  bool on_loop() const override { return true; }

 private:
  friend class SimJobs;
  uint64_t delay_ns() const;
  void begin_next();
  void end_one();

  SimJobs& jobs_;
  const bool of_store_;
  std::deque<std::function<void()>> waiting_;
  std::function<void()> begun_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // events ask whether it is
};

}  // namespace terrace::sim
