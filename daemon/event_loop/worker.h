// One background thread that does blocking work (a store commit, a carve, a scrub) for the event loop, in
// the order asked; urgent work goes before what waits.
//
// Threads   run() from the event loop's thread; the work runs on the worker's. Destruction finishes what
//           was asked and joins.
#pragma once

#include <kj/async.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace terrace::daemon {

class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Resolves on the caller's event loop with what `work` returned. Dropping the promise does not stop it.
  template <typename Work>
  auto run(Work work, bool urgent = false) -> kj::Promise<decltype(work())> {
    using Value = decltype(work());
    auto pair = kj::newPromiseAndCrossThreadFulfiller<Value>();
    // std::function needs something copyable; the fulfiller is shared with the queue entry only.
    auto fulfiller = std::make_shared<kj::Own<kj::CrossThreadPromiseFulfiller<Value>>>(kj::mv(pair.fulfiller));
    enqueue([fulfiller, work = std::move(work)]() mutable { (*fulfiller)->fulfill(work()); }, urgent);
    return kj::mv(pair.promise);
  }

 private:
  void enqueue(std::function<void()> job, bool urgent);
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace terrace::daemon
