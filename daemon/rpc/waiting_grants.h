// SPDX-License-Identifier: Apache-2.0
// Grants that wait in the queue of a full pool, and which calls wait for them. A retry of a request that waits
// joins it. Each call ends by its own time to wait, whatever the others' is; the request has that of the one
// that waits longest. When the last call has ended or is given up, the request leaves the queue.
//
// Place     TenantSession.grant -> here -> Engine::submit_grant.
// Threads   The event loop's thread only.
// Invariant W3  a request is in a queue only while a call here waits for it: one without a time to wait
//               could not be cancelled, and is refused instead of joined (StateMachine::join_waiting)
#pragma once

#include <kj/async.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "daemon/event_loop/engine.h"

namespace terrace::daemon {

class WaitingGrants final : private kj::TaskSet::ErrorHandler {
 public:
  explicit WaitingGrants(Engine& engine) : engine_(engine), tasks_(*this) {}

  struct Submitted {
    kj::Promise<Result<LeaseReply>> answer;  // dropping it gives the request up
    bool waits = false;  // in the queue: the answer may take as long as the request may wait
  };
  // `command` has a request key if it may wait.
  Submitted submit(Grant command, const Actor& actor);

  size_t size() const { return waiting_.size(); }
  // Calls that wait for a lease that is in a queue.
  uint64_t calls(const LeaseRow& lease) const;

 private:
  using Key = std::tuple<std::string, uint64_t, uint64_t>;  // tenant, request key
  struct Waiting {
    LeaseId lease;
    Actor actor;
    uint64_t until_ns = 0;  // the engine knows of no call that waits for much longer
    uint64_t calls = 0;
    kj::ForkedPromise<Result<LeaseReply>> answer;
  };

  Submitted join(const Key& key, Waiting& waiting, uint64_t wait_ns);
  kj::Promise<Result<LeaseReply>> end_of_wait(LeaseId lease, uint64_t wait_ns);
  void leave(const Key& key, LeaseId lease);
  void answered(const Key& key, LeaseId lease);
  void taskFailed(kj::Exception&& exception) override;

  Engine& engine_;
  // A call that was cut off may be destroyed after everything else, with the event loop.
  std::shared_ptr<WaitingGrants*> self_ = std::make_shared<WaitingGrants*>(this);
  std::map<Key, Waiting> waiting_;
  kj::TaskSet tasks_;  // requests on their way out of the queue
};

}  // namespace terrace::daemon
