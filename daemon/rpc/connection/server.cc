#include "daemon/rpc/connection/server.h"

#include <capnp/rpc-twoparty.h>
#include <fcntl.h>

#include "core/base/limits.h"
#include "daemon/rpc/connection.h"
#include "daemon/rpc/connection/back_pressure.h"

namespace terrace::daemon {
namespace {

// One request: the largest, a renewal of a page of leases, has 80 KiB. What a client sent of a request is kept
// until all of it is there, so this times the connections bounds that memory.
constexpr uint64_t request_bytes_max = 256 * kib;

// The words of calls in progress for one client; beyond it no further call of it is taken in.
constexpr size_t flow_limit_words = 1 * mib / sizeof(capnp::word);

}  // namespace

struct ServedConnection {
  ServedConnection(Peers& peers_in, std::set<ServedConnection*>& all_in,
                   kj::Own<kj::AsyncCapabilityStream> stream_in, RpcServer::Welcome welcome)
      : peers(peers_in),
        all(all_in),
        connection(kj::mv(welcome.connection)),
        stream(kj::mv(stream_in)),
        messages(kj::heap<capnp::AsyncCapabilityMessageStream>(*stream), *stream, request_bytes_max, peers_in,
                 [key = peers_in.key_of(connection->peer)] { return key; }),
        network(
            messages, limits::rpc_fds_per_message_max, capnp::rpc::twoparty::Side::SERVER,
            message_bounds(limits::rpc_message_bytes_max)),  // answers too: requests have bounds of their own
        system(capnp::makeRpcServer(network, kj::mv(welcome.bootstrap))) {
    system.setFlowLimit(flow_limit_words);
    messages.tell(connection->carried);
    all.insert(this);
    KJ_IF_MAYBE (fd, stream->getFd()) connection->socket = *fd;
  }
  ~ServedConnection() noexcept(false) {
    all.erase(this);
    connection->end();
    peers.connection_closed(connection->peer);
  }

  Peers& peers;
  std::set<ServedConnection*>& all;
  kj::Own<PeerConnection> connection;
  kj::Own<kj::AsyncCapabilityStream> stream;
  BackPressureStream messages;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system;
};

RpcServer::RpcServer(Service& service, kj::LowLevelAsyncIoProvider& io, kj::Timer& timer)
    : RpcServer(
          service,
          [&service](PeerCredentials peer) {
            auto connection = kj::refcounted<Connection>(service, std::move(peer));
            auto gateway = make_gateway(kj::addRef(*connection));
            return Welcome{kj::mv(connection), kj::mv(gateway)};
          },
          io, timer) {}

RpcServer::RpcServer(Peers& peers, Host host, kj::LowLevelAsyncIoProvider& io, kj::Timer& timer)
    : peers_(peers),
      host_(kj::mv(host)),
      io_(io),
      timer_(timer),
      spare_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      tasks_(*this) {
  tasks_.add(sweep_loop());
}

void RpcServer::listen(UniqueFd listener, std::shared_ptr<const ServedSocket> socket) {
  // The daemon decides itself who may connect; kj's filter is for outgoing addresses.
  auto receiver = io_.wrapListenSocketFd(listener.release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                                                 kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                                                                 kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
  listeners_.push_back(Listener{kj::mv(receiver), std::move(socket)});
  tasks_.add(accept_loop(listeners_.back()));
}

void RpcServer::log(const std::string& line) {
  peers_.peer_log().warn(peers_.now_ns(), line);
}

void RpcServer::taskFailed(kj::Exception&& exception) {
  log(std::string("a connection ended: ") + exception.getDescription().cStr());
}

// Closes the connections of peers that take nothing: what was made for them takes memory.
kj::Promise<void> RpcServer::sweep_loop() {
  const auto pause =
      static_cast<int64_t>(peers_.peer_options().write_stall_ns_max / BackPressureStream::sweeps_a_stall);
  return timer_.afterDelay(pause * kj::NANOSECONDS).then([this] {
    for (ServedConnection* served : served_)
      if (served->messages.stalled(BackPressureStream::sweeps_a_stall))
        served->connection->close("it takes no answers");
    return sweep_loop();
  });
}

// Never ends: whatever fails, accepting is tried again. `spare_` is a descriptor kept for the moment when there
// are no others: it is given up to accept one connection and close it, so that its peer learns of it.
kj::Promise<void> RpcServer::accept_loop(Listener& listener) {
  return kj::evalNow([&listener] { return listener.receiver->acceptAuthenticated(); })
      .then([this, &listener](kj::AuthenticatedStream accepted) { take(kj::mv(accepted), listener); })
      .catch_([this, &listener](kj::Exception&& exception) -> kj::Promise<void> {
        log(std::string("accepting failed: ") + exception.getDescription().cStr());
        spare_.reset();
        return kj::evalNow([&listener] { return listener.receiver->accept(); })
            .then([](kj::Own<kj::AsyncIoStream>) {})
            .exclusiveJoin(timer_.afterDelay(100 * kj::MILLISECONDS))
            .catch_([](kj::Exception&&) {})
            .then([this] {
              spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
              return timer_.afterDelay(50 * kj::MILLISECONDS);
            });
      })
      .then([this, &listener] { return accept_loop(listener); });
}

void RpcServer::take(kj::AuthenticatedStream accepted, const Listener& listener) {
  auto* local = dynamic_cast<kj::LocalPeerIdentity*>(accepted.peerIdentity.get());
  auto* capable = dynamic_cast<kj::AsyncCapabilityStream*>(accepted.stream.get());
  if (local == nullptr || capable == nullptr) return;
  PeerCredentials peer;
  peer.socket = listener.socket;
  peer.identities = peers_.identities();
  const auto credentials = local->getCredentials();
  KJ_IF_MAYBE (uid, credentials.uid) {
    peer.uid = *uid;
  } else {
    log("a connection without peer credentials was closed");
    return;
  }
  KJ_IF_MAYBE (pid, credentials.pid) {
    peer.pid = *pid;
  }
  if (!peers_.connection_opened(peer)) {
    log("uid " + std::to_string(peer.uid) + " pid " + std::to_string(peer.pid) +
        ": connection closed, too many are open (" + std::to_string(peers_.connections()) + " in all)");
    return;
  }
  tasks_.add(run(
      kj::Own<kj::AsyncCapabilityStream>(capable, kj::NullDisposer::instance).attach(kj::mv(accepted.stream)),
      peer));
}

kj::Promise<void> RpcServer::serve(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer) {
  peer.identities = peers_.identities();
  if (!peers_.connection_opened(peer)) return kj::READY_NOW;
  return run(kj::mv(stream), std::move(peer));
}

kj::Promise<void> RpcServer::run(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer) {
  auto served = kj::heap<ServedConnection>(peers_, served_, kj::mv(stream), host_(peer));
  auto& connection = *served->connection;
  auto silent = timer_.afterDelay(static_cast<int64_t>(limits::rpc_hello_ns_max) * kj::NANOSECONDS)
                    .then([&connection]() -> kj::Promise<void> {
                      if (connection.greeted) return kj::NEVER_DONE;
                      return kj::READY_NOW;  // who says nothing only takes a place
                    });
  auto over = served->network.onDisconnect().exclusiveJoin(kj::mv(silent)).exclusiveJoin(connection.on_close());
  return over.attach(kj::mv(served));
}

}  // namespace terrace::daemon
