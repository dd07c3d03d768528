// SPDX-License-Identifier: Apache-2.0
// The operator's interface: leases of all tenants. An empty tenant in a command is an administrator's.
#include "daemon/rpc/admin/admin.h"
#include "daemon/rpc/ended_holders.h"

namespace terrace::daemon {
namespace {

// Labels are unique within a tenant; among all tenants the first one is meant.
const LeaseRow* find_by_label(const StateMachine& state, const std::string& label) {
  if (label.empty()) return nullptr;
  for (const auto& [id, row] : state.leases())
    if (row.label == label && row.phase <= LeasePhase::revoking) return &row;
  for (const auto& [id, row] : state.leases())
    if (row.label == label) return &row;
  return nullptr;
}

}  // namespace

// Those that wait in a queue are listed too: an operator wants to see who waits.
kj::Promise<void> AdminServer::leases(LeasesContext context) {
  return answer_page(*connection_, context, [this](LeasesContext& c) {
    const auto params = c.getParams();
    const std::string pool_name = read_text(params.getPool());
    const std::string tenant = read_text(params.getTenant());
    const PoolRow* pool = pool_name.empty() ? nullptr : state().find_pool(pool_name);
    if (!pool_name.empty() && pool == nullptr) {
      refuse(c, Error{.code = ErrorCode::not_found,
                      .where = "leases",
                      .detail = "there is no pool '" + shown(pool_name) + "'"});
      return;
    }
    const uint32_t most = page_size(params.getLimit());
    std::vector<const LeaseRow*> found;
    const auto& all = state().leases();
    for (auto at = all.upper_bound(LeaseId{params.getAfter()}); at != all.end() && found.size() < most; ++at) {
      const LeaseRow& lease = at->second;
      if (lease.phase == LeasePhase::pending || (pool != nullptr && lease.pool != pool->id)) continue;
      if (!tenant.empty() && lease.tenant != tenant) continue;
      found.push_back(&lease);
    }
    write_leases(c.getResults().initLeases(static_cast<uint32_t>(found.size())), found, service());
  });
}

kj::Promise<void> AdminServer::quarantined(QuarantinedContext context) {
  return answer_page(*connection_, context, [this](QuarantinedContext& c) {
    std::vector<const LeaseRow*> found;
    for (const auto& [id, lease] : state().leases()) {
      if (lease.phase == LeasePhase::quarantined) found.push_back(&lease);
      if (found.size() == limits::leases_per_page_max) break;
    }
    write_leases(c.getResults().initLeases(static_cast<uint32_t>(found.size())), found, service());
  });
}

kj::Promise<void> AdminServer::lease(LeaseContext context) {
  return query(context, [this](LeaseContext& c) {
    const uint64_t id = c.getParams().getLease();
    const std::string label = read_text(c.getParams().getLabel());
    const LeaseRow* found = id != 0 ? state().find_lease(LeaseId{id}) : find_by_label(state(), label);
    if (found == nullptr || found->phase == LeasePhase::pending) {
      refuse(c, Error{.code = ErrorCode::not_found,
                      .where = "lease",
                      .detail = id != 0 ? "there is no lease " + std::to_string(id)
                                        : "there is no lease labelled '" + shown(label) + "'"});
      return;
    }
    write_lease(c.getResults().initInfo(), *found, service(), true);
  });
}

// The grace is the holder's: where nobody holds the lease, nobody waits for its end.
kj::Promise<void> AdminServer::revoke(RevokeContext context) {
  const auto params = context.getParams();
  Revoke request{LeaseId{params.getLease()}, read_text(params.getReason()), params.getGraceNs(), now_ns()};
  if (request.grace_ns == 0 || request.grace_ns > limits::grace_ns_max)
    return lease_command(context, std::move(request));
  return service()
      .ended_holders()
      .nobody_has({request.lease})
      .then([this, context, request = std::move(request)](const std::set<LeaseId>& nobodys) mutable {
        if (nobodys.contains(request.lease)) request.grace_ns = 0;
        request.now_ns = now_ns();
        return lease_command(context, std::move(request));
      });
}

kj::Promise<void> AdminServer::renew(RenewContext context) {
  const auto params = context.getParams();
  return lease_command(context, Renew{LeaseId{params.getLease()}, "", params.getTtlNs(), now_ns()});
}

kj::Promise<void> AdminServer::release(ReleaseContext context) {
  return command(context, Release{LeaseId{context.getParams().getLease()}, "", now_ns()},
                 [](ReleaseContext&, Done&) {});
}

// A growth leaves the holders' mappings as they are: they attach again to see it. A shrink cuts the end off
// under them.
kj::Promise<void> AdminServer::resize(ResizeContext context) {
  const auto params = context.getParams();
  return lease_command(context, Resize{LeaseId{params.getLease()}, "", params.getBytes(), now_ns()});
}

kj::Promise<void> AdminServer::transfer(TransferContext context) {
  const auto params = context.getParams();
  Transfer request{LeaseId{params.getLease()}, "", read_text(params.getTenant()), read_text(params.getHost()),
                   now_ns()};
  const LeaseRow* lease = state().find_lease(request.lease);
  if (request.to_tenant.empty() && !request.to_host.empty() && lease != nullptr)
    request.to_tenant = lease->tenant;
  // Its bytes go along: to give them to another tenant is to say who may read them.
  if (!connection_->is_administrator() && lease != nullptr && request.to_tenant != lease->tenant) {
    const Error error =
        service().refused_authority(connection_->peer, Authority::administrator, "transfer to another tenant");
    deny(error);
    refuse(context, error);
    return kj::READY_NOW;
  }
  if (Status placed = service().place_transfer(request); !placed.ok()) {
    refuse(context, placed.error());
    return kj::READY_NOW;
  }
  return command(context, std::move(request), [this](TransferContext& c, LeaseReply& reply) {
    service().handed_over(reply.lease);
    write_lease(c.getResults().initInfo(), reply.lease, service(), false);
  });
}

}  // namespace terrace::daemon
