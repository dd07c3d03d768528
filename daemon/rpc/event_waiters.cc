// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/event_waiters.h"

#include <algorithm>
#include <utility>

namespace terrace::daemon {

EventWaiters::EventWaiters(EventLog& events, kj::Timer& timer) : timer_(timer) {
  events.listen([waiting = waiting_](const Event& event) {
    for (Waiting& one : *waiting)
      if (one.fulfiller->isWaiting() && one.filter.matches(event)) one.fulfiller->fulfill();
  });
}

Result<kj::Promise<void>> EventWaiters::wait(EventFilter filter, uint32_t wait_ms, PeerKey key) {
  static constexpr kj::Duration gather = 20 * kj::MILLISECONDS;
  const auto of_peer =
      std::count_if(waiting_->begin(), waiting_->end(), [&key](const Waiting& one) { return one.key == key; });
  if (waiting_->size() >= waiting_max || static_cast<size_t>(of_peer) >= waiting_per_peer_max) {
    return Error{.code = ErrorCode::limit_exceeded,
                 .where = "events",
                 .detail = std::to_string(of_peer) + " calls of this user wait for events already, " +
                           std::to_string(waiting_->size()) + " of all; end one, or ask without waiting"};
  }
  auto pair = kj::newPromiseAndFulfiller<void>();
  const auto at = waiting_->insert(waiting_->end(), {std::move(filter), key, kj::mv(pair.fulfiller)});
  return pair.promise.then([&timer = timer_] { return timer.afterDelay(gather); })
      .exclusiveJoin(timer_.afterDelay(wait_ms * kj::MILLISECONDS))
      .attach(kj::defer([waiting = waiting_, at] { waiting->erase(at); }));
}

}  // namespace terrace::daemon
