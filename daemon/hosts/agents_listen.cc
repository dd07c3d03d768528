// SPDX-License-Identifier: Apache-2.0
// The way in for agents: TCP, then mutual TLS, then one connection to its end. Bounds what one source of
// connections can take before it shows a certificate, and what one host can after.
#include <capnp/rpc-twoparty.h>
#include <fcntl.h>

#include "daemon/hosts/agent_peer.h"
#include "daemon/hosts/agents.h"
#include "daemon/rpc/connection/back_pressure.h"

namespace terrace::daemon {
namespace {

// A host needs one; a second when it connects again before its first is found to be dead.
constexpr uint32_t connections_of_host_max = 4;

// Refused peers that are still connected, each for a second.
constexpr uint32_t lingering_max = 16;

// What answers to a host that never registered count for: hosts that did have the uids after it.
constexpr uint32_t unregistered_uid = 0xffff0000;

}  // namespace

void Agents::listen(kj::Own<kj::ConnectionReceiver> port, Credentials& credentials) {
  port_ = kj::mv(port);
  credentials_ = &credentials;
  tasks_->add(accept_loop());
  credentials.on_change([this] { close_revoked(); });
}

// Never ends, whatever fails.
kj::Promise<void> Agents::accept_loop() {
  return kj::evalNow([this] { return port_->acceptAuthenticated(); })
      .then([this](kj::AuthenticatedStream stream) {
        tasks_->add(greet(kj::mv(stream)));
        return turns_.look();  // a full line of connections does not keep the loop from hearing others
      })
      .catch_([this](kj::Exception&& exception) {
        log(std::string("accepting agents failed: ") + exception.getDescription().cStr());
        return timer_.afterDelay(100 * kj::MILLISECONDS);
      })
      .then([this] { return accept_loop(); });
}

kj::Promise<void> Agents::greet(kj::AuthenticatedStream stream) {
  const std::string address = stream.peerIdentity->toString().cStr();
  std::string source;
  auto held = std::make_shared<UniqueFd>();
  KJ_IF_MAYBE (fd, stream.stream->getFd()) {
    set_keep_alive(*fd, options_.terms.length_ns);
    source = source_of(*fd);
    held->reset(::fcntl(*fd, F_DUPFD_CLOEXEC, 0));
  }
  return handshakes_.run(std::move(source), credentials_->accept(kj::mv(stream)))
      .then([this, address, held](Shaken shaken) -> kj::Promise<void> {
        held->reset();
        auto name = peer_name(shaken.peer, TlsRole::agent);
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
        return serve(kj::mv(shaken.stream.stream), shaken.peer, *name, address);
      })
      .catch_([this, address, held](kj::Exception&& exception) {
        log("a connection from " + address + " was refused: " + tls_failure(exception));
        return linger(held);
      });
}

// A peer that is refused has sent more by now; closed at once, the kernel would take back the words that say why.
kj::Promise<void> Agents::linger(std::shared_ptr<UniqueFd> refused) {
  if (!refused->valid() || lingering_ >= lingering_max) return kj::READY_NOW;
  ++lingering_;
  return timer_.afterDelay(1 * kj::SECONDS).attach(kj::defer([this, refused] { --lingering_; }));
}

uint32_t Agents::uid_of(const std::string& name) const {
  const auto known = hosts_.find(name);
  return known == hosts_.end() ? unregistered_uid : known->second.uid;
}

// One agent's connection, counted for its host.
struct Agents::Served {
  Served(Agents& agents_in, kj::Own<kj::AsyncIoStream> stream_in, kj::Own<AgentPeer> peer_in)
      : agents(agents_in),
        stream(kj::mv(stream_in)),
        peer(kj::mv(peer_in)),
        messages(kj::heap<capnp::AsyncIoMessageStream>(*stream), *stream, agent_message_bytes_max,
                 *agents.service_, [this] { return agents.uid_of(peer->host()); }),
        network(messages, capnp::rpc::twoparty::Side::SERVER, message_bounds(agent_message_bytes_max)),
        system(capnp::makeRpcServer(network, make_agent_gateway(kj::addRef(*peer)))) {
    messages.wait_for(agents.turns_, nullptr);
    system.setFlowLimit(agent_message_bytes_max / sizeof(capnp::word));
    ++agents.connections_[peer->host()];
    agents.peers_.insert(peer.get());
  }
  ~Served() noexcept(false) {
    agents.peers_.erase(peer.get());
    const auto at = agents.connections_.find(peer->host());
    if (--at->second == 0) agents.connections_.erase(at);
    peer->end();
  }

  Agents& agents;
  kj::Own<kj::AsyncIoStream> stream;
  kj::Own<AgentPeer> peer;
  BackPressureStream messages;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system;
};

kj::Promise<void> Agents::serve(kj::Own<kj::AsyncIoStream> stream, const CertificateFacts& certificate,
                                const std::string& name, const std::string& address) {
  const auto known = connections_.find(name);
  if (known != connections_.end() && known->second >= connections_of_host_max) {
    log("a connection from " + address + " was refused: host " + name + " has " +
        std::to_string(known->second) + " others");
    return kj::READY_NOW;
  }
  auto served =
      kj::heap<Served>(*this, kj::mv(stream), kj::refcounted<AgentPeer>(*this, name, address, certificate));
  AgentPeer& peer = *served->peer;
  auto silent = timer_.afterDelay(static_cast<int64_t>(limits::rpc_hello_ns_max) * kj::NANOSECONDS)
                    .then([&peer]() -> kj::Promise<void> {
                      if (peer.registered()) return kj::NEVER_DONE;
                      return kj::READY_NOW;
                    });
  auto stalled = served->messages.until_stalled(timer_).then([&peer] { peer.close("it takes no answers"); });
  auto over = served->network.onDisconnect()
                  .exclusiveJoin(kj::mv(silent))
                  .exclusiveJoin(kj::mv(stalled))
                  .exclusiveJoin(peer.on_close());
  return over.attach(kj::mv(served));
}

}  // namespace terrace::daemon
