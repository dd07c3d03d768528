// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/connection/server.h"

#include <capnp/rpc-twoparty.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

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

// Accepted between two looks at the descriptors: 64 take less than half a millisecond.
constexpr uint32_t accepts_in_turn_max = 64;

constexpr auto hello_max = static_cast<int64_t>(limits::rpc_hello_ns_max) * kj::NANOSECONDS;

}  // namespace

// Counted in until it ends.
struct RpcServer::Arrival {
  Arrival(Peers& peers_in, PeerCredentials peer_in, kj::TimePoint hello_by_in)
      : peers(peers_in), peer(std::move(peer_in)), key(peers_in.key_of(peer)), hello_by(hello_by_in) {}
  ~Arrival() noexcept(false) { peers.connection_closed(peer); }
  KJ_DISALLOW_COPY(Arrival);

  Peers& peers;
  const PeerCredentials peer;
  const PeerKey key;
  const kj::TimePoint hello_by;
  kj::Own<kj::AsyncIoStream> stream;
  kj::AsyncCapabilityStream* local = nullptr;  // the same, where it can carry descriptors
  UnixStream* read_in_turns = nullptr;         // the same, where it was accepted here
  std::byte first{};                           // that it said, where it was read already
  bool first_read = false;
};

namespace {

kj::Own<capnp::MessageStream> messages_over(kj::AsyncIoStream& stream, kj::AsyncCapabilityStream* local) {
  if (local != nullptr) return kj::heap<capnp::AsyncCapabilityMessageStream>(*local);
  return kj::heap<capnp::AsyncIoMessageStream>(stream);
}

}  // namespace

struct ServedConnection {
  ServedConnection(kj::Own<RpcServer::Arrival> arrival_in, std::set<ServedConnection*>& all_in, Turns& turns,
                   RpcServer::Welcome welcome)
      : arrival(kj::mv(arrival_in)),
        all(all_in),
        connection(kj::mv(welcome.connection)),
        messages(messages_over(*arrival->stream, arrival->local), *arrival->stream, request_bytes_max,
                 arrival->peers, [key = arrival->key] { return key; }),
        network(
            messages, arrival->local == nullptr ? 0 : limits::rpc_fds_per_message_max,
            capnp::rpc::twoparty::Side::SERVER,
            message_bounds(limits::rpc_message_bytes_max)),  // answers too: requests have bounds of their own
        system(capnp::makeRpcServer(network, kj::mv(welcome.bootstrap))) {
    system.setFlowLimit(flow_limit_words);
    if (arrival->first_read) messages.begin_with(arrival->first);
    messages.wait_for(turns, arrival->read_in_turns);
    messages.tell(connection->carried);
    all.insert(this);
    if (arrival->local == nullptr) return;
    KJ_IF_MAYBE (fd, arrival->stream->getFd()) connection->socket = *fd;
  }
  ~ServedConnection() noexcept(false) {
    all.erase(this);
    connection->end();
  }

  kj::Own<RpcServer::Arrival> arrival;
  std::set<ServedConnection*>& all;
  kj::Own<PeerConnection> connection;
  BackPressureStream messages;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system;
};

RpcServer::Listener::Listener(kj::UnixEventPort& port, UniqueFd fd_in,
                              std::shared_ptr<const ServedSocket> socket_in)
    : fd(std::move(fd_in)),
      observer(port, fd.get(), kj::UnixEventPort::FdObserver::OBSERVE_READ),
      socket(std::move(socket_in)) {}

RpcServer::RpcServer(Service& service, kj::AsyncIoContext& io)
    : RpcServer(
          service,
          [&service](PeerCredentials peer) {
            auto connection = kj::refcounted<Connection>(service, std::move(peer));
            auto gateway = make_gateway(kj::addRef(*connection));
            return Welcome{kj::mv(connection), kj::mv(gateway)};
          },
          io) {}

RpcServer::RpcServer(Peers& peers, Host host, kj::AsyncIoContext& io)
    : peers_(peers),
      host_(kj::mv(host)),
      port_(io.unixEventPort),
      timer_(io.provider->getTimer()),
      turns_(timer_),
      sockets_(port_, timer_),
      spare_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      tasks_(*this) {
  tasks_.add(sweep_loop());
}

void RpcServer::listen(UniqueFd listener, std::shared_ptr<const ServedSocket> socket) {
  listeners_.emplace_back(port_, std::move(listener), std::move(socket));
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

// Never ends: whatever fails, accepting is tried again. Between two handfuls the loop looks at its descriptors: one who
// connects as fast as they are accepted would otherwise be all that it does.
kj::Promise<void> RpcServer::accept_loop(Listener& listener) {
  switch (accept_some(listener)) {
    case Backlog::more: return turns_.look().then([this, &listener] { return accept_loop(listener); });
    case Backlog::empty:
      return listener.observer.whenBecomesReadable().then([this, &listener] { return accept_loop(listener); });
    case Backlog::failed: break;
  }
  return after_failure(listener).then([this, &listener] { return accept_loop(listener); });
}

// Takes them off the kernel's queue, where they stand in one line whoever they are, as quickly as that goes: a connection
// that is one too many, or whose peer has gone again, costs four system calls here and nothing else.
RpcServer::Backlog RpcServer::accept_some(const Listener& listener) {
  for (uint32_t accepted = 0; accepted < accepts_in_turn_max; ++accepted) {
    UniqueFd one(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!one.valid()) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Backlog::empty;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      log("accepting failed: " + std::system_category().message(errno));
      return Backlog::failed;
    }
    take(std::move(one), listener);
  }
  return Backlog::more;
}

