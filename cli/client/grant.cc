// SPDX-License-Identifier: Apache-2.0
#include "cli/client/grant.h"

#include <algorithm>

#include "core/base/prng.h"

namespace terrace::cli {
namespace {

// The grants in the queue of the pool that `options` mean.
uint32_t waiting_in(const PoolsCall& pools, const GrantOptions& options) {
  const Result<std::vector<PoolStatus>> all = pools();
  if (!all.ok()) return 0;
  for (const PoolStatus& pool : *all) {
    if (str(pool->getName()) == options.request.pool || all->size() == 1) return pool->getWaiting();
  }
  return 0;
}

}  // namespace

Result<std::vector<LeaseStatus>> all_pages(
    const char* where,
    const std::function<Result<std::vector<LeaseStatus>>(uint64_t after, uint32_t limit)>& page) {
  std::vector<LeaseStatus> all;
  for (uint64_t after = 0;;) {
    TERRACE_ASSIGN_OR_RETURN(std::vector<LeaseStatus> leases, page(after, leases_per_call));
    const bool last = leases.size() < leases_per_call;
    for (LeaseStatus& lease : leases) {
      if (lease->getId() <= after) {
        return Error{.code = ErrorCode::corrupt,
                     .where = where,
                     .detail = "the daemon's list of leases is not in ascending order"};
      }
      after = lease->getId();
      all.push_back(std::move(lease));
    }
    if (last) return all;
  }
}

Result<LeaseStatus> grant_in_session(Connection& connection, rpc::TenantSession::Client session,
                                     const GrantOptions& options, const PoolsCall& pools,
                                     const WaitReport& report) {
  auto grant = session.grantRequest();
  auto wire = grant.initRequest();
  client::grant_to_wire(options.request, wire);
  wire.setRequestHigh(secure_random_u64());
  wire.setRequestLow(secure_random_u64());
  const auto read = [](auto& reply) { return LeaseStatus(reply.getInfo()); };
  if (options.request.wait_ns == 0) return connection.call(kj::mv(grant), read);
  // Who waits now is before it; the queue is served in order, so that number only sinks.
  uint32_t before = waiting_in(pools, options);
  const auto waiting = [&]() {
    const uint32_t in_queue = waiting_in(pools, options);
    if (in_queue == 0) return;  // served already, or about to be
    before = std::min(before, in_queue - 1);
    report(before, in_queue);
  };
  return connection.call_reporting(
      kj::mv(grant), {.timeout_ns = connection.call_timeout_ns + options.request.wait_ns, .waiting = waiting},
      read);
}

Result<std::vector<LeaseStatus>> offers_in_session(Connection& connection, rpc::TenantSession::Client session) {
  return all_pages("TenantSession.offers", [&](uint64_t after, uint32_t limit) {
    auto request = session.offersRequest();
    request.setAfter(after);
    request.setLimit(limit);
    return connection.call(kj::mv(request),
                           [](auto& reply) { return kept<rpc::LeaseInfo>(reply.getLeases()); });
  });
}

Result<LeaseStatus> accept_in_session(Connection& connection, rpc::TenantSession::Client session, LeaseId id) {
  auto request = session.acceptOfferRequest();
  request.setLease(id.value);
  return connection.call(kj::mv(request), [](auto& reply) { return LeaseStatus(reply.getInfo()); });
}

Status withdraw_in_session(Connection& connection, rpc::TenantSession::Client session, LeaseId id) {
  auto request = session.attachRequest();
  request.setLease(id.value);
  request.setAccess(rpc::Access::READ_ONLY);
  request.setWithoutMemory(true);
  TERRACE_ASSIGN_OR_RETURN(rpc::Lease::Client lease,
                           connection.call(kj::mv(request), [](auto& reply) { return reply.getLease(); }));
  return connection.call(lease.withdrawOfferRequest());
}

}  // namespace terrace::cli
