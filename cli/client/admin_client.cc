// Connecting, and the operator's calls about leases.
#include "cli/client/admin_client.h"

#include "cli/client/admin_impl.h"
#include "cli/client/tenant_client.h"

namespace terrace::cli {

AdminClient::AdminClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminClient::~AdminClient() = default;

Result<std::unique_ptr<AdminClient>> AdminClient::open(std::unique_ptr<Connection> connection) {
  auto impl = std::make_unique<Impl>();
  impl->connection = std::move(connection);
  TERRACE_ASSIGN_OR_RETURN(impl->admin,
                           impl->call(impl->connection->gateway.openAdminRequest(), "AdminClient::connect",
                                      [](auto& reply) { return reply.getAdmin(); }));
  return std::unique_ptr<AdminClient>(new AdminClient(std::move(impl)));
}

Result<std::unique_ptr<AdminClient>> AdminClient::connect(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Connection::open(context));
  return open(std::move(connection));
}

Result<std::unique_ptr<LeaseClient>> LeaseClient::connect(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Connection::open(context));
  if (!connection->admin) return make_tenant_client(std::move(connection));
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<LeaseClient> admin, AdminClient::open(std::move(connection)));
  return admin;
}

Result<StatusReply> AdminClient::status() {
  return impl_->call(impl_->admin.statusRequest(), "Admin.status", [](auto& reply) {
    return StatusReply{.server = read_server(reply.getServer()),
                       .pools = client::pool_infos_from_wire(reply.getPools()),
                       .leases = reply.getLeases()};
  });
}

Result<std::vector<std::string>> AdminClient::check() {
  return impl_->call(impl_->admin.checkRequest(), "Admin.check", [](auto& reply) {
    std::vector<std::string> problems;
    for (const auto problem : reply.getProblems()) problems.push_back(client::text_from_wire(problem));
    return problems;
  });
}

Result<std::vector<LeaseStatus>> AdminClient::leases(const std::string& pool, const std::string& tenant) {
  std::vector<LeaseStatus> all;
  for (;;) {
    auto request = impl_->admin.leasesRequest();
    request.setPool(pool);
    request.setTenant(tenant);
    request.setAfter(all.empty() ? 0 : all.back().id.value);
    request.setLimit(leases_per_call);
    TERRACE_ASSIGN_OR_RETURN(std::vector<LeaseStatus> page,
                             impl_->call(kj::mv(request), "Admin.leases",
                                         [](auto& reply) { return read_leases(reply.getLeases()); }));
    const bool last = page.size() < leases_per_call;
    for (LeaseStatus& lease : page) {
      // A daemon that does not advance would keep us here for ever.
      if (!all.empty() && lease.id <= all.back().id) {
        return Error{.code = ErrorCode::corrupt,
                     .where = "Admin.leases",
                     .detail = "the daemon's list of leases is not in ascending order"};
      }
      all.push_back(std::move(lease));
    }
    if (last) return all;
  }
}

Result<LeaseStatus> AdminClient::lease(LeaseId id, const std::string& label) {
  auto request = impl_->admin.leaseRequest();
  request.setLease(id.value);
  request.setLabel(label);
  return impl_->call(kj::mv(request), "Admin.lease",
                     [](auto& reply) { return read_lease(reply.getInfo(), true); });
}

Result<LeaseStatus> AdminClient::grant(const GrantOptions& options, const WaitReport& waiting) {
  TERRACE_ASSIGN_OR_RETURN(rpc::TenantSession::Client session, impl_->connection->open_session(options.tenant));
  return grant_in_session(
      *impl_->connection, kj::mv(session), options, [this]() { return pools(); }, waiting);
}

Result<LeaseStatus> AdminClient::renew(LeaseId id, uint64_t ttl_ns) {
  auto request = impl_->admin.renewRequest();
  request.setLease(id.value);
  request.setTtlNs(ttl_ns);
  return impl_->call(kj::mv(request), "Admin.renew",
                     [](auto& reply) { return read_lease(reply.getInfo(), false); });
}

Status AdminClient::release(LeaseId id) {
  auto request = impl_->admin.releaseRequest();
  request.setLease(id.value);
  return impl_->call(kj::mv(request), "Admin.release");
}

Result<LeaseStatus> AdminClient::resize(LeaseId id, uint64_t bytes) {
  auto request = impl_->admin.resizeRequest();
  request.setLease(id.value);
  request.setBytes(bytes);
  return impl_->call(kj::mv(request), "Admin.resize",
                     [](auto& reply) { return read_lease(reply.getInfo(), false); });
}

Result<LeaseStatus> AdminClient::transfer(LeaseId id, const std::string& tenant, const std::string& host) {
  auto request = impl_->admin.transferRequest();
  request.setLease(id.value);
  request.setTenant(tenant);
  request.setHost(host);
  return impl_->call(kj::mv(request), "Admin.transfer",
                     [](auto& reply) { return read_lease(reply.getInfo(), false); });
}

Result<LeaseStatus> AdminClient::revoke(LeaseId id, const RevokeOptions& options) {
  auto request = impl_->admin.revokeRequest();
  request.setLease(id.value);
  request.setGraceNs(options.grace_ns);
  request.setReason(options.reason);
  return impl_->call(kj::mv(request), "Admin.revoke",
                     [](auto& reply) { return read_lease(reply.getInfo(), false); });
}

Result<std::vector<LeaseStatus>> AdminClient::quarantined() {
  TERRACE_ASSIGN_OR_RETURN(std::vector<LeaseStatus> all, leases("", ""));  // page by page
  std::erase_if(all, [](const LeaseStatus& lease) { return lease.phase != "quarantined"; });
  return all;
}

}  // namespace terrace::cli
