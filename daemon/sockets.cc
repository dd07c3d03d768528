// SPDX-License-Identifier: Apache-2.0
#include "daemon/sockets.h"

#include <sys/stat.h>

#include <filesystem>

#include "daemon/config/runtime_directory.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

// Whether any user of this machine may go through every folder to `path`.
bool open_to_everyone(const std::string& path) {
  for (std::filesystem::path at = std::filesystem::path(path).parent_path(); !at.empty();
       at = at.parent_path()) {
    struct stat found {};
    if (::stat(at.c_str(), &found) != 0 || (found.st_mode & S_IXOTH) == 0) return false;
    if (at == at.root_path()) break;
  }
  return true;
}

void tell(const SocketConfig& socket) {
  const std::string tenant = socket.tenant.empty() ? "" : " of " + socket.tenant + " only";
  log::info("serving at {} with the role {}{}", socket.path, socket_role_name(socket.role), tenant);
  if (!socket.tenant.empty() && (socket.mode & S_IWOTH) != 0 && open_to_everyone(socket.path)) {
    log::warn(
        "every user of this machine may open {} and act as tenant {}: close a folder above it, or the socket "
        "itself (mode, owner, group)",
        socket.path, socket.tenant);
  }
}

}  // namespace

std::vector<std::shared_ptr<const ServedSocket>> served_sockets(const DaemonConfig& config) {
  std::vector<std::shared_ptr<const ServedSocket>> served;
  for (const SocketConfig& socket : sockets_of(config)) {
    served.push_back(std::make_shared<const ServedSocket>(
        ServedSocket{place_of(socket), socket.role, socket.tenant, static_cast<uint32_t>(served.size())}));
  }
  return served;
}

Result<BoundSockets> BoundSockets::bind(const DaemonConfig& config) {
  BoundSockets all;
  const std::vector<SocketConfig> sockets = sockets_of(config);
  for (size_t index = 0; index < sockets.size(); ++index) {
    const SocketConfig& socket = sockets[index];
    if (!socket.listen.empty()) continue;
    const bool main = index == 0;
    if (!main) {
      TERRACE_RETURN_IF_ERROR(
          prepare_runtime_directory(std::filesystem::path(socket.path).parent_path().string()));
    }
    TERRACE_ASSIGN_OR_RETURN(BoundSocket bound,
                             listen_unix({socket.path, socket.mode, socket.owner, socket.group}));
    all.bound_.push_back({std::move(bound), index});
    if (!main || socket.role != SocketRole::by_uid) tell(socket);
  }
  return all;
}

void BoundSockets::serve(RpcServer& server, const std::vector<std::shared_ptr<const ServedSocket>>& sockets) {
  for (One& one : bound_) server.listen(std::move(one.socket.listener), sockets[one.index]);
}

Result<std::vector<ClientPort>> bind_client_ports(const DaemonConfig& config, kj::AsyncIoContext& io) {
  std::vector<ClientPort> ports;
  const std::vector<SocketConfig> sockets = sockets_of(config);
  for (size_t index = 0; index < sockets.size(); ++index) {
    const SocketConfig& socket = sockets[index];
    if (socket.listen.empty()) continue;
    try {
      auto address = io.provider->getNetwork().parseAddress(socket.listen.c_str()).wait(io.waitScope);
      ports.push_back({address->listen(), index, socket.protocol});
    } catch (const kj::Exception& exception) {
      return Error{.code = ErrorCode::unavailable,
                   .where = "bind_client_ports",
                   .detail = "cannot listen for clients at " + socket.listen +
                             " ([[sockets]] listen): " + exception.getDescription().cStr() +
                             "; name an address of this machine and a port that nobody else has"};
    }
    const std::string tenant = socket.tenant.empty() ? "" : " of " + socket.tenant + " only";
    log::info("clients with a certificate may connect to {}; the role {}{} is the most they have there",
              place_of(socket), socket_role_name(socket.role), tenant);
  }
  return ports;
}

}  // namespace terrace::daemon
