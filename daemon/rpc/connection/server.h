// Accepts connections on the unix sockets of a manager or an agent: authenticates each by the kernel
// (SO_PEERCRED), bounds what it may send, and serves it until it goes away. A bad message costs its own
// connection only, and so does not taking what was asked for. Descriptors that a peer sends along are dropped
// by the kernel: nothing here wants any.
//
// Threads   The event loop's thread only.
#pragma once

#include <capnp/capability.h>
#include <kj/async-io.h>
#include <kj/function.h>

#include <list>
#include <memory>
#include <set>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/rpc/peer_connection.h"
#include "daemon/rpc/service.h"

namespace terrace::daemon {

struct ServedConnection;

class RpcServer final : private kj::TaskSet::ErrorHandler {
 public:
  // What a peer gets: its connection, as whoever serves it knows it, and its first capability.
  struct Welcome {
    kj::Own<PeerConnection> connection;
    capnp::Capability::Client bootstrap;
  };
  using Host = kj::Function<Welcome(PeerCredentials)>;

  RpcServer(Peers& peers, Host host, kj::LowLevelAsyncIoProvider& io, kj::Timer& timer);
  // For a manager.
  RpcServer(Service& service, kj::LowLevelAsyncIoProvider& io, kj::Timer& timer);

  // Serves whoever connects there, as `socket` says.
  void listen(UniqueFd listener, std::shared_ptr<const ServedSocket> socket);
  // Serves one already connected stream; resolves when it is gone. Also the way in for tests and fuzzing.
  kj::Promise<void> serve(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer);

 private:
  // One for each socket: a full backlog of one holds up none of the others.
  struct Listener {
    kj::Own<kj::ConnectionReceiver> receiver;
    std::shared_ptr<const ServedSocket> socket;
  };

  kj::Promise<void> accept_loop(Listener& listener);
  kj::Promise<void> sweep_loop();
  void take(kj::AuthenticatedStream accepted, const Listener& listener);
  kj::Promise<void> run(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer);
  void log(const std::string& line);
  void taskFailed(kj::Exception&& exception) override;

  Peers& peers_;
  Host host_;
  kj::LowLevelAsyncIoProvider& io_;
  kj::Timer& timer_;
  UniqueFd spare_;
  std::set<ServedConnection*> served_;
  std::list<Listener> listeners_;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
