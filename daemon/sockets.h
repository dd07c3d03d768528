// The unix sockets of a manager or an agent, from its configuration to its RpcServer.
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

// All bound; their files go with it.
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
  std::vector<BoundSocket> bound_;
};

}  // namespace terrace::daemon
