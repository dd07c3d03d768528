// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop/worker.h"

#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "core/base/sync/mutex.h"
#include "core/base/time_slice.h"

namespace terrace::daemon {
namespace {

class ThreadQueue final : public JobQueue {
 public:
  explicit ThreadQueue(bool prompt) : thread_([this, prompt] { loop(prompt); }) {}
  ~ThreadQueue() override;
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  void add(std::function<void()> job, bool urgent, ShareKey share) override;

 private:
  void loop(bool prompt);

  Mutex mutex_;
  ConditionVariable wake_;
  std::deque<std::function<void()>> urgent_ TERRACE_GUARDED_BY(mutex_);
  Shares<std::function<void()>> jobs_ TERRACE_GUARDED_BY(mutex_);
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

ThreadQueue::~ThreadQueue() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ThreadQueue::add(std::function<void()> job, bool urgent, ShareKey share) {
  {
    const MutexLock lock(mutex_);
    if (urgent) {
      urgent_.push_front(std::move(job));
    } else {
      jobs_.add(share, std::move(job));
    }
  }
  wake_.notify_one();
}

void ThreadQueue::loop(bool prompt) {
  // Without it the jobs are as right as with it: `terrace doctor` tells.
  if (prompt) [[maybe_unused]]
    const Result<uint64_t> slice = take_short_slice();
  using Clock = std::chrono::steady_clock;
  ReleasableMutexLock lock(mutex_);
  for (;;) {
    wake_.wait(mutex_,
               [this]() TERRACE_REQUIRES(mutex_) { return stopping_ || !urgent_.empty() || !jobs_.empty(); });
    if (!urgent_.empty()) {
      std::function<void()> job = std::move(urgent_.front());
      urgent_.pop_front();
      lock.unlock();
      std::exchange(job, nullptr)();
      lock.lock();
      continue;
    }
    auto next = jobs_.take();
    if (!next.has_value()) return;
    lock.unlock();
    const Clock::time_point begin = Clock::now();
    std::exchange(next->item, nullptr)();
    const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
    lock.lock();
    jobs_.charge(next->key, static_cast<uint64_t>(took.count()));
  }
}

}  // namespace

Worker::Worker(std::unique_ptr<JobQueue> queue)
    : queue_(queue != nullptr ? std::move(queue) : make_thread(false)) {}

std::unique_ptr<JobQueue> Worker::make_thread(bool prompt) {
  return std::make_unique<ThreadQueue>(prompt);
}

}  // namespace terrace::daemon
