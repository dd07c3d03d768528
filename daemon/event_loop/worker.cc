#include "daemon/event_loop/worker.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "core/base/time_slice.h"

namespace terrace::daemon {
namespace {

class ThreadQueue final : public JobQueue {
 public:
  explicit ThreadQueue(bool prompt) : thread_([this, prompt] { loop(prompt); }) {}
  ~ThreadQueue() override;
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  void add(std::function<void()> job, bool urgent) override;

 private:
  void loop(bool prompt);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

ThreadQueue::~ThreadQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ThreadQueue::add(std::function<void()> job, bool urgent) {
  {
    const std::lock_guard lock(mutex_);
    if (urgent) {
      jobs_.push_front(std::move(job));
    } else {
      jobs_.push_back(std::move(job));
    }
  }
  wake_.notify_one();
}

void ThreadQueue::loop(bool prompt) {
  // Without it the jobs are as right as with it: `terrace doctor` tells.
  if (prompt) [[maybe_unused]]
    const Result<uint64_t> slice = take_short_slice();
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace

Worker::Worker(std::unique_ptr<JobQueue> queue)
    : queue_(queue != nullptr ? std::move(queue) : make_thread(false)) {}

std::unique_ptr<JobQueue> Worker::make_thread(bool prompt) {
  return std::make_unique<ThreadQueue>(prompt);
}

}  // namespace terrace::daemon
