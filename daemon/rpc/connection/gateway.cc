// SPDX-License-Identifier: Apache-2.0
// The first capability of a connection: settles the protocol version, then hands out what the peer may have.

#include "core/version/version.h"
#include "daemon/rpc/answers.h"
#include "daemon/state/names.h"
#include "daemon/traces/trace_context.h"

namespace terrace::daemon {
namespace {

class GatewayServer final : public rpc::Gateway::Server {
 public:
  explicit GatewayServer(kj::Own<Connection> connection) : connection_(kj::mv(connection)) {}

  kj::Promise<void> hello(HelloContext context) override {
    const auto slot = admit(*connection_, context);
    if (slot == nullptr) return kj::READY_NOW;
    const auto params = context.getParams();
    auto results = context.getResults();
    if (params.getOldest() > rpc::PROTOCOL_VERSION || params.getNewest() < rpc::PROTOCOL_VERSION_OLDEST) {
      write_error(results.initError(),
                  Error{.code = ErrorCode::version_mismatch,
                        .where = "hello",
                        .detail = "this terraced speaks protocol " +
                                  std::to_string(static_cast<uint32_t>(rpc::PROTOCOL_VERSION_OLDEST)) + " to " +
                                  std::to_string(static_cast<uint32_t>(rpc::PROTOCOL_VERSION)) +
                                  ", the client " + std::to_string(params.getOldest()) + " to " +
                                  std::to_string(params.getNewest()) + "; install matching versions"});
      return kj::READY_NOW;
    }
    const std::string name = read_text(params.getClient());
    if (valid_text(name, limits::label_bytes_max)) connection_->client_name = name;
    connection_->trace = parse_traceparent(read_text(params.getTraceparent()));
    if (Status status = may_be_here(); !status.ok()) {
      write_error(results.initError(), status.error());
      return kj::READY_NOW;
    }
    connection_->greeted = true;
    results.setVersion(std::min<uint32_t>(params.getNewest(), rpc::PROTOCOL_VERSION));
    results.setServer(version_number());
    results.setAdmin(service().authority_of(connection_->peer) != Authority::none);
    results.setTenant(service().tenant_of(connection_->peer).value_or(""));
    results.setRole(socket_role_name(connection_->peer.role()));
    return kj::READY_NOW;
  }

  kj::Promise<void> openSession(OpenSessionContext context) override {
    const auto slot = admit(*connection_, context);
    if (slot == nullptr) return kj::READY_NOW;
    const auto params = context.getParams();
    auto results = context.getResults();
    if (Status status = greeted("openSession"); !status.ok()) {
      write_error(results.initError(), status.error());
      return kj::READY_NOW;
    }
    const auto own_tenant = service().tenant_of(connection_->peer);
    std::string tenant = read_text(params.getTenant());
    if (tenant.empty()) tenant = own_tenant.value_or("");
    std::string host = read_text(params.getHost());
    if (host.empty() || connection_->peer.remote != nullptr) host = service().options().host;
    Status status = check_identity(tenant, host);
    if (status.ok() && connection_->parts.size() >= limits::rpc_sessions_max) {
      status = Error{.code = ErrorCode::limit_exceeded,
                     .where = "openSession",
                     .detail = "this connection has " + std::to_string(limits::rpc_sessions_max) +
                               " sessions open already; use one of them"};
    }
    if (!status.ok()) {
      note_denied("session", status.error());
      write_error(results.initError(), status.error());
      return kj::READY_NOW;
    }
    results.setTenant(tenant);
    results.setSession(make_tenant_session(kj::addRef(*connection_), tenant, host, params.getListener()));
    return kj::READY_NOW;
  }

  kj::Promise<void> openAdmin(OpenAdminContext context) override {
    const auto slot = admit(*connection_, context);
    if (slot == nullptr) return kj::READY_NOW;
    auto results = context.getResults();
    Status status = greeted("openAdmin");
    if (status.ok() && service().authority_of(connection_->peer) == Authority::none)
      status = service().refused_authority(connection_->peer, Authority::oversight, "openAdmin");
    if (!status.ok()) {
      note_denied("admin", status.error());
      write_error(results.initError(), status.error());
    } else {
      results.setAdmin(make_admin(kj::addRef(*connection_)));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> renewCertificate(RenewCertificateContext context) override {
    const auto slot = admit(*connection_, context);
    if (slot == nullptr) return kj::READY_NOW;
    const Result<std::string> renewed = renewed_certificate();
    if (renewed.ok()) {
      context.getResults().setCertificate(*renewed);
    } else {
      refuse(context, renewed.error());
    }
    return kj::READY_NOW;
  }

 private:
  Result<std::string> renewed_certificate() const {
    constexpr const char* where = "renewCertificate";
    TERRACE_RETURN_IF_ERROR(greeted(where));
    const auto& remote = connection_->peer.remote;
    if (remote != nullptr && remote->renew) return remote->renew();
    return Error{.code = ErrorCode::unsupported,
                 .where = where,
                 .detail = "only who came over TLS, with a client's certificate, has one to renew"};
  }

  Service& service() { return connection_->service; }

  void note_denied(const char* what, const Error& error) {
    if (error.code != ErrorCode::permission_denied) return;
    service().engine().note_denied(what, service().name_for_audit(connection_->peer), error,
                                   connection_->caller());
  }

  // Whether the certificate that it showed is of any use here: it hears why not, which TLS could not say.
  Status may_be_here() const {
    const auto& remote = connection_->peer.remote;
    if (remote == nullptr || remote->refused.empty()) return {};
    return Error{.code = ErrorCode::permission_denied, .where = "hello", .detail = remote->refused};
  }

  Status greeted(const char* where) const {
    if (connection_->greeted) return {};
    return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = "say hello first"};
  }

  Status check_identity(const std::string& tenant, const std::string& host) {
    if (tenant.empty() && connection_->peer.remote != nullptr) {
      return Error{
          .code = ErrorCode::permission_denied,
          .where = "openSession",
          .detail = "the certificate of " + connection_->peer.text() +
                    " names no tenant, and none was asked for; name one, or use a certificate that does"};
    }
    if (!service().tenant_of(connection_->peer).has_value())
      TERRACE_RETURN_IF_ERROR(service().may_act_for(connection_->peer, tenant));
    if (!valid_name(tenant) || !valid_name(host)) {
      return Error{.code = ErrorCode::invalid_argument,
                   .where = "openSession",
                   .detail = "tenant '" + tenant + "' and host '" + host + "' must be plain names"};
    }
    return service().may_act_for(connection_->peer, tenant);
  }

  kj::Own<Connection> connection_;
};

}  // namespace

rpc::Gateway::Client make_gateway(kj::Own<Connection> connection) {
  return kj::heap<GatewayServer>(kj::mv(connection));
}

}  // namespace terrace::daemon
