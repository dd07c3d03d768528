// SPDX-License-Identifier: Apache-2.0
// Does blocking work (a store commit, a carve, a scrub) for the event loop; urgent work goes before what waits.
// What is asked for different tenants is done in shares (shares.h), what is asked for one in the order asked.
// A thread of its own does it; the simulation (tests/sim) gives a JobQueue that does it on the loop's own
// thread, at moments that a seed chooses.
//
// Threads   run() from the event loop's thread; the work runs on the queue's. Destruction finishes what
//           was asked and joins.
#pragma once

#include <kj/async.h>

#include <functional>
#include <memory>

#include "daemon/event_loop/shares.h"

namespace terrace::daemon {

class JobQueue {
 public:
  virtual ~JobQueue() = default;
  // Whose share of the thread's time a job that is not urgent takes, where nobody's in particular.
  static constexpr ShareKey of_nobody = 0;

  // Runs jobs one after the other, those of one share in the order given.
  virtual void add(std::function<void()> job, bool urgent, ShareKey share) = 0;
  // Whether they run on the event loop's own thread, between its turns.
  virtual bool on_loop() const { return false; }
};

// Makes the queue of each worker by its name.
class JobQueues {
 public:
  virtual ~JobQueues() = default;
  virtual std::unique_ptr<JobQueue> make(const char* worker) = 0;
};

class Worker {
 public:
  explicit Worker(std::unique_ptr<JobQueue> queue = nullptr);  // null: a thread

  // A queue with a thread of its own. `prompt`: whoever waits for its jobs is waited for in turn, so that it takes a
  // short slice (core/base/time_slice.h), for as little as its jobs compute.
  static std::unique_ptr<JobQueue> make_thread(bool prompt);

  // Resolves on the caller's event loop with what `work` returned. Dropping the promise does not stop it.
  template <typename Work>
  auto run(Work work, bool urgent = false, ShareKey share = JobQueue::of_nobody)
      -> kj::Promise<decltype(work())> {
    using Value = decltype(work());
    if (queue_->on_loop()) {
      auto pair = kj::newPromiseAndFulfiller<Value>();
      add(kj::mv(pair.fulfiller), std::move(work), urgent, share);
      return kj::mv(pair.promise);
    }
    auto pair = kj::newPromiseAndCrossThreadFulfiller<Value>();
    add(kj::mv(pair.fulfiller), std::move(work), urgent, share);
    return kj::mv(pair.promise);
  }

 private:
  template <typename Fulfiller, typename Work>
  void add(kj::Own<Fulfiller> fulfiller, Work work, bool urgent, ShareKey share) {
    // std::function needs something copyable; the fulfiller is shared with the queue entry only.
    auto shared = std::make_shared<kj::Own<Fulfiller>>(kj::mv(fulfiller));
    queue_->add([shared, work = std::move(work)]() mutable { (*shared)->fulfill(work()); }, urgent, share);
  }

  std::unique_ptr<JobQueue> queue_;
};

}  // namespace terrace::daemon
