// SPDX-License-Identifier: Apache-2.0
// The state behind a DeviceEvent: finished once, by the thread of a stream; any thread can wait for it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <optional>

#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"
#include "terrace/device_memory.h"

namespace terrace {

class DeviceEvent::State {
 public:
  void finish(Status status);  // once

  bool done() const { return done_.load(std::memory_order_acquire); }  // pairs with the release in finish()
  Status wait();
  Result<bool> wait_for(uint64_t timeout_ns);
  Result<int> fd();

 private:
  bool forked() const { return ::getpid() != process_; }
  Status status() const { return error_ ? Status(*error_) : Status(); }

  const pid_t process_ = ::getpid();  // a child of fork has nobody who would finish it
  std::atomic<bool> done_ = false;
  Mutex mutex_;
  ConditionVariable finished_;
  std::optional<Error> error_;              // written once, before done_; read after it without the mutex
  UniqueFd fd_ TERRACE_GUARDED_BY(mutex_);  // made when somebody asks for it
};

}  // namespace terrace
