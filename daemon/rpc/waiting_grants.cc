#include "daemon/rpc/waiting_grants.h"
#include "daemon/log/log.h"

namespace terrace::daemon {

WaitingGrants::Submitted WaitingGrants::submit(Grant command, const Actor& actor) {
  const Key key{command.tenant, command.request_high, command.request_low};
  // The engine keeps a note of each call that joins: only the first one is passed on, so that retrying and
  // giving up in turns costs nothing there.
  if (const auto known = waiting_.find(key); known != waiting_.end()) return join(key, known->second);
  Engine::SubmittedGrant submitted = engine_.submit_grant(std::move(command), actor);
  const LeaseId lease = submitted.queued;
  if (!lease.valid()) return {kj::mv(submitted.answer), false};
  auto shared = submitted.answer
                    .then([this, key, lease](Result<LeaseReply> reply) {
                      answered(key, lease);
                      return reply;
                    })
                    .fork();
  const auto entry = waiting_.emplace(key, Waiting{lease, actor, 0, kj::mv(shared)}).first;
  return join(key, entry->second);
}

WaitingGrants::Submitted WaitingGrants::join(const Key& key, Waiting& waiting) {
  ++waiting.calls;
  std::weak_ptr<WaitingGrants*> self = self_;
  auto leaving = kj::defer([self, key, lease = waiting.lease] {
    if (const auto alive = self.lock()) (*alive)->leave(key, lease);
  });
  return {waiting.answer.addBranch().attach(kj::mv(leaving)), true};
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
  tasks_.add(engine_.submit(CancelGrant{lease}, actor).ignoreResult());
}

void WaitingGrants::taskFailed(kj::Exception&& exception) {
  log::error("a waiting grant could not be cancelled: {}", exception.getDescription().cStr());
}

}  // namespace terrace::daemon
