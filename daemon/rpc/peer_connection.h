// SPDX-License-Identifier: Apache-2.0
// One peer's connection to a socket of ours: who it is, how much it has under way, and how it is ended.
//
// Place     RpcServer makes one a stream, through whoever serves it: a manager's Connection, an agent's.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>
#include <kj/refcount.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/clock.h"
#include "daemon/rpc/handed_memory.h"
#include "daemon/rpc/peer_limits.h"

namespace terrace::daemon {

// Something of a connection that refers back to its peer, and has to let go when the connection ends: a peer
// could otherwise keep both alive by handing us a capability of our own as its listener.
class EndsWithConnection {
 public:
  virtual ~EndsWithConnection() noexcept(false) = default;
  virtual void connection_ended() = 0;
};

class PeerConnection : public kj::Refcounted {
 public:
  PeerConnection(Peers& peers_in, PeerCredentials peer_in)
      : peers(peers_in), peer(std::move(peer_in)), closing_(kj::newPromiseAndFulfiller<void>()) {}

  // Called once, when the stream is gone. Capabilities may outlive it for a moment.
  void end() {
    socket = -1;
    for (EndsWithConnection* part : std::exchange(parts, {})) part->connection_ended();
  }

  // Has the stream closed, for a reason that goes into the log.
  void close(const char* reason) {
    if (!closing_.fulfiller->isWaiting()) return;
    peers.peer_log().warn(peers.now_ns(), name() + ": closed, " + reason);
    closing_.fulfiller->fulfill();
  }
  // Resolves when close() was called. Call once.
  kj::Promise<void> on_close() { return kj::mv(closing_.promise); }

  // Who the peer is, as the audit log has it: "uid 0 (terrace[1234])", "client ops as operator from 10.0.0.9 (terrace)".
  // The role, where that says what the peer may do, comes before what the peer calls itself, so that no name can look
  // like one.
  virtual std::string name() const {
    if (peer.remote != nullptr) return remote_name(*peer.remote);
    std::string who = "uid " + std::to_string(peer.uid);
    if (peer.role() != SocketRole::by_uid) {
      who += std::string(" on ") + socket_role_name(peer.role()) + " socket";
      if (!peer.socket->tenant.empty()) who += " of " + peer.socket->tenant;
    }
    return who + " (" + (client_name.empty() ? "unnamed" : client_name) + "[" + std::to_string(peer.pid) + "])";
  }

  Peers& peers;
  const PeerCredentials peer;
  int socket = -1;  // of the stream while it lives; -1: gone, or no socket
  std::string client_name;
  bool greeted = false;
  std::optional<TraceContext> trace = {};   // which its calls belong to, as it said
  std::shared_ptr<CallTrace> calling = {};  // of the call that is being looked at; null: it is not traced
  uint32_t calls = 0;                       // under way
  uint32_t pages = 0;                       // of them, those with answers of megabytes
  uint32_t waiting = 0;                     // grants in a queue: not among the calls
  uint32_t leases = 0;                      // capabilities alive
  uint64_t notices = 0;                     // that the peer has not taken
  std::set<EndsWithConnection*> parts;
  CarriedMemory carried;  // by answers that are not written yet

 private:
  std::string remote_name(const RemoteClient& remote) const {
    std::string who = "client " + remote.name + " as " + socket_role_name(remote.role);
    if (!remote.tenant.empty()) who += " of " + remote.tenant;
    return who + " from " + remote.address + " (" + (client_name.empty() ? "unnamed" : client_name) + ")";
  }

  kj::PromiseFulfillerPair<void> closing_;
};

// Counts something of a connection for as long as it lives.
template <uint32_t PeerConnection::*Counter>
class Counted {
 public:
  explicit Counted(PeerConnection& connection) : connection_(kj::addRef(connection)) {
    ++(connection_.get()->*Counter);
  }
  ~Counted() noexcept(false) {
    if (connection_.get() != nullptr) --(connection_.get()->*Counter);
  }
  PeerConnection* connection() { return connection_.get(); }  // null: moved from
  Counted(Counted&&) = default;
  Counted& operator=(Counted&&) = delete;

 private:
  kj::Own<PeerConnection> connection_;
};
using WaitingSlot = Counted<&PeerConnection::waiting>;

// A call under way: counted in its connection, and how long it took in Peers::call_times.
class CallSlot {
 public:
  // `method` lives as long as the program.
  CallSlot(PeerConnection& connection, std::string_view method)
      : counted_(connection),
        trace_(connection.peers.tracer() == nullptr
                   ? nullptr
                   : connection.peers.tracer()->begin(method, connection.trace)),
        times_(connection.peers.shared_call_times()),
        method_(method),
        began_ns_(SystemClock().now_ns()) {
    connection.calling = trace_;
  }
  ~CallSlot() noexcept(false) {
    if (PeerConnection* of = counted_.connection(); of != nullptr && of->calling == trace_)
      of->calling = nullptr;
    if (times_ != nullptr) (*times_)[method_].add(SystemClock().now_ns() - began_ns_);
  }
  CallSlot(CallSlot&&) = default;
  CallSlot& operator=(CallSlot&&) = delete;

  // Of this call; for who looks at it again when others may have come meanwhile.
  const std::shared_ptr<CallTrace>& trace() const { return trace_; }

 private:
  Counted<&PeerConnection::calls> counted_;
  std::shared_ptr<CallTrace> trace_;
  std::shared_ptr<Peers::CallTimes> times_;  // null: moved from
  std::string_view method_;
  uint64_t began_ns_;
};

}  // namespace terrace::daemon
