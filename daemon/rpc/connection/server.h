// SPDX-License-Identifier: Apache-2.0
// Accepts connections on the unix sockets of a manager or an agent: authenticates each by the kernel
// (SO_PEERCRED), bounds what it may send, and serves it until it goes away. What comes over TLS is accepted elsewhere
// (daemon/clients) and served here, under the same bounds. A bad message costs its own
// connection only, and so does not taking what was asked for. Descriptors that a peer sends along are dropped
// by the kernel: nothing here wants any.
//
// Threads   The event loop's thread only.
#pragma once

#include <capnp/capability.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/function.h>

#include <list>
#include <memory>
#include <set>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/rpc/connection/ready_sockets.h"
#include "daemon/rpc/connection/turns.h"
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
  // What a connection is before its peer has said anything: a place among those of its uid, and a deadline.
  struct Arrival;

  RpcServer(Peers& peers, Host host, kj::AsyncIoContext& io);
  // For a manager.
  RpcServer(Service& service, kj::AsyncIoContext& io);

  // Serves whoever connects there, as `socket` says.
  void listen(UniqueFd listener, std::shared_ptr<const ServedSocket> socket);
  // Serves one already connected stream; resolves when it is gone. Also the way in for tests and fuzzing.
  kj::Promise<void> serve(kj::Own<kj::AsyncCapabilityStream> stream, PeerCredentials peer);
  // The same for one that came over TLS, whose certificate was looked at: `peer.remote`. It carries no descriptors. To
  // drop the promise closes it.
  kj::Promise<void> serve_remote(kj::Own<kj::AsyncIoStream> stream, PeerCredentials peer);
  // For whoever answers these peers elsewhere: what a uid asks over HTTP is of the same share.
  Turns& turns() { return turns_; }

 private:
  // One for each socket: a full backlog of one holds up none of the others.
  struct Listener {
    Listener(kj::UnixEventPort& port, UniqueFd fd_in, std::shared_ptr<const ServedSocket> socket_in);
    UniqueFd fd;
    kj::UnixEventPort::FdObserver observer;
    std::shared_ptr<const ServedSocket> socket;
  };
  enum class Backlog { empty, more, failed };

  bool count_in(const PeerCredentials& peer);
  kj::Promise<void> accept_loop(Listener& listener);
  Backlog accept_some(const Listener& listener);
  kj::Promise<void> after_failure(const Listener& listener);
  void take(UniqueFd accepted, const Listener& listener);
  kj::Promise<void> until_it_speaks(kj::Own<Arrival> arrival);
  kj::Promise<void> run(kj::Own<Arrival> arrival);
  kj::Promise<void> sweep_loop();
  void log(const std::string& line);
  void taskFailed(kj::Exception&& exception) override;

  Peers& peers_;
  Host host_;
  kj::UnixEventPort& port_;
  kj::Timer& timer_;
  Turns turns_;
  ReadySockets sockets_;
  UniqueFd spare_;
  std::set<ServedConnection*> served_;
  std::list<Listener> listeners_;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
