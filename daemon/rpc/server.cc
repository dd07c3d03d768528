#include "daemon/rpc/server.h"

#include <capnp/rpc-twoparty.h>
#include <capnp/serialize-async.h>
#include <fcntl.h>
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

// The words of calls in progress for one client; beyond it no further call of it is taken in.
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

// A message stream that takes nothing in while the peer does not take what was sent: otherwise one that asks
// and never reads makes the answers pile up here, without bound.
class BackPressureStream final : public capnp::MessageStream {
 public:
  explicit BackPressureStream(kj::AsyncCapabilityStream& stream) : inner_(stream) {}

  kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> tryReadMessage(
      kj::ArrayPtr<kj::AutoCloseFd> fds, capnp::ReaderOptions options,
      kj::ArrayPtr<capnp::word> scratch) override {
    if (writing_ == 0) return inner_.tryReadMessage(fds, options, scratch);
    auto pair = kj::newPromiseAndFulfiller<void>();
    written_ = kj::mv(pair.fulfiller);
    return pair.promise.then([this, fds, options, scratch] { return tryReadMessage(fds, options, scratch); });
  }
  kj::Promise<void> writeMessage(kj::ArrayPtr<const int> fds,
                                 kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) override {
    return counted(inner_.writeMessage(fds, segments));
  }
  kj::Promise<void> writeMessages(
      kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) override {
    return counted(inner_.writeMessages(messages));
  }
  kj::Maybe<int> getSendBufferSize() override { return inner_.getSendBufferSize(); }
  kj::Promise<void> end() override { return inner_.end(); }

 private:
  kj::Promise<void> counted(kj::Promise<void> write) {
    ++writing_;
    return write.attach(kj::defer([this] {
      if (--writing_ == 0 && written_.get() != nullptr) kj::mv(written_)->fulfill();
    }));
  }

  capnp::AsyncCapabilityMessageStream inner_;
  uint32_t writing_ = 0;
  kj::Own<kj::PromiseFulfiller<void>> written_;  // the read that waits
};

struct ServedConnection {
  ServedConnection(Service& service_in, kj::Own<kj::AsyncCapabilityStream> stream_in, PeerCredentials peer)
      : service(service_in),
        connection(kj::refcounted<Connection>(service_in, peer)),
        stream(kj::mv(stream_in)),
        messages(*stream),
        network(messages, limits::rpc_fds_per_message_max, capnp::rpc::twoparty::Side::SERVER,
                reader_options()),
        system(capnp::makeRpcServer(network, make_gateway(kj::addRef(*connection)))) {
    system.setFlowLimit(flow_limit_words);
  }
  ~ServedConnection() noexcept(false) {
    connection->end();
    service.connection_closed(connection->peer);
  }

  Service& service;
  kj::Own<Connection> connection;
  kj::Own<kj::AsyncCapabilityStream> stream;
  BackPressureStream messages;
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
    : service_(service), timer_(timer), spare_(::open("/dev/null", O_RDONLY | O_CLOEXEC)), tasks_(*this) {
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

// Never ends: whatever fails, accepting is tried again. `spare_` is a descriptor kept for the moment when there
// are no others: it is given up to accept one connection and close it, so that its peer learns of it.
kj::Promise<void> RpcServer::accept_loop() {
  return kj::evalNow([this] { return receiver_->acceptAuthenticated(); })
      .then([this](kj::AuthenticatedStream accepted) { take(kj::mv(accepted)); })
      .catch_([this](kj::Exception&& exception) -> kj::Promise<void> {
        spdlog::error("accepting failed: {}", exception.getDescription().cStr());
        spare_.reset();
        return kj::evalNow([this] { return receiver_->accept(); })
            .then([](kj::Own<kj::AsyncIoStream>) {})
            .exclusiveJoin(timer_.afterDelay(100 * kj::MILLISECONDS))
            .catch_([](kj::Exception&&) {})
            .then([this] {
              spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
              return timer_.afterDelay(50 * kj::MILLISECONDS);
            });
      })
      .then([this] { return accept_loop(); });
}

void RpcServer::take(kj::AuthenticatedStream accepted) {
  auto* local = dynamic_cast<kj::LocalPeerIdentity*>(accepted.peerIdentity.get());
  auto* capable = dynamic_cast<kj::AsyncCapabilityStream*>(accepted.stream.get());
  if (local == nullptr || capable == nullptr) return;
  PeerCredentials peer;
  const auto credentials = local->getCredentials();
  KJ_IF_MAYBE (uid, credentials.uid) {
    peer.uid = *uid;
  } else {
    spdlog::warn("a connection without peer credentials was closed");
    return;
  }
  KJ_IF_MAYBE (pid, credentials.pid) {
    peer.pid = *pid;
  }
  if (!service_.connection_opened(peer)) {
    const uint64_t now_ns = service_.engine().now_ns();
    if (now_ns - refusal_logged_ns_ >= ns_per_s) {  // a flood of them must not flood the log
      spdlog::warn("uid {} pid {}: connection closed, too many are open ({} in all)", peer.uid, peer.pid,
                   service_.connections());
      refusal_logged_ns_ = now_ns;
    }
    return;
  }
  tasks_.add(run(
      kj::Own<kj::AsyncCapabilityStream>(capable, kj::NullDisposer::instance).attach(kj::mv(accepted.stream)),
      peer));
}

kj::Promise<void> RpcServer::serve(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer) {
  if (!service_.connection_opened(peer)) return kj::READY_NOW;
  return run(kj::mv(stream), peer);
}

kj::Promise<void> RpcServer::run(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer) {
  auto served = kj::heap<ServedConnection>(service_, kj::mv(stream), peer);
  auto& connection = *served->connection;
  auto silent = timer_.afterDelay(static_cast<int64_t>(limits::rpc_hello_ns_max) * kj::NANOSECONDS)
                    .then([&connection]() -> kj::Promise<void> {
                      if (connection.greeted) return kj::NEVER_DONE;
                      return kj::READY_NOW;  // who says nothing only takes a place
                    });
  return served->network.onDisconnect().exclusiveJoin(kj::mv(silent)).attach(kj::mv(served));
}

}  // namespace terrace::daemon
