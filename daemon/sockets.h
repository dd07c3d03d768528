// SPDX-License-Identifier: Apache-2.0
// The sockets of a manager or an agent, from its configuration to its RpcServer: unix sockets, and the TCP ports of clients
// on other machines.
//
// Threads   The event loop's thread only.
#pragma once

#include <memory>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/rpc/connection/listen.h"
#include "daemon/rpc/connection/server.h"

namespace terrace::daemon {

// As connections know them, the main one first: for PeerOptions.
std::vector<std::shared_ptr<const ServedSocket>> served_sockets(const DaemonConfig& config);

// Unix sockets, all bound; their files go with it.
class BoundSockets {
 public:
  // The folder of each of [[sockets]] is made when missing, and refused where others could put a socket of their own into
  // its place.
  // Errors    as prepare_runtime_directory and listen_unix
  static Result<BoundSockets> bind(const DaemonConfig& config);

  // Lets `server` accept what connects, as `sockets`, of the same configuration, say.
  void serve(RpcServer& server, const std::vector<std::shared_ptr<const ServedSocket>>& sockets);
  void remove_files() { bound_.clear(); }

 private:
  struct One {
    BoundSocket socket;
    size_t index = 0;  // among sockets_of()
  };
  std::vector<One> bound_;
};

// A port of [[sockets]] that has `listen`.
struct ClientPort {
  kj::Own<kj::ConnectionReceiver> receiver;
  size_t index = 0;  // among sockets_of()
  SocketProtocol protocol = SocketProtocol::rpc;
};
// Binds them all.
// Errors    unavailable   an address cannot be had; says which and why
Result<std::vector<ClientPort>> bind_client_ports(const DaemonConfig& config, kj::AsyncIoContext& io);

}  // namespace terrace::daemon
