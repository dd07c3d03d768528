// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/engine/sim_jobs.h"

#include <string_view>

namespace terrace::sim {

std::unique_ptr<daemon::JobQueue> SimJobs::make(const char* worker) {
  auto queue = std::make_unique<SimQueue>(*this, std::string_view(worker) == "store");
  queues_.push_back(queue.get());
  return queue;
}

std::deque<std::function<void()>> SimJobs::take_begun() {
  std::deque<std::function<void()>> begun;
  for (SimQueue* queue : queues_)
    if (queue->begun_) begun.push_back(std::exchange(queue->begun_, nullptr));
  return begun;
}

// In the order asked: no share is the better one here, where no job takes a thread's time.
void SimQueue::add(std::function<void()> job, bool urgent, daemon::ShareKey) {
  if (urgent) {
    waiting_.push_front(std::move(job));
  } else {
    waiting_.push_back(std::move(job));
  }
  if (!begun_) begin_next();
}

// Most work is quick. A queue does one thing at a time: longer work would keep all that is behind it.
uint64_t SimQueue::delay_ns() const {
  Environment& environment = jobs_.environment_;
  const Faults& faults = environment.faults();
  const uint64_t max_ns = of_store_ ? faults.commit_ns_max : faults.effect_ns_max / 8;
  return environment.prng().below((environment.prng().chance(1, 4) ? max_ns : max_ns / 8) + 1);
}

void SimQueue::begin_next() {
  if (waiting_.empty()) return;
  begun_ = std::move(waiting_.front());
  waiting_.pop_front();
  jobs_.environment_.after(delay_ns(), [this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) end_one();
  });
}

void SimQueue::end_one() {
  const std::function<void()> job = std::exchange(begun_, nullptr);
  begin_next();
  const std::function<void()> turn = jobs_.turn_;
  job();
  turn();  // which may end the process, and this queue with it
}

}  // namespace terrace::sim
