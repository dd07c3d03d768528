// SPDX-License-Identifier: Apache-2.0
// Calls that wait for the next event that they ask for.
//
// Place     Service has one; Admin.events waits here.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <list>
#include <memory>

#include "core/base/result.h"
#include "daemon/events/event_log.h"
#include "daemon/rpc/peer_limits.h"

namespace terrace::daemon {

class EventWaiters {
 public:
  // A waiting call costs each event a comparison.
  static constexpr size_t waiting_max = 64;
  static constexpr size_t waiting_per_peer_max = 8;

  // `events` and `timer` outlive the promises.
  EventWaiters(EventLog& events, kj::Timer& timer);

  // Resolves when something that `filter` matches was told, a moment later, so that what comes together is read
  // together; or after `wait_ms`. Dropping the promise ends the wait.
  // Errors    limit_exceeded   as many wait already
  Result<kj::Promise<void>> wait(EventFilter filter, uint32_t wait_ms, PeerKey key);

  size_t size() const { return waiting_->size(); }

 private:
  struct Waiting {
    EventFilter filter;
    PeerKey key;
    kj::Own<kj::PromiseFulfiller<void>> fulfiller;
  };

  kj::Timer& timer_;
  // A call that was cut off may be destroyed after everything else, with the event loop.
  std::shared_ptr<std::list<Waiting>> waiting_ = std::make_shared<std::list<Waiting>>();
};

}  // namespace terrace::daemon
