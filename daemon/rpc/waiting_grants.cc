// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/waiting_grants.h"

#include <algorithm>

#include "core/base/limits.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

// A call that waits for hardly longer than the others does not prolong the request: retrying and giving up in
// turns must cost the engine nothing, which keeps a note of each call that it hears of.
constexpr uint64_t worth_prolonging_ns = 1 * ns_per_s;
// Behind the engine's own end of the wait, which says it of the request as a whole.
constexpr uint64_t behind_engine_ns = 100 * ns_per_ms;

}  // namespace

WaitingGrants::Submitted WaitingGrants::submit(Grant command, const Actor& actor) {
  const Key key{command.tenant, command.request_high, command.request_low};
  const uint64_t wait_ns = command.wait_ns;
  const uint64_t until_ns = command.now_ns + std::min(wait_ns, limits::wait_ns_max);
  auto known = waiting_.find(key);
  if (known != waiting_.end() && engine_.state().find_lease(known->second.lease) == nullptr) {
    waiting_.erase(known);  // it was refused, and its calls are about to hear of it: this one asks anew
    known = waiting_.end();
  }
  if (known != waiting_.end() && wait_ns != 0 && wait_ns <= limits::wait_ns_max) {
    if (until_ns > known->second.until_ns + worth_prolonging_ns) {
      known->second.until_ns = until_ns;
      (void)engine_.submit_grant(std::move(command), actor);  // answered as the one that it joins
    }
    return join(key, known->second, wait_ns);
  }
  Engine::SubmittedGrant submitted = engine_.submit_grant(std::move(command), actor);
  const LeaseId lease = submitted.queued;
  if (!lease.valid()) return {kj::mv(submitted.answer), false};
  auto shared = submitted.answer
                    .then([this, key, lease](Result<LeaseReply> reply) {
                      answered(key, lease);
                      return reply;
                    })
                    .fork();
  const auto entry = waiting_.emplace(key, Waiting{lease, actor, until_ns, 0, kj::mv(shared)}).first;
  return join(key, entry->second, wait_ns);
}

WaitingGrants::Submitted WaitingGrants::join(const Key& key, Waiting& waiting, uint64_t wait_ns) {
  ++waiting.calls;
  std::weak_ptr<WaitingGrants*> self = self_;
  auto leaving = kj::defer([self, key, lease = waiting.lease] {
    if (const auto alive = self.lock()) (*alive)->leave(key, lease);
  });
  auto answer = waiting.answer.addBranch().exclusiveJoin(end_of_wait(waiting.lease, wait_ns));
  return {answer.attach(kj::mv(leaving)), true};
}

// One that has found room meanwhile is as good as granted.
kj::Promise<Result<LeaseReply>> WaitingGrants::end_of_wait(LeaseId lease, uint64_t wait_ns) {
  const auto delay = static_cast<int64_t>(wait_ns + behind_engine_ns) * kj::NANOSECONDS;
  std::weak_ptr<WaitingGrants*> self = self_;
  return engine_.timer().afterDelay(delay).then([self, lease, wait_ns]() -> kj::Promise<Result<LeaseReply>> {
    const auto alive = self.lock();
    const LeaseRow* row = alive == nullptr ? nullptr : (*alive)->engine_.state().find_lease(lease);
    if (row == nullptr || row->phase != LeasePhase::waiting) return kj::NEVER_DONE;
    return Result<LeaseReply>((*alive)->engine_.state().waited_in_vain(*row, wait_ns));
  });
}

uint64_t WaitingGrants::calls(const LeaseRow& lease) const {
  const auto at = waiting_.find(Key{lease.tenant, lease.request_high, lease.request_low});
  return at == waiting_.end() || at->second.lease != lease.id ? 0 : at->second.calls;
}

// The branches of those who wait keep the fork alive through this.
void WaitingGrants::answered(const Key& key, LeaseId lease) {
  const auto at = waiting_.find(key);
  if (at != waiting_.end() && at->second.lease == lease) waiting_.erase(at);
}

void WaitingGrants::leave(const Key& key, LeaseId lease) {
  const auto at = waiting_.find(key);
  if (at == waiting_.end() || at->second.lease != lease || --at->second.calls > 0) return;
  const Actor actor = at->second.actor;
  waiting_.erase(at);
  tasks_.add(engine_.submit(CancelGrant{lease, engine_.now_ns()}, actor).ignoreResult());
}

void WaitingGrants::taskFailed(kj::Exception&& exception) {
  log::error("a waiting grant could not be cancelled: {}", exception.getDescription().cStr());
}

}  // namespace terrace::daemon
