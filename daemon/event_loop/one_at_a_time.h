// SPDX-License-Identifier: Apache-2.0
// Lets one at a time do what is costly to do twice at once; the others wait, in the order in which they came.
//
// Threads   The event loop's thread only. A Turn may outlive the OneAtATime.
#pragma once

#include <kj/async.h>

#include <deque>
#include <memory>
#include <utility>

namespace terrace::daemon {

class OneAtATime {
  struct State;

 public:
  // Whose turn it is has one; the next one's comes with its end.
  class Turn {
   public:
    explicit Turn(std::shared_ptr<State> state) : state_(std::move(state)) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() noexcept(false) { pass_on(state_); }

   private:
    std::shared_ptr<State> state_;
  };

  kj::Promise<kj::Own<Turn>> turn() {
    if (!std::exchange(state_->taken, true)) return kj::heap<Turn>(state_);
    auto pair = kj::newPromiseAndFulfiller<kj::Own<Turn>>();
    state_->waiting.push_back(kj::mv(pair.fulfiller));
    return kj::mv(pair.promise);
  }

 private:
  struct State {
    bool taken = false;
    std::deque<kj::Own<kj::PromiseFulfiller<kj::Own<Turn>>>> waiting;
  };

  // A Turn that nobody takes any more ends at once, and passes on in turn.
  static void pass_on(const std::shared_ptr<State>& state) {
    while (!state->waiting.empty()) {
      auto next = kj::mv(state->waiting.front());
      state->waiting.pop_front();
      if (next->isWaiting()) return next->fulfill(kj::heap<Turn>(state));
    }
    state->taken = false;
  }

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace terrace::daemon
