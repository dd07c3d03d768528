// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/job.h"

#include <algorithm>
#include <utility>

#include "core/base/signals_blocked.h"

namespace terrace::nixl {

void Job::begin(std::function<nixl_status_t()> last) {
  const MutexLock lock(mutex_);
  next_ = 0;
  done_ = false;
  outcome_ = NIXL_SUCCESS;
  last_ = std::move(last);
}

bool Job::step() {
  ReleasableMutexLock lock(mutex_);
  if (done_ || over()) return false;
  const size_t task = next_++;
  ++running_;
  lock.unlock();
  const nixl_status_t result = run(task);
  lock.lock();
  if (outcome_ == NIXL_SUCCESS) outcome_ = result;
  if (running_ == 1 && over()) {  // the last one
    if (outcome_ == NIXL_SUCCESS && last_) {
      const std::function<nixl_status_t()> last = std::move(last_);
      lock.unlock();
      const nixl_status_t told = last();
      lock.lock();
      outcome_ = told;
    }
    done_ = true;
  }
  const bool more = !over();
  if (--running_ == 0) idle_.notify_all();
  return more;
}

nixl_status_t Job::status() {
  const MutexLock lock(mutex_);
  return done_ ? outcome_ : NIXL_IN_PROG;
}

void Job::cancel() {
  const MutexLock lock(mutex_);
  if (!done_ && outcome_ == NIXL_SUCCESS) outcome_ = NIXL_ERR_CANCELED;
  idle_.wait(mutex_, [&]() TERRACE_REQUIRES(mutex_) { return running_ == 0; });
  done_ = true;
}

Workers::Workers(uint32_t threads) {
  const SignalsBlocked blocked;
  for (uint32_t one = 0; one < threads; ++one) threads_.emplace_back([this] { work(); });
}

Workers::~Workers() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    more_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Workers::add(std::shared_ptr<Job> job) {
  const MutexLock lock(mutex_);
  jobs_.push_back(std::move(job));
  more_.notify_all();
}

void Workers::work() {
  ReleasableMutexLock lock(mutex_);
  while (true) {
    more_.wait(mutex_, [&]() TERRACE_REQUIRES(mutex_) { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const std::shared_ptr<Job> job = jobs_.front();  // stays there while others may help with it
    lock.unlock();
    const bool more = job->step();
    lock.lock();
    if (!more) std::erase(jobs_, job);
  }
}

}  // namespace terrace::nixl
