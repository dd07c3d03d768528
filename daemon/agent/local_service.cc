// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/local_service.h"

#include <vector>

#include "core/base/limits.h"
#include "core/version/version.h"
#include "daemon/agent/agent_admin.h"
#include "daemon/agent/local_session.h"
#include "daemon/log/log.h"
#include "daemon/state/names.h"
#include "daemon/traces/trace_context.h"

namespace terrace::daemon {
namespace {

class LocalGateway final : public rpc::Gateway::Server {
 public:
  explicit LocalGateway(kj::Own<LocalConnection> connection) : connection_(kj::mv(connection)) {}

  kj::Promise<void> hello(HelloContext context) override {
    const auto slot = admit(*connection_, context);
    if (slot == nullptr) return kj::READY_NOW;
    const auto params = context.getParams();
    if (params.getOldest() > rpc::PROTOCOL_VERSION || params.getNewest() < rpc::PROTOCOL_VERSION_OLDEST) {
      refuse(context,
             Error{.code = ErrorCode::version_mismatch,
                   .where = "hello",
                   .detail = "this terraced speaks another protocol version; install matching versions"});
      return kj::READY_NOW;
    }
    const std::string name = read_text(params.getClient());
    if (valid_text(name, limits::label_bytes_max)) connection_->client_name = name;
    connection_->trace = parse_traceparent(read_text(params.getTraceparent()));
    connection_->greeted = true;
    auto results = context.getResults();
    results.setVersion(std::min<uint32_t>(params.getNewest(), rpc::PROTOCOL_VERSION));
    results.setServer(version_number());
    results.setAdmin(false);
    results.setTenant(service().tenant_of(connection_->peer).value_or(""));
    results.setRole(socket_role_name(connection_->peer.role()));
    return kj::READY_NOW;
  }

  kj::Promise<void> openSession(OpenSessionContext context) override {
    const auto slot = admit(*connection_, context);
    if (slot == nullptr) return kj::READY_NOW;
    const auto params = context.getParams();
    std::string tenant = read_text(params.getTenant());
    if (tenant.empty()) tenant = service().tenant_of(connection_->peer).value_or("");
    if (Status status = check(tenant); !status.ok()) {
      refuse(context, status.error());
      return kj::READY_NOW;
    }
    context.getResults().setTenant(tenant);
    context.getResults().setSession(make_local_session(kj::addRef(*connection_), tenant, params.getListener()));
    return kj::READY_NOW;
  }

  kj::Promise<void> openAdmin(OpenAdminContext context) override {
    const auto slot = admit(*connection_, context);
    if (slot == nullptr) return kj::READY_NOW;
    if (!connection_->greeted) {
      refuse(context,
             Error{.code = ErrorCode::invalid_argument, .where = "openAdmin", .detail = "say hello first"});
    } else if (service().authority_of(connection_->peer) == Authority::none) {
      refuse(context, service().refused_authority(connection_->peer, Authority::oversight, "openAdmin"));
    } else {
      context.getResults().setAdmin(make_agent_admin(kj::addRef(*connection_), service().health()));
    }
    return kj::READY_NOW;
  }

 private:
  LocalService& service() { return connection_->service; }

  Status check(const std::string& tenant) {
    const auto refused = [](ErrorCode code, std::string detail) {
      return Error{.code = code, .where = "openSession", .detail = std::move(detail)};
    };
    if (!connection_->greeted) return refused(ErrorCode::invalid_argument, "say hello first");
    if (!service().tenant_of(connection_->peer).has_value())
      TERRACE_RETURN_IF_ERROR(service().may_act_for(connection_->peer, tenant));
    if (!valid_name(tenant)) return refused(ErrorCode::invalid_argument, "a tenant must be a plain name");
    TERRACE_RETURN_IF_ERROR(service().may_act_for(connection_->peer, tenant));
    if (connection_->parts.size() >= limits::rpc_sessions_max)
      return refused(ErrorCode::limit_exceeded, "this connection has " +
                                                    std::to_string(limits::rpc_sessions_max) +
                                                    " sessions open already; use one of them");
    return {};
  }

  kj::Own<LocalConnection> connection_;
};

}  // namespace

RpcServer::Welcome LocalService::welcome(PeerCredentials peer) {
  auto connection = kj::refcounted<LocalConnection>(*this, std::move(peer));
  rpc::Gateway::Client gateway = kj::heap<LocalGateway>(kj::addRef(*connection));
  return {kj::mv(connection), kj::mv(gateway)};
}

Error LocalService::away(const char* where) const {
  return Error{.code = ErrorCode::unavailable, .where = where, .detail = uplink_.absence()};
}

Error LocalService::managers_business(const char* where) const {
  const std::string& host = uplink_.host();
  return Error{.code = ErrorCode::permission_denied,
               .where = where,
               .detail = "this terraced is " + (host.empty() ? "an agent" : "the agent of host " + host) +
                         "; pools, devices and leases are administered at its manager, " + uplink_.manager()};
}

void LocalService::run(LocalSession& session, kj::Promise<void> work) {
  tasks_.add(work.catch_([this, &session](kj::Exception&& exception) {
                   peer_log().info(now_ns(),
                                   session.connection().name() + ": " + exception.getDescription().cStr());
                 })
                 .attach(kj::addRef(session)));
}

void LocalService::taskFailed(kj::Exception&& exception) {
  log::error("a session could not be let go: {}", exception.getDescription().cStr());
}

uint32_t LocalService::lease_count() const {
  size_t count = 0;
  for (const LocalSession* session : sessions_) count += session->lease_count();
  return static_cast<uint32_t>(count);
}

// To go through them: what is done to one may end another.
std::vector<kj::Own<LocalSession>> LocalService::sessions() {
  std::vector<kj::Own<LocalSession>> all;
  for (LocalSession* session : sessions_) all.push_back(kj::addRef(*session));
  return all;
}

void LocalService::manager_connected() {
  for (auto& session : sessions()) session->resume();
}

void LocalService::manager_away() {
  log::warn("{}", uplink_.absence());
  for (auto& session : sessions()) session->suspend();
}

void LocalService::host_fenced(const std::string& reason) {
  for (auto& session : sessions()) session->all_fenced(reason);
}

}  // namespace terrace::daemon
