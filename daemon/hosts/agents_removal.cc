// SPDX-License-Identifier: Apache-2.0
// Who is not let in any more: certificates that were revoked, hosts that an operator removed.
#include <algorithm>
#include <ctime>
#include <vector>

#include "daemon/hosts/agent_peer.h"
#include "daemon/hosts/agents.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t warn_of_certificates_again_ns = 86'400 * ns_per_s;

Error no_such_host(const char* where, const std::string& name) {
  return Error{.code = ErrorCode::not_found,
               .where = where,
               .detail = "this manager knows no host '" + name + "'; `terrace host list` shows those it does"};
}

}  // namespace

void Agents::close_peers(const std::string& host, const std::string& reason) {
  const std::vector<AgentPeer*> all(peers_.begin(), peers_.end());
  for (AgentPeer* peer : all)
    if (peer->host() == host) peer->close(reason);
}

void Agents::close_revoked() {
  const std::vector<AgentPeer*> all(peers_.begin(), peers_.end());
  for (AgentPeer* peer : all) {
    for (const CertificateFacts* facts : {&peer->certificate(), &peer->newest_certificate()})
      if (credentials_->is_revoked(facts->serial))
        peer->close("its certificate " + shown_certificate(*facts) + " was revoked");
  }
}

Status Agents::remove(const std::string& name, bool revoke, const Actor& actor) {
  constexpr const char* where = "removeHost";
  if (!hosts_.contains(name)) return is_removed(name) ? Status() : Status(no_such_host(where, name));
  const uint64_t leases = leases_on(name);
  if (leases != 0 && !revoke) {
    return Error{.code = ErrorCode::busy,
                 .where = where,
                 .detail = "host " + name + " has " + std::to_string(leases) +
                           (leases == 1 ? " lease" : " leases") +
                           ": hand them over or release them first, or take them back with --revoke"};
  }
  TERRACE_RETURN_IF_ERROR(hosts_file_.remove(name));
  close_peers(name, "an operator removed the host");
  if (!revoke) return {};
  const std::string reason = "host " + name + " was removed";
  std::vector<LeaseId> live;
  for (const auto& [id, lease] : service_->engine().state().leases())
    if (lease.phase == LeasePhase::active && StateMachine::agent_of(lease) == name) live.push_back(id);
  for (const LeaseId id : live) {
    const StateMachine& state = service_->engine().state();
    if (state.views_of(id).empty())
      service_->submit_unasked(Revoke{id, reason, 0, now_ns()}, actor);
    else  // other hosts have it still
      service_->submit_unasked(LoseObject{id, state.find_lease(id)->object, reason, now_ns()}, actor);
  }
  end_views(name, reason);
  return {};
}

Status Agents::allow(const std::string& name) {
  if (!hosts_.contains(name) && !is_removed(name)) return no_such_host("allowHost", name);
  return hosts_file_.allow(name);
}

// What a removed host may still be at work on counts until its host lease has run out; then nobody waits for it any
// more, at the next start either.
void Agents::forget_removed() {
  for (auto at = hosts_.begin(); at != hosts_.end();) {
    const std::string name = at->first;
    Host& known = at->second;
    const bool busy = known.peer != nullptr || known.registering != nullptr || !known.until_forgotten.empty();
    if (!is_removed(name) || busy || !known.count.lapsed(now_ns()) || leases_on(name) != 0) {
      ++at;
      continue;
    }
    if (Status forgotten = hosts_file_.forget(name); !forgotten.ok()) {
      log(forgotten.error().to_string());
      ++at;
      continue;
    }
    unsettled_.erase(name);
    forget_proofs(name);
    tell(Event{.kind = EventKind::host_removed,
               .message = "host " + name + " was removed and is forgotten",
               .host = name});
    at = hosts_.erase(at);
  }
}

std::vector<CertificateEnd> Agents::certificate_ends() const {
  return own_ == nullptr ? std::vector<CertificateEnd>() : own_->ends(std::time(nullptr));
}

// Once a day, and when a host connects: those of connected agents; Credentials tells of our own.
void Agents::warn_of_certificates() {
  if (warned_ns_ != 0 && now_ns() - warned_ns_ < warn_of_certificates_again_ns) return;
  warned_ns_ = std::max<uint64_t>(now_ns(), 1);
  const int64_t now_s = std::time(nullptr);
  for (const auto& [name, known] : hosts_) {
    if (known.peer == nullptr) continue;
    const CertificateFacts& facts = known.peer->newest_certificate();
    const CertificateEnd end{.what = "certificate",
                             .name = facts.name,
                             .days_left = days_left(facts.ends_s, now_s),
                             .soon = ends_soon(facts.begins_s, facts.ends_s, now_s)};
    if (const std::string text = end_warning(end); !text.empty()) log(text);
  }
}

}  // namespace terrace::daemon
