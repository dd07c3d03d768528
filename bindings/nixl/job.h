// SPDX-License-Identifier: Apache-2.0
// A transfer under way, as a number of tasks: threads of the engine do them, and whoever asks for the state. The last
// one that is done sends the notification.
//
// Threads   All from any thread. A job that was cancelled touches no memory any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/sync/mutex.h"
#include "nixl_types.h"

namespace terrace::nixl {

class Job {
 public:
  virtual ~Job() = default;

  // Before the first step(), and again when it has ended. `last`: after the last task, if all went well.
  void begin(std::function<nixl_status_t()> last);
  // Does one task. false: there is none left to begin.
  bool step();
  // NIXL_IN_PROG until all is done.
  nixl_status_t status();
  // Nothing is begun any more; returns once nothing runs.
  void cancel();

  // So little that it is done while NIXL posts it.
  virtual bool is_small() const = 0;

 protected:
  explicit Job(size_t tasks) : tasks_(tasks) {}
  void set_tasks(size_t tasks) { tasks_ = tasks; }
  virtual nixl_status_t run(size_t task) = 0;

 private:
  bool over() const TERRACE_REQUIRES(mutex_) { return next_ == tasks_ || outcome_ != NIXL_SUCCESS; }

  size_t tasks_;
  Mutex mutex_;
  ConditionVariable idle_;
  size_t next_ TERRACE_GUARDED_BY(mutex_) = 0, running_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool done_ TERRACE_GUARDED_BY(mutex_) = true;
  nixl_status_t outcome_ TERRACE_GUARDED_BY(mutex_) = NIXL_ERR_NOT_POSTED;
  std::function<nixl_status_t()> last_ TERRACE_GUARDED_BY(mutex_);
};

class Workers {
 public:
  explicit Workers(uint32_t threads);
  ~Workers();  // what runs is finished; what waits is not begun
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void add(std::shared_ptr<Job> job);

 private:
  void work();

  Mutex mutex_;
  ConditionVariable more_;
  bool stop_ TERRACE_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Job>> jobs_ TERRACE_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace terrace::nixl
