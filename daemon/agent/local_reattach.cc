// SPDX-License-Identifier: Apache-2.0
// How a session comes to hold its leases again when the manager is back: each is attached at the manager, and
// goes on as it was, or is told as ended.
#include <algorithm>

#include "daemon/agent/local_lease.h"
#include "daemon/agent/local_session.h"

namespace terrace::daemon {
namespace {

// Of one session at once: the manager admits so many calls and no more, and the program has some of its own.
constexpr uint32_t reattach_window = 64;
constexpr uint64_t reattach_pause_ns_min = 100 * ns_per_ms;
constexpr uint64_t reattach_pause_ns_max = 5 * ns_per_s;

// Whether the manager says that there is no such lease for us any more. All else may pass: that it is held by
// an older session of ours, that too much is under way.
bool is_final(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::not_found:
    case ErrorCode::permission_denied:
    case ErrorCode::lease_expired:
    case ErrorCode::lease_revoked:
    case ErrorCode::unsupported: return true;  // unsupported: it is on another host
    default: return false;
  }
}

}  // namespace

void LocalSession::resume() {
  suspend();
  if (!leases_.empty() && !ended_) service().run(*this, reattach(link_, reattach_pause_ns_min));
}

// Once through all leases that the manager has not handed over since it is back.
struct LocalSession::Round {
  uint64_t link;
  uint64_t last_number = 0;  // of the lease that was looked at last
  bool progress = false;
  bool incomplete = false;
};

// Ends when all is settled, or with the link: a lease that is alive must not be given up, and its renewals are
// promises of the manager only once it is attached.
kj::Promise<void> LocalSession::reattach(uint64_t link, uint64_t pause_ns) {
  auto round = std::make_shared<Round>(Round{link});
  return upstream()
      .then([this, round](rpc::TenantSession::Client session) {
        kj::Vector<kj::Promise<void>> window;
        for (uint32_t i = 0; i < reattach_window; ++i) window.add(reattach_from(round, session));
        return kj::joinPromises(window.releaseAsArray());
      })
      .catch_([this, round](kj::Exception&& exception) {
        round->incomplete = true;
        if (!current(round->link)) return;
        service().peer_log().info(
            service().now_ns(),
            connection_->name() + ": its leases are not attached yet: " + exception.getDescription().cStr());
      })
      .then([this, round, pause_ns]() -> kj::Promise<void> {
        if (!round->incomplete || !current(round->link)) return kj::READY_NOW;
        const uint64_t pause = round->progress ? reattach_pause_ns_min : pause_ns;
        return service()
            .after(static_cast<int64_t>(pause) * kj::NANOSECONDS)
            .then([this, link = round->link, pause]() -> kj::Promise<void> {
              if (!current(link)) return kj::READY_NOW;
              return reattach(link, std::min(pause * 2, reattach_pause_ns_max));
            });
      });
}

// One of the window: the next lease, until there are no more.
kj::Promise<void> LocalSession::reattach_from(std::shared_ptr<Round> round,
                                              rpc::TenantSession::Client session) {
  if (!current(round->link)) return kj::READY_NOW;
  auto next = leases_.upper_bound(round->last_number);
  while (next != leases_.end() && !next->second->detached()) ++next;
  if (next == leases_.end()) return kj::READY_NOW;
  round->last_number = next->first;
  return reattach_one(*next->second, round->link, session).then([this, round, session](bool settled) mutable {
    (settled ? round->progress : round->incomplete) = true;
    return reattach_from(kj::mv(round), kj::mv(session));
  });
}

// Resolves to whether it is settled: attached, or ended. The lease may go away meanwhile.
kj::Promise<bool> LocalSession::reattach_one(LocalLease& lease, uint64_t link,
                                             rpc::TenantSession::Client session) {
  const uint64_t sent_ns = service().now_ns();
  auto request = session.attachRequest();
  request.setLease(lease.id());
  request.setAccess(lease.access() == ObjectAccess::read_write ? rpc::Access::READ_WRITE
                                                               : rpc::Access::READ_ONLY);
  if (lease.on_fence() == OnFence::kill) request.setOnFence(rpc::OnFence::KILL);  // it agreed here
  return request.send().then([this, number = lease.number(), sent_ns, link](auto&& reply) {
    const auto at = leases_.find(number);
    if (!current(link) || at == leases_.end() || !at->second->detached()) return true;
    LocalLease& held = *at->second;
    if (const Status refused = read_error(reply.getError(), "attach"); !refused.ok()) {
      const ErrorCode code = refused.error().code;
      if (!is_final(code)) return false;
      const auto cause = code == ErrorCode::lease_expired ? rpc::LeaseCause::EXPIRED : rpc::LeaseCause::REVOKED;
      service().run(*this, forward_fenced(held.id(), refused.error().detail, cause));
      return true;
    }
    const auto info = reply.getInfo();
    if (read_text(info.getObject()) != held.object() || info.getEpoch() != held.epoch()) {
      service().run(*this, forward_fenced(held.id(), "it was moved while the manager was away; attach it again",
                                          rpc::LeaseCause::MOVED));
      return true;
    }
    held.resume(reply.getLease(), info, sent_ns);
    return true;
  });
}

}  // namespace terrace::daemon
