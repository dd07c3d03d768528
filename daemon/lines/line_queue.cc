// SPDX-License-Identifier: Apache-2.0
#include "daemon/lines/line_queue.h"

#include <chrono>
#include <utility>

#include "daemon/log/log.h"

namespace terrace::daemon {

LineQueue::LineQueue(LineQueueOptions options, Write write)
    : options_(std::move(options)), write_(std::move(write)), thread_([this] { run(); }) {}

LineQueue::~LineQueue() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void LineQueue::append(const std::string& lines, size_t count) {
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() + lines.size() > options_.waiting_bytes_max) {
      left_out_ += count;
      return;
    }
    waiting_ += lines;
  }
  changed_.notify_one();
}

uint64_t LineQueue::left_out() {
  const MutexLock lock(mutex_);
  return left_out_;
}

void LineQueue::run() {
  std::string lines;  // taken, and not written yet
  bool failing = false;
  ReleasableMutexLock lock(mutex_);
  for (;;) {
    if (failing) {
      changed_.wait_for(mutex_, std::chrono::milliseconds(options_.retry_ms),
                        [this]() TERRACE_REQUIRES(mutex_) { return ending_; });
    } else {
      changed_.wait(mutex_, [this]() TERRACE_REQUIRES(mutex_) { return ending_ || !waiting_.empty(); });
    }
    const bool last = ending_;
    if (lines.empty() || last) lines += std::exchange(waiting_, std::string());
    const uint64_t left_out = left_out_ - std::exchange(left_out_told_, left_out_);
    lock.unlock();
    const Status written = lines.empty() ? Status() : write_(lines);
    if (left_out != 0)
      log::error("{} {} are not in {}: it could not be written for too long", left_out, options_.lines,
                 options_.name);
    if (written.ok()) {
      if (failing) log::info("{} is written again", options_.name);
    } else if (!failing) {
      log::error("{}; {} wait for it{}", written.error().to_string(), options_.lines, options_.meanwhile);
    }
    failing = !written.ok();
    lock.lock();
    if (last) return;
  }
}

}  // namespace terrace::daemon
