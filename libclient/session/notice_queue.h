// SPDX-License-Identifier: Apache-2.0
// The notices of a Session's leases, and the one thread that calls the handler. The thread that renews leases
// only puts notices in: a slow handler delays no renewal.
//
// Place     libclient/session; Loop posts, ClientSession hands on_notice() and next_notice() through.
// Threads   All methods from any. The handler runs on a thread of its own, which begins with the first one.
// Invariants
//   S8  Notices are told in the order in which they were posted, one at a time. A notice goes to the handler,
//       or, while there is none, to next().
//   S9  No lock is held while a handler runs: it may replace itself, and end the session.
//   S10 At most notices_max wait. Beyond that the oldest is dropped: the state() of a lease is right anyway.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "core/base/result.h"
#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"
#include "terrace/session.h"

namespace terrace::client {

class NoticeQueue final : public std::enable_shared_from_this<NoticeQueue> {
 public:
  static constexpr size_t notices_max = 4096;

  // Errors    io_error  no descriptor left
  static Result<std::shared_ptr<NoticeQueue>> make();

  void post(LeaseNotice notice);
  // From now on notices, also those that wait, go to `handler`; empty: to next(). Returns when a call of an
  // earlier one has ended; called by the handler itself it does not wait for that.
  void set_handler(LeaseNoticeHandler handler);
  std::optional<LeaseNotice> next();
  // Readable while next() has something to give.
  int fd() const { return readable_.get(); }
  // Tells nothing more. Returns when a running call has ended; called by the handler itself at once.
  void close();

 private:
  struct Waiting {
    LeaseNotice notice;
    uint64_t posted_ns = 0;
  };

  explicit NoticeQueue(UniqueFd readable);
  void run() noexcept;
  void start() TERRACE_REQUIRES(mutex_);
  void show() TERRACE_REQUIRES(mutex_);  // brings the descriptor up to date
  LeaseNotice take() TERRACE_REQUIRES(mutex_);
  void await_call() TERRACE_REQUIRES(mutex_);
  bool own_process() const;

  const UniqueFd readable_;
  const int process_id_;
  Mutex mutex_;
  ConditionVariable wake_;   // the thread: something to tell, or closed
  ConditionVariable ended_;  // a call has ended
  std::deque<Waiting> waiting_ TERRACE_GUARDED_BY(mutex_);
  std::shared_ptr<const LeaseNoticeHandler> handler_ TERRACE_GUARDED_BY(mutex_);
  std::thread thread_ TERRACE_GUARDED_BY(mutex_);
  uint64_t calls_begun_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t calls_ended_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool shown_ TERRACE_GUARDED_BY(mutex_) = false;
  bool closed_ TERRACE_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace::client
