// SPDX-License-Identifier: Apache-2.0
// Connecting, and the operator's calls about leases.
#include "cli/client/admin_client.h"

#include "cli/client/admin_impl.h"
#include "cli/client/grant.h"
#include "cli/client/tenant_client.h"

namespace terrace::cli {

AdminClient::AdminClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminClient::~AdminClient() = default;

Result<std::unique_ptr<AdminClient>> AdminClient::open(std::unique_ptr<Connection> connection) {
  auto impl = std::make_unique<Impl>();
  impl->connection = std::move(connection);
  TERRACE_ASSIGN_OR_RETURN(impl->admin, impl->call(impl->connection->gateway.openAdminRequest(),
                                                   [](auto& reply) { return reply.getAdmin(); }));
  return std::unique_ptr<AdminClient>(new AdminClient(std::move(impl)));
}

Result<std::unique_ptr<AdminClient>> AdminClient::connect(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Connection::open(context));
  return open(std::move(connection));
}

Result<std::unique_ptr<AdminClient>> AdminClient::connect_if_admitted(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Connection::open(context));
  if (!connection->admin) return std::unique_ptr<AdminClient>();
  return open(std::move(connection));
}

Result<std::unique_ptr<LeaseClient>> LeaseClient::connect(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Connection::open(context));
  if (!connection->admin) return make_tenant_client(std::move(connection));
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<LeaseClient> admin, AdminClient::open(std::move(connection)));
  return admin;
}

Result<SocketRights> ask_rights(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connection::open(context));
  return SocketRights{connection->admin, connection->role, connection->own_tenant};
}

Result<StatusReply> AdminClient::status() {
  return impl_->call(impl_->admin.statusRequest(), [](auto& reply) { return StatusReply(reply); });
}

Result<HealthReply> AdminClient::health() {
  return impl_->call(impl_->admin.healthRequest(), [](auto& reply) { return HealthReply(reply); });
}

Result<DoctorReply> AdminClient::doctor() {
  return impl_->call(impl_->admin.doctorRequest(), [](auto& reply) { return DoctorReply(reply); });
}

Result<RunsReply> AdminClient::runs() {
  return impl_->call(impl_->admin.runsRequest(), [](auto& reply) { return RunsReply(reply); });
}

Result<EventsReply> AdminClient::events(const EventQuery& wanted) {
  auto request = impl_->admin.eventsRequest();
  auto query = request.initQuery();
  query.setSince(wanted.since);
  query.setRun(wanted.run);
  query.setLimit(wanted.limit);
  query.setWaitMs(wanted.wait_ms);
  query.setSinceWallNs(wanted.since_wall_ns);
  query.setKind(wanted.kind);
  query.setSeverity(wanted.severity);
  query.setLease(wanted.lease);
  query.setTenant(wanted.tenant);
  query.setPool(wanted.pool);
  query.setDevice(wanted.device);
  query.setHost(wanted.host);
  query.setNewest(wanted.newest);
  return impl_->call(kj::mv(request), [](auto& reply) { return EventsReply(reply); });
}

Result<std::vector<std::string>> AdminClient::check() {
  return impl_->call(impl_->admin.checkRequest(), [](auto& reply) { return strings(reply.getProblems()); });
}

Result<std::vector<LeaseStatus>> AdminClient::leases(const std::string& pool, const std::string& tenant) {
  return all_pages("Admin.leases", [&](uint64_t after, uint32_t limit) {
    auto request = impl_->admin.leasesRequest();
    request.setPool(pool);
    request.setTenant(tenant);
    request.setAfter(after);
    request.setLimit(limit);
    return impl_->call(kj::mv(request), [](auto& reply) { return kept<rpc::LeaseInfo>(reply.getLeases()); });
  });
}

Result<LeaseStatus> AdminClient::lease(LeaseId id, const std::string& label) {
  auto request = with_lease(impl_->admin.leaseRequest(), id);
  request.setLabel(label);
  return impl_->lease(kj::mv(request));
}

Result<LeaseStatus> AdminClient::grant(const GrantOptions& options, const WaitReport& waiting) {
  TERRACE_ASSIGN_OR_RETURN(rpc::TenantSession::Client session, impl_->connection->open_session(options.tenant));
  return grant_in_session(
      *impl_->connection, kj::mv(session), options, [this]() { return pools(); }, waiting);
}

Result<LeaseStatus> AdminClient::renew(LeaseId id, uint64_t ttl_ns) {
  auto request = with_lease(impl_->admin.renewRequest(), id);
  request.setTtlNs(ttl_ns);
  return impl_->lease(kj::mv(request));
}

Status AdminClient::release(LeaseId id) {
  return impl_->call(with_lease(impl_->admin.releaseRequest(), id));
}

Result<LeaseStatus> AdminClient::resize(LeaseId id, uint64_t bytes) {
  auto request = with_lease(impl_->admin.resizeRequest(), id);
  request.setBytes(bytes);
  return impl_->lease(kj::mv(request));
}

Result<LeaseStatus> AdminClient::transfer(LeaseId id, const std::string& tenant, const std::string& host) {
  auto request = with_lease(impl_->admin.transferRequest(), id);
  request.setTenant(tenant);
  request.setHost(host);
  return impl_->lease(kj::mv(request));
}

Result<std::vector<LeaseStatus>> AdminClient::offers() {
  TERRACE_ASSIGN_OR_RETURN(rpc::TenantSession::Client session, impl_->connection->open_session(""));
  return offers_in_session(*impl_->connection, kj::mv(session));
}

Result<LeaseStatus> AdminClient::accept_offer(LeaseId id) {
  TERRACE_ASSIGN_OR_RETURN(rpc::TenantSession::Client session, impl_->connection->open_session(""));
  return accept_in_session(*impl_->connection, kj::mv(session), id);
}

Status AdminClient::withdraw_offer(LeaseId id) {
  TERRACE_ASSIGN_OR_RETURN(rpc::TenantSession::Client session, impl_->connection->open_session(""));
  return withdraw_in_session(*impl_->connection, kj::mv(session), id);
}

Result<LeaseStatus> AdminClient::revoke(LeaseId id, const RevokeOptions& options) {
  auto request = with_lease(impl_->admin.revokeRequest(), id);
  request.setGraceNs(options.grace_ns);
  request.setReason(options.reason);
  return impl_->lease(kj::mv(request));
}

Result<std::vector<LeaseStatus>> AdminClient::quarantined() {
  TERRACE_ASSIGN_OR_RETURN(std::vector<LeaseStatus> all, leases("", ""));  // page by page
  std::erase_if(all,
                [](const LeaseStatus& lease) { return lease->getPhase() != rpc::LeasePhase::QUARANTINED; });
  return all;
}

}  // namespace terrace::cli
