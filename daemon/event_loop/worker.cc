#include "daemon/event_loop/worker.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace terrace::daemon {
namespace {

class ThreadQueue final : public JobQueue {
 public:
  ThreadQueue() : thread_([this] { loop(); }) {}
  ~ThreadQueue() override;
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  void add(std::function<void()> job, bool urgent) override;

 private:
  void loop();

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

void ThreadQueue::loop() {
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
    : queue_(queue != nullptr ? std::move(queue) : std::make_unique<ThreadQueue>()) {}

}  // namespace terrace::daemon
