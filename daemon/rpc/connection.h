// What the capabilities of one connection share: who the peer is, and how much it has under way.
//
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>
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
  Connection(Service& service_in, PeerCredentials peer_in)
      : service(service_in),
        service_handle(service_in.handle()),
        peer(peer_in),
        closing_(kj::newPromiseAndFulfiller<void>()) {}

  // Called once, when the stream is gone. Capabilities may outlive it for a moment.
  void end() {
    for (EndsWithConnection* part : std::exchange(parts, {})) part->connection_ended();
  }

  // Has the stream closed, for a reason that goes into the log.
  void close(const char* reason) {
    if (!closing_.fulfiller->isWaiting()) return;
    service.peer_log().warn(service.engine().now_ns(), name() + ": closed, " + reason);
    closing_.fulfiller->fulfill();
  }
  // Resolves when close() was called. Call once.
  kj::Promise<void> on_close() { return kj::mv(closing_.promise); }

  // Who the peer is, as the audit log has it: "uid 0 (terrace[1234])".
  std::string name() const {
    return "uid " + std::to_string(peer.uid) + " (" + (client_name.empty() ? "unnamed" : client_name) + "[" +
           std::to_string(peer.pid) + "])";
  }
  Actor actor() const { return Actor{name()}; }
  kj::Promise<Result<Reply>> submit(Command command) {
    return service.engine().submit(std::move(command), actor());
  }

  Service& service;
  const std::weak_ptr<Service*> service_handle;
  const PeerCredentials peer;
  std::string client_name;
  bool greeted = false;
  uint32_t calls = 0;    // under way
  uint32_t pages = 0;    // of them, those with answers of megabytes
  uint32_t waiting = 0;  // grants in a queue: not among the calls
  uint32_t leases = 0;   // capabilities alive
  uint64_t notices = 0;  // that the peer has not taken
  std::set<EndsWithConnection*> parts;

 private:
  kj::PromiseFulfillerPair<void> closing_;
};

// Counts something of a connection for as long as it lives.
template <uint32_t Connection::*Counter>
class Counted {
 public:
  explicit Counted(Connection& connection) : connection_(kj::addRef(connection)) {
    ++(connection_.get()->*Counter);
  }
  ~Counted() noexcept(false) {
    if (connection_.get() != nullptr) --(connection_.get()->*Counter);
  }
  Counted(Counted&&) = default;
  Counted& operator=(Counted&&) = delete;

 private:
  kj::Own<Connection> connection_;
};
using CallSlot = Counted<&Connection::calls>;
using WaitingSlot = Counted<&Connection::waiting>;

// Makes the Gateway of a fresh connection.
rpc::Gateway::Client make_gateway(kj::Own<Connection> connection);
// `tenant` is never empty: that would mean an administrator to the state machine.
rpc::TenantSession::Client make_tenant_session(kj::Own<Connection> connection, std::string tenant,
                                               std::string host, rpc::LeaseListener::Client listener);
rpc::Admin::Client make_admin(kj::Own<Connection> connection);

}  // namespace terrace::daemon
