// SPDX-License-Identifier: Apache-2.0
// Clients on other machines: TCP, then mutual TLS, then the same service that a unix socket gives, as the client's
// certificate and the socket say. Nothing is mapped over it: no descriptor goes through TCP.
//
// Bounds    Until it has shown a certificate a peer has one of a few places (Handshakes); after that, those of Peers, by
//           its certificate's name. A certificate that is revoked, or ends, ends its connections.
// Place     role_manager.cc makes one where [[sockets]] has `listen`; RpcServer serves what it lets in.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async-io.h>
#include <kj/timer.h>

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "daemon/rpc/connection/server.h"
#include "daemon/rpc/service.h"
#include "daemon/tls/credentials.h"
#include "daemon/tls/handshakes.h"

namespace terrace::daemon {

class Clients final : private kj::TaskSet::ErrorHandler {
 public:
  // All outlive it; `credentials` is watched by whoever made it.
  Clients(Service& service, RpcServer& server, Credentials& credentials, kj::Timer& timer);
  ~Clients() noexcept(false);
  KJ_DISALLOW_COPY(Clients);

  // Lets in whoever connects there, within what `socket` says.
  void listen(kj::Own<kj::ConnectionReceiver> port, std::shared_ptr<const ServedSocket> socket);

 private:
  struct Port {
    kj::Own<kj::ConnectionReceiver> receiver;
    std::shared_ptr<const ServedSocket> socket;
  };
  struct Served;

  kj::Promise<void> accept_loop(Port& port);
  kj::Promise<void> greet(kj::AuthenticatedStream stream, const Port& port);
  kj::Promise<void> serve(Shaken shaken, const Port& port, const std::string& address);
  kj::Promise<void> until_ended(int64_t ends_s);
  kj::Promise<void> linger(std::shared_ptr<UniqueFd> refused);
  void close_revoked();
  uint32_t number_of(const std::string& name);
  void deny(const RemoteClient& client, const std::string& why);
  void refuse_stranger(const Port& port, const std::string& address, const std::string& why);
  void log(const std::string& line);
  void taskFailed(kj::Exception&& exception) override;

  Service& service_;
  RpcServer& server_;
  Credentials& credentials_;
  kj::Timer& timer_;
  Handshakes handshakes_;
  std::list<Port> ports_;
  std::map<std::string, uint32_t> numbers_;  // of names in certificates, which the CA bounds
  std::set<Served*> served_;
  uint32_t lingering_ = 0;
  std::shared_ptr<Clients*> alive_;  // for what Credentials calls
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
