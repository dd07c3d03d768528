// SPDX-License-Identifier: Apache-2.0
// The hand-over between any thread of a program and a Session's own: jobs go in, answers come back. All
// hand-over is by Mutex, so that race detectors see it; kj's objects never leave the Session's thread.
//
// Place     libclient/session; Session and Lease post, Loop takes.
// Threads   post() and close() from any; take() from the Session's.
// Invariants
//   S1  Every Answer is delivered exactly once: by its job, or as `cancelled` when the last reference to it
//       goes away undelivered (the session was closed). Nobody waits for ever.
//   S2  After close() no job is accepted, so that nothing outlives the thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/result.h"
#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"

namespace terrace::client {

class Loop;

class Mailbox {
 public:
  using Job = std::function<void(Loop&)>;

  // Errors    io_error  no descriptor left for the wake-up
  static Result<std::shared_ptr<Mailbox>> make();

  // False when closed, or in a child that inherited the object through fork() and has no such thread.
  bool post(Job job);
  std::deque<Job> take();  // all that wait, and clears the wake-up
  void close();
  bool closed() const;

  // Names the calling thread as the Session's; from it nobody may wait for an answer.
  void set_owner_thread();
  bool on_owner_thread() const;

  // Becomes readable when there is something to take, or when closed.
  int wake_fd() const { return wake_.get(); }
  // Whether this process is the one that made the mailbox.
  bool own_process() const;

 private:
  explicit Mailbox(UniqueFd wake);
  void wake();

  UniqueFd wake_;
  const int process_id_;
  mutable Mutex mutex_;
  std::deque<Job> jobs_ TERRACE_GUARDED_BY(mutex_);
  bool closed_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread::id owner_ TERRACE_GUARDED_BY(mutex_);
};

// One call's result on its way back to the waiting thread.
template <typename T>
class Answer {
  struct State {
    Mutex mutex;
    ConditionVariable delivered;
    std::optional<Result<T>> result TERRACE_GUARDED_BY(mutex);
  };

 public:
  // What the waiting thread holds.
  class Receiver {
   public:
    Result<T> wait() {
      MutexLock lock(state_->mutex);
      state_->delivered.wait(state_->mutex,
                             [this]() TERRACE_REQUIRES(state_->mutex) { return state_->result.has_value(); });
      return std::move(*state_->result);
    }

   private:
    friend class Answer;
    explicit Receiver(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
  };

  Answer() : state_(std::make_shared<State>()) {}
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  ~Answer() {
    deliver(Error{ErrorCode::cancelled, 0, "Session", "the session was closed before the call was answered"});
  }

  Receiver receiver() { return Receiver(state_); }
  void deliver(Result<T> result) {
    const MutexLock lock(state_->mutex);
    if (state_->result.has_value()) return;
    state_->result = std::move(result);
    state_->delivered.notify_all();
  }

 private:
  std::shared_ptr<State> state_;
};

// Posts `job(loop, answer)` and waits for the answer.
// Errors    unavailable       the session is closed, or belongs to the parent of a fork
//           invalid_argument  called on the session's own thread, which would wait for itself
//           cancelled         the session was closed meanwhile
template <typename T, typename Job>
Result<T> ask(Mailbox& mailbox, const char* where, Job job) {
  if (mailbox.on_owner_thread()) {
    return Error{ErrorCode::invalid_argument, 0, where, "a session cannot be called on its own thread"};
  }
  auto answer = std::make_shared<Answer<T>>();
  auto receiver = answer->receiver();
  // The job keeps the only reference, so that dropping it undone answers too.
  if (!mailbox.post([job = std::move(job), answer = std::exchange(answer, nullptr)](Loop& loop) mutable {
        job(loop, std::move(answer));
      })) {
    return Error{ErrorCode::unavailable, 0, where,
                 mailbox.own_process()
                     ? "the session is closed"
                     : "the session belongs to the process that forked this one; connect again"};
  }
  return receiver.wait();
}

}  // namespace terrace::client
