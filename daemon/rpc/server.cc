#include "daemon/rpc/server.h"

#include <capnp/rpc-twoparty.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "core/base/limits.h"
#include "daemon/rpc/connection.h"

namespace terrace::daemon {
namespace {

// The words in flight to one client that does not read: beyond it no further calls of it are taken in.
constexpr size_t flow_limit_words = 8 * mib / sizeof(capnp::word);

capnp::ReaderOptions reader_options() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = limits::rpc_message_bytes_max / sizeof(capnp::word);
  options.nestingLimit = 32;
  return options;
}

bool answers(const sockaddr_un& address) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return probe.valid() &&
         ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

struct ServedConnection {
  ServedConnection(Service& service, kj::Own<kj::AsyncCapabilityStream> stream_in, PeerCredentials peer)
      : stream(kj::mv(stream_in)),
        network(*stream, limits::rpc_fds_per_message_max, capnp::rpc::twoparty::Side::SERVER, reader_options()),
        system(capnp::makeRpcServer(network, make_gateway(kj::refcounted<Connection>(service, peer)))) {
    system.setFlowLimit(flow_limit_words);
  }

  kj::Own<kj::AsyncCapabilityStream> stream;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system;
};

}  // namespace

Result<UniqueFd> listen_unix(const std::string& path, uint32_t mode) {
  constexpr const char* where = "listen_unix";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = "the socket path " + path + " is longer than the " +
                           std::to_string(sizeof(address.sun_path) - 1) +
                           " bytes that a unix socket can have; choose a shorter runtime directory"};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return os_error(errno, where, "no unix socket can be made");
  if (answers(address)) {
    return Error{.code = ErrorCode::busy, .where = where, .detail = "another daemon answers at " + path};
  }
  struct stat existing {};
  if (::lstat(path.c_str(), &existing) == 0) {
    if (!S_ISSOCK(existing.st_mode)) {
      return Error{.code = ErrorCode::already_exists,
                   .where = where,
                   .detail = path + " exists and is no socket; remove it or choose another --socket"};
    }
    ::unlink(path.c_str());  // left by a daemon that was killed
  }
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return os_error(errno, where, "cannot bind " + path);
  if (::chmod(path.c_str(), mode) != 0) return os_error(errno, where, "cannot set the mode of " + path);
  if (::listen(listener.get(), SOMAXCONN) != 0) return os_error(errno, where, "cannot listen at " + path);
  return listener;
}

RpcServer::RpcServer(Service& service, kj::LowLevelAsyncIoProvider& io, kj::Timer& timer, UniqueFd listener)
    : service_(service), timer_(timer), tasks_(*this) {
  if (!listener.valid()) return;
  // The daemon decides itself who may connect; kj's filter is for outgoing addresses.
  receiver_ = io.wrapListenSocketFd(listener.release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                                            kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                                                            kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
  tasks_.add(accept_loop());
}

void RpcServer::taskFailed(kj::Exception&& exception) {
  spdlog::info("a connection ended: {}", exception.getDescription().cStr());
}

kj::Promise<void> RpcServer::accept_loop() {
  return receiver_->acceptAuthenticated().then(
      [this](kj::AuthenticatedStream accepted) {
        PeerCredentials peer;
        bool known = false;
        if (auto* local = dynamic_cast<kj::LocalPeerIdentity*>(accepted.peerIdentity.get())) {
          const auto credentials = local->getCredentials();
          KJ_IF_MAYBE (uid, credentials.uid) {
            peer.uid = *uid;
            known = true;
          }
          KJ_IF_MAYBE (pid, credentials.pid) {
            peer.pid = *pid;
          }
        }
        if (!known) {
          spdlog::warn("a connection without peer credentials was closed");
        } else if (service_.connections() >= service_.options().connections_max) {
          spdlog::warn("uid {} pid {}: connection closed, {} are open already", peer.uid, peer.pid,
                       service_.connections());
        } else {
          auto* capable = dynamic_cast<kj::AsyncCapabilityStream*>(accepted.stream.get());
          TERRACE_CHECK(capable != nullptr, "a unix socket's stream passes descriptors");
          tasks_.add(serve(kj::Own<kj::AsyncCapabilityStream>(capable, kj::NullDisposer::instance)
                               .attach(kj::mv(accepted.stream)),
                           peer));
        }
        return accept_loop();
      },
      [this](kj::Exception&& exception) {
        // Out of descriptors, most likely: those that are connected go on, new ones wait.
        spdlog::error("accepting failed: {}", exception.getDescription().cStr());
        return timer_.afterDelay(100 * kj::MILLISECONDS).then([this] { return accept_loop(); });
      });
}

kj::Promise<void> RpcServer::serve(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer) {
  auto connection = kj::heap<ServedConnection>(service_, kj::mv(stream), peer);
  auto& network = connection->network;
  return network.onDisconnect().attach(kj::mv(connection));
}

}  // namespace terrace::daemon
