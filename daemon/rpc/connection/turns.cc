// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/connection/turns.h"

#include <time.h>

#include <utility>

#include "core/base/check.h"

namespace terrace::daemon {
namespace {

// What a message sets off goes on over a few turns of kj's queue (it is read and put together, the call, its answer).
// Handled behind those, the next one is not charged with it.
kj::Promise<void> after_turns(int turns) {
  if (turns == 0) return kj::READY_NOW;
  return kj::evalLater([turns] { return after_turns(turns - 1); });
}
constexpr int turns_of_message = 7;

}  // namespace

uint64_t Turns::steady_now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * ns_per_s + static_cast<uint64_t>(now.tv_nsec);
}

bool Turns::at_once(ShareKey key) {
  if (!passing_) {
    passing_ = true;
    begin_pass();
    handled_ns_ = pass_began_ns_;
    tasks_.add(passes());
  }
  // Hundreds may ask before the first of them has been handled (ReadySockets), when no time has passed.
  if (!shares_.empty() || counting_ || pass_is_over()) return false;
  begin(key);
  return true;
}

kj::Maybe<kj::Promise<void>> Turns::take(ShareKey key) {
  if (at_once(key)) return nullptr;
  ++arrivals_;
  return wait(key);
}

kj::Promise<void> Turns::wait(ShareKey key) {
  auto pair = kj::newPromiseAndFulfiller<void>();
  shares_.add(key, kj::mv(pair.fulfiller));
  return kj::mv(pair.promise);
}

kj::Promise<void> Turns::turn(ShareKey key) {
  if (at_once(key)) return kj::READY_NOW;
  return wait(key);
}

void Turns::begin_pass() {
  over_ = false;
  pass_began_ns_ = now_ns_();
}

void Turns::begin(ShareKey key) {
  end();
  counting_ = true;
  counted_key_ = key;
  counted_from_ns_ = now_ns_();
}

void Turns::end() {
  if (counting_) shares_.charge(counted_key_, now_ns_() - counted_from_ns_);
  counting_ = false;
}

kj::Promise<void> Turns::passes() {
  // What a look brings (bytes, connections) is nobody's.
  auto looked = after_turns(turns_of_message).then([this] {
    end();
    return look();
  });
  return looked.then([this]() -> kj::Promise<void> {
    end();
    if (std::exchange(arrivals_, 0) >= arrivals_of_full_look &&
        now_ns_() - handled_ns_ < looks_in_turn_ns_max) {
      over_ = true;
      return passes();
    }
    if (shares_.empty()) {
      passing_ = false;
      return kj::READY_NOW;
    }
    begin_pass();
    return handle_waiting().then([this] {
      over_ = true;
      handled_ns_ = now_ns_();
      arrivals_ = 0;
      return passes();
    });
  });
}

kj::Promise<void> Turns::handle_waiting() {
  while (auto next = shares_.take()) {
    if (!next->item->isWaiting()) continue;  // its connection is gone
    begin(next->key);
    next->item->fulfill();
    return after_turns(turns_of_message).then([this]() -> kj::Promise<void> {
      if (pass_is_over()) return kj::READY_NOW;
      return handle_waiting();
    });
  }
  return kj::READY_NOW;
}

void Turns::taskFailed(kj::Exception&&) {
  TERRACE_CHECK(false, "turns do not fail: a loop without them would serve nobody");
}

}  // namespace terrace::daemon
