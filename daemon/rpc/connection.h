// SPDX-License-Identifier: Apache-2.0
// What the capabilities of one connection to a manager share: the service, who the peer is, and, where an agent
// speaks for a program on its host, which agent.
//
// Threads   The event loop's thread only.
#pragma once

#include <string>
#include <utility>

#include "core/schema/terrace.capnp.h"
#include "daemon/rpc/peer_connection.h"
#include "daemon/rpc/service.h"
#include "daemon/rpc/wire.h"

namespace terrace::daemon {

class Connection final : public PeerConnection {
 public:
  Connection(Service& service_in, PeerCredentials peer_in, std::string agent_in = {})
      : PeerConnection(service_in, std::move(peer_in)),
        service(service_in),
        service_handle(service_in.handle()),
        agent(std::move(agent_in)) {}

  std::string name() const override {
    if (agent.empty()) return PeerConnection::name();
    return "host " + agent + " (" + (client_name.empty() ? "unnamed" : client_name) + ")";
  }
  // What an agent says of its peers makes nobody an administrator here.
  Authority authority() const { return agent.empty() ? service.authority_of(peer) : Authority::none; }
  bool is_administrator() const { return authority() == Authority::administrator; }
  // Who asks, without a call: for what is done when nobody asks any more.
  Actor actor() const { return Actor{.text = name(), .administrator = authority() != Authority::none}; }
  // Who asks by the call that was admitted last: to be called before anything else can be.
  Actor caller() const {
    Actor asking = actor();
    asking.trace = calling;
    return asking;
  }
  template <Asked C>
  kj::Promise<Result<ReplyOf<C>>> submit(C command) {
    return service.engine().submit(std::move(command), caller());
  }

  Service& service;
  const std::weak_ptr<Service*> service_handle;
  const std::string
      agent;  // the host whose agent opened this for a program there; empty: a peer on this machine
};

// Makes the Gateway of a fresh connection.
rpc::Gateway::Client make_gateway(kj::Own<Connection> connection);
// `tenant` is never empty: that would mean an administrator to the state machine.
rpc::TenantSession::Client make_tenant_session(kj::Own<Connection> connection, std::string tenant,
                                               std::string host, rpc::LeaseListener::Client listener);
rpc::Admin::Client make_admin(kj::Own<Connection> connection);

}  // namespace terrace::daemon
