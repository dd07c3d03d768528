// SPDX-License-Identifier: Apache-2.0
// The way of notifications to one other agent. The connection also tells that agent's end: the kernel closes it with the
// process, whatever ended that.
//
// Threads   Any. Notifications arrive in the order in which send() was called.
#pragma once

#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"

namespace terrace::nixl {

class Channel {
 public:
  // `from`: this agent's name. `info`: of Inbox::connection_info(). Errors: corrupt
  static Result<std::shared_ptr<Channel>> make(std::string from, const std::string& info);

  // Connects, where it is not done yet. Errors: unavailable: the agent has ended, or stopped
  Status check();
  // The agent has it, or the kernel for it, with all that was enclosed since the last one.
  // Errors    as check(); limit_exceeded (longer than notification_bytes_max)
  Status send(const std::string& message);
  // Words for the backend there, with the next notification. false: there is no room left; `instead` takes the place of
  // all that waits.
  bool enclose(const std::string& words, const std::string& instead);

 private:
  Channel(std::string from, std::string address, std::string token);
  Status connect() TERRACE_REQUIRES(mutex_);
  Status check_locked() TERRACE_REQUIRES(mutex_);
  Status write_all(const std::string& bytes) TERRACE_REQUIRES(mutex_);
  Error ended(const char* how) const;

  const std::string from_, address_, token_;
  Mutex mutex_;
  UniqueFd socket_ TERRACE_GUARDED_BY(mutex_);
  std::string enclosure_ TERRACE_GUARDED_BY(mutex_);
  bool over_ TERRACE_GUARDED_BY(mutex_) = false;  // for good: who listens there later is another agent
};

}  // namespace terrace::nixl