// `spare_` is a descriptor kept for the moment when there are no others: it is given up to accept one connection and
// close it, so that its peer learns of it.
kj::Promise<void> RpcServer::after_failure(const Listener& listener) {
  spare_.reset();
  { const UniqueFd refused(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)); }
  spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return timer_.afterDelay(50 * kj::MILLISECONDS);
}

bool RpcServer::count_in(const PeerCredentials& peer) {
  if (peers_.connection_opened(peer)) return true;
  log(peer.text() + (peer.remote == nullptr ? " pid " + std::to_string(peer.pid) : "") +
      ": connection closed, too many are open (" + std::to_string(peers_.connections()) + " in all)");
  return false;
}

void RpcServer::take(UniqueFd accepted, const Listener& listener) {
  std::byte first{};
  const ssize_t said = ::recv(accepted.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (said == 0 || (said < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) return;  // it has gone again
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(accepted.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 ||
      credentials.uid == static_cast<uid_t>(-1)) {
    log("a connection without peer credentials was closed");
    return;
  }
  PeerCredentials peer{.uid = credentials.uid, .pid = credentials.pid, .socket = listener.socket};
  peer.identities = peers_.identities();
  if (!count_in(peer)) return;
  auto arrival = kj::heap<Arrival>(peers_, std::move(peer), timer_.now() + hello_max);
  const PeerKey key = arrival->key;
  tasks_.add(turns_.turn(key).then(
      [this, said, socket = std::move(accepted), arrival = kj::mv(arrival)]() mutable -> kj::Promise<void> {
        auto stream = kj::heap<UnixStream>(sockets_, std::move(socket),
                                           [this, key = arrival->key] { return turns_.turn(key); });
        arrival->local = arrival->read_in_turns = stream.get();
        arrival->stream = kj::mv(stream);
        return said > 0 ? run(kj::mv(arrival)) : until_it_speaks(kj::mv(arrival));
      }));
}

kj::Promise<void> RpcServer::serve(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer) {
  peer.identities = peers_.identities();
  if (!peers_.connection_opened(peer)) return kj::READY_NOW;
  auto arrival = kj::heap<Arrival>(peers_, std::move(peer), timer_.now() + hello_max);
  arrival->local = stream.get();
  arrival->stream = kj::mv(stream);
  return until_it_speaks(kj::mv(arrival));
}

kj::Promise<void> RpcServer::serve_remote(kj::Own<kj::AsyncIoStream> stream, PeerCredentials peer) {
  peer.identities = peers_.identities();
  if (!count_in(peer)) return kj::READY_NOW;
  auto arrival = kj::heap<Arrival>(peers_, std::move(peer), timer_.now() + hello_max);
  arrival->stream = kj::mv(stream);
  const PeerKey key = arrival->key;
  return turns_.turn(key).then([this, arrival = kj::mv(arrival)]() mutable { return run(kj::mv(arrival)); });
}

// One that says nothing takes a descriptor and its place, no more.
kj::Promise<void> RpcServer::until_it_speaks(kj::Own<Arrival> arrival) {
  Arrival& it = *arrival;
  auto spoke = it.stream->tryRead(&it.first, 1, 1)
                   .then([](size_t bytes) { return bytes > 0; }, [](kj::Exception&&) { return false; });
  auto silent = timer_.atTime(it.hello_by).then([] { return false; });
  return spoke.exclusiveJoin(kj::mv(silent))
      .then([this, arrival = kj::mv(arrival)](bool speaks) mutable -> kj::Promise<void> {
        if (!speaks) return kj::READY_NOW;
        arrival->first_read = true;
        if (arrival->read_in_turns != nullptr && arrival->read_in_turns->had_turn())
          return run(kj::mv(arrival));
        const PeerKey key = arrival->key;
        return turns_.turn(key).then(
            [this, arrival = kj::mv(arrival)]() mutable { return run(kj::mv(arrival)); });
      });
}

kj::Promise<void> RpcServer::run(kj::Own<Arrival> arrival) {
  const PeerKey key = arrival->key;
  const kj::TimePoint hello_by = arrival->hello_by;
  Welcome welcome = host_(arrival->peer);
  auto served = kj::heap<ServedConnection>(kj::mv(arrival), served_, turns_, kj::mv(welcome));
  auto& connection = *served->connection;
  auto silent = timer_.atTime(hello_by).then([&connection]() -> kj::Promise<void> {
    if (connection.greeted) return kj::NEVER_DONE;
    return kj::READY_NOW;  // one that is not greeted only takes a place
  });
  auto over = served->network.onDisconnect().exclusiveJoin(kj::mv(silent)).exclusiveJoin(connection.on_close());
  // Taking it apart is work for its peer as well.
  return over.then([this, key] { return turns_.turn(key); }).attach(kj::mv(served));
}

}  // namespace terrace::daemon
