// SPDX-License-Identifier: Apache-2.0
#include "cli/client/tenant_client.h"

#include "cli/client/grant.h"

namespace terrace::cli {
namespace {

class TenantClient final : public LeaseClient {
 public:
  TenantClient(std::unique_ptr<Connection> connection, rpc::TenantSession::Client session, std::string tenant)
      : connection_(std::move(connection)), session_(kj::mv(session)), tenant_(std::move(tenant)) {}
  ~TenantClient() noexcept override {}  // kj's own may throw; nobody could do anything about it here

  Result<std::vector<LeaseStatus>> leases(const std::string& pool, const std::string& tenant) override {
    if (!tenant.empty() && tenant != tenant_) return not_yours("the leases of tenant '" + tenant + "'");
    TERRACE_ASSIGN_OR_RETURN(
        std::vector<LeaseStatus> all, all_pages("TenantSession.list", [&](uint64_t after, uint32_t limit) {
          auto request = session_.listRequest();
          request.setAfter(after);
          request.setLimit(limit);
          return connection_->call(kj::mv(request),
                                   [](auto& reply) { return kept<rpc::LeaseInfo>(reply.getLeases()); });
        }));
    std::erase_if(all,
                  [&](const LeaseStatus& lease) { return !pool.empty() && str(lease->getPool()) != pool; });
    return all;
  }

  // Attaching, read-only, is how a tenant has a lease measured. One that cannot be attached any more (it is
  // being fenced, say) is shown as the list has it.
  Result<LeaseStatus> lease(LeaseId id, const std::string& label) override {
    Result<LeaseStatus> attached = attach(id, label, nullptr);
    if (attached.ok()) return attached;
    TERRACE_ASSIGN_OR_RETURN(std::vector<LeaseStatus> own, leases("", ""));
    for (LeaseStatus& lease : own) {
      if (id.value != 0 ? lease->getId() == id.value : str(lease->getLabel()) == label) return std::move(lease);
    }
    return attached;
  }

  Result<LeaseStatus> grant(const GrantOptions& options, const WaitReport& waiting) override {
    if (!options.tenant.empty() && options.tenant != tenant_)
      return not_yours("a grant to tenant '" + options.tenant + "'");
    const auto pools = [this]() {
      return connection_->call(session_.poolsRequest(),
                               [](auto& reply) { return kept<rpc::PoolInfo>(reply.getPools()); });
    };
    return grant_in_session(*connection_, session_, options, pools, waiting);
  }

  Result<LeaseStatus> renew(LeaseId id, uint64_t ttl_ns) override {
    auto request = session_.renewManyRequest();
    request.initLeases(1).set(0, id.value);
    request.setTtlNs(ttl_ns);
    Status failed;
    TERRACE_RETURN_IF_ERROR(connection_->call(kj::mv(request), [&failed](auto& reply) {
      const auto failures = reply.getFailed();
      if (failures.size() != 0)
        failed = client::status_from_wire(failures[0].getError(), "TenantSession.renewMany");
      return true;
    }));
    TERRACE_RETURN_IF_ERROR(failed);
    return lease(id, "");
  }

  Status release(LeaseId id) override {
    rpc::Lease::Client held = nullptr;
    TERRACE_RETURN_IF_ERROR(attach(id, "", &held));
    return connection_->call(held.releaseRequest());
  }

  Result<LeaseStatus> resize(LeaseId id, uint64_t bytes) override {
    rpc::Lease::Client held = nullptr;
    // Only who may write may cut it, grow it or give it away.
    TERRACE_RETURN_IF_ERROR(attach(id, "", &held, rpc::Access::READ_WRITE));
    auto request = held.resizeRequest();
    request.setBytes(bytes);
    return connection_->call(kj::mv(request), [](auto& reply) { return LeaseStatus(reply.getInfo()); });
  }

  Result<LeaseStatus> transfer(LeaseId id, const std::string& tenant, const std::string& host) override {
    rpc::Lease::Client held = nullptr;
    TERRACE_RETURN_IF_ERROR(attach(id, "", &held, rpc::Access::READ_WRITE));
    auto request = held.transferRequest();
    request.setTenant(tenant);
    request.setHost(host);
    return connection_->call(kj::mv(request), [](auto& reply) { return LeaseStatus(reply.getInfo()); });
  }

  Result<std::vector<LeaseStatus>> offers() override { return offers_in_session(*connection_, session_); }
  Result<LeaseStatus> accept_offer(LeaseId id) override {
    return accept_in_session(*connection_, session_, id);
  }
  Status withdraw_offer(LeaseId id) override { return withdraw_in_session(*connection_, session_, id); }

 private:
  Error not_yours(const std::string& what) const {
    return Error{.code = ErrorCode::permission_denied,
                 .where = "terrace lease",
                 .detail = what + " is for administrators; this user acts as tenant '" + tenant_ + "'"};
  }

  Result<LeaseStatus> attach(LeaseId id, const std::string& label, rpc::Lease::Client* held,
                             rpc::Access access = rpc::Access::READ_ONLY) {
    auto request = session_.attachRequest();
    request.setLease(id.value);
    request.setLabel(label);
    request.setAccess(access);
    request.setWithoutMemory(true);
    TERRACE_ASSIGN_OR_RETURN(rpc::Lease::Client lease,
                             connection_->call(kj::mv(request), [](auto& reply) { return reply.getLease(); }));
    if (held != nullptr) *held = lease;
    return connection_->call(lease.infoRequest(), [](auto& reply) { return LeaseStatus(reply.getInfo()); });
  }

  std::unique_ptr<Connection> connection_;
  rpc::TenantSession::Client session_;
  std::string tenant_;
};

}  // namespace

Result<std::unique_ptr<LeaseClient>> make_tenant_client(std::unique_ptr<Connection> connection) {
  std::string tenant;
  TERRACE_ASSIGN_OR_RETURN(rpc::TenantSession::Client session, connection->open_session("", &tenant));
  return std::unique_ptr<LeaseClient>(
      std::make_unique<TenantClient>(std::move(connection), kj::mv(session), std::move(tenant)));
}

}  // namespace terrace::cli
