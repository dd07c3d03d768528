// The way in for agents: TCP, then mutual TLS, then one connection to its end.
#include <capnp/rpc-twoparty.h>
#include <spdlog/spdlog.h>

#include "daemon/rpc/agent_peer.h"
#include "daemon/rpc/agents.h"

namespace terrace::daemon {
namespace {

// Peers that have not shown a certificate yet: each costs a TLS state, and may be anybody.
constexpr uint32_t handshakes_max = 64;

capnp::ReaderOptions reader_options() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = agent_message_bytes_max / sizeof(capnp::word);
  options.nestingLimit = 32;
  return options;
}

}  // namespace

void Agents::listen(kj::Own<kj::ConnectionReceiver> port, kj::Own<kj::TlsContext> tls) {
  port_ = kj::mv(port);
  tls_ = kj::mv(tls);
  tasks_->add(accept_loop());
}

// Never ends, whatever fails.
kj::Promise<void> Agents::accept_loop() {
  return kj::evalNow([this] { return port_->acceptAuthenticated(); })
      .then([this](kj::AuthenticatedStream stream) {
        if (handshakes_ >= handshakes_max) {
          log("a connection to the agents' port was closed: " + std::to_string(handshakes_) +
              " others have not shown a certificate yet");
          return;
        }
        tasks_->add(greet(kj::mv(stream)));
      })
      .catch_([this](kj::Exception&& exception) {
        log(std::string("accepting agents failed: ") + exception.getDescription().cStr());
        return timer_.afterDelay(100 * kj::MILLISECONDS);
      })
      .then([this] { return accept_loop(); });
}

kj::Promise<void> Agents::greet(kj::AuthenticatedStream stream) {
  const std::string address = stream.peerIdentity->toString().cStr();
  ++handshakes_;
  KJ_IF_MAYBE (fd, stream.stream->getFd()) set_keep_alive(*fd, options_.terms.length_ns);
  return tls_->wrapServer(kj::mv(stream))
      .attach(kj::defer([this] { --handshakes_; }))
      .then([this, address](kj::AuthenticatedStream shaken) -> kj::Promise<void> {
        auto name = peer_name(*shaken.peerIdentity, TlsRole::agent);
        if (name.ok() && !valid_agent_name(*name)) {
          name = Error{.code = ErrorCode::permission_denied,
                       .where = "tls",
                       .detail = "its certificate's name is no host's name of at most " +
                                 std::to_string(agent_name_bytes_max) + " characters"};
        }
        if (!name.ok()) {
          log("a connection from " + address + " was refused: " + name.error().detail);
          return kj::READY_NOW;
        }
        return serve(kj::mv(shaken.stream), *name, address);
      })
      .catch_([this, address](kj::Exception&& exception) {
        log("a connection from " + address + " was refused: " + tls_failure(exception));
      });
}

kj::Promise<void> Agents::serve(kj::Own<kj::AsyncIoStream> stream, const std::string& name,
                                const std::string& address) {
  struct Served {
    Served(kj::Own<kj::AsyncIoStream> stream_in, kj::Own<AgentPeer> peer_in)
        : stream(kj::mv(stream_in)),
          peer(kj::mv(peer_in)),
          network(*stream, capnp::rpc::twoparty::Side::SERVER, reader_options()),
          system(capnp::makeRpcServer(network, make_agent_gateway(kj::addRef(*peer)))) {
      system.setFlowLimit(agent_message_bytes_max / sizeof(capnp::word));
    }
    ~Served() noexcept(false) { peer->end(); }

    kj::Own<kj::AsyncIoStream> stream;
    kj::Own<AgentPeer> peer;
    capnp::TwoPartyVatNetwork network;
    capnp::RpcSystem<capnp::rpc::twoparty::VatId> system;
  };
  auto served = kj::heap<Served>(kj::mv(stream), kj::refcounted<AgentPeer>(*this, name, address));
  AgentPeer& peer = *served->peer;
  auto silent = timer_.afterDelay(static_cast<int64_t>(limits::rpc_hello_ns_max) * kj::NANOSECONDS)
                    .then([&peer]() -> kj::Promise<void> {
                      if (peer.registered()) return kj::NEVER_DONE;
                      return kj::READY_NOW;
                    });
  auto over = served->network.onDisconnect().exclusiveJoin(kj::mv(silent)).exclusiveJoin(peer.on_close());
  return over.attach(kj::mv(served));
}

}  // namespace terrace::daemon
