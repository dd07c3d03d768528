// What the capabilities of one connection share: who the peer is, and how many calls it has under way.
//
// Threads   The event loop's thread only.
#pragma once

#include <kj/refcount.h>

#include <set>
#include <utility>

#include "core/schema/terrace.capnp.h"
#include "daemon/rpc/service.h"
#include "daemon/rpc/wire.h"

namespace terrace::daemon {

// Something of a connection that refers back to its peer, and has to let go when the connection ends: a peer
// could otherwise keep both alive by handing us a capability of our own as its listener.
class EndsWithConnection {
 public:
  virtual ~EndsWithConnection() noexcept(false) = default;
  virtual void connection_ended() = 0;
};

class Connection final : public kj::Refcounted {
 public:
  Connection(Service& service_in, PeerCredentials peer_in) : service(service_in), peer(peer_in) {}

  // Called once, when the stream is gone. Capabilities may outlive it for a moment.
  void end() {
    for (EndsWithConnection* part : std::exchange(parts, {})) part->connection_ended();
  }

  Service& service;
  const PeerCredentials peer;
  std::string client_name;
  bool greeted = false;
  uint32_t calls = 0;
  uint32_t leases = 0;  // capabilities alive
  std::set<EndsWithConnection*> parts;
};

// Counts one call for as long as it lives.
class CallSlot {
 public:
  explicit CallSlot(Connection& connection) : connection_(kj::addRef(connection)) { ++connection_->calls; }
  ~CallSlot() noexcept(false) {
    if (connection_.get() != nullptr) --connection_->calls;
  }
  CallSlot(CallSlot&&) = default;
  CallSlot& operator=(CallSlot&&) = delete;

 private:
  kj::Own<Connection> connection_;
};

// Admits a call, or answers it with limit_exceeded. Every method of every capability begins with this.
template <typename Context>
kj::Maybe<CallSlot> admit(Connection& connection, Context& context) {
  const uint32_t most = connection.service.options().calls_outstanding_max;
  if (connection.calls < most) return CallSlot(connection);
  write_error(context.getResults().initError(),
              Error{.code = ErrorCode::limit_exceeded,
                    .where = "admit",
                    .detail = "this connection has " + std::to_string(most) +
                              " calls under way already; wait for answers before sending more"});
  return nullptr;
}

// Makes the Gateway of a fresh connection.
rpc::Gateway::Client make_gateway(kj::Own<Connection> connection);
rpc::TenantSession::Client make_tenant_session(kj::Own<Connection> connection, std::string tenant,
                                               std::string host, rpc::LeaseListener::Client listener);
rpc::Admin::Client make_admin(kj::Own<Connection> connection);
// getFd() hands `memory` over.
rpc::Lease::Client make_lease(kj::Own<Connection> connection, LeaseId lease, std::string tenant,
                              SharedFd memory);

}  // namespace terrace::daemon
