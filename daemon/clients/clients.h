// SPDX-License-Identifier: Apache-2.0
// Clients on other machines: TCP, then mutual TLS, then the same service that a unix socket gives, RPC or HTTP, as the
// client's certificate and the socket say. Nothing is mapped over it: no descriptor goes through TCP.
//
// Bounds    Until it has shown a certificate a peer has one of a few places (Handshakes); after that, those of Peers, by
//           its certificate's name. A certificate that is revoked, or ends, ends its connections.
// Place     role_manager.cc makes one where [[sockets]] has `listen`; a server of the port's protocol serves whom it lets in.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async-io.h>
#include <kj/timer.h>

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/model/certificate_end.h"
#include "daemon/rpc/service.h"
#include "daemon/tls/credentials.h"
#include "daemon/tls/handshakes.h"

namespace terrace::daemon {

// What is spoken at a port.
struct PortProtocol {
  // Serves a peer that was let in until it is gone; to drop the promise closes it. `fd`: of the connection, as long as
  // the stream lives; -1: not known.
  std::function<kj::Promise<void>(kj::Own<kj::AsyncIoStream> stream, PeerCredentials peer, int fd)> serve;
  kj::Duration handshake_max = 5 * kj::SECONDS;
  std::string for_plain_http = {};  // what a request of HTTP without TLS is answered with; empty: nothing
};

class Clients final : private kj::TaskSet::ErrorHandler {
 public:
  // All outlive it; `credentials` is watched by whoever made it.
  Clients(Service& service, Credentials& credentials, kj::Timer& timer);
  ~Clients() noexcept(false);
  KJ_DISALLOW_COPY(Clients);

  // Lets in whoever connects there, within what `socket` says.
  void listen(kj::Own<kj::ConnectionReceiver> port, std::shared_ptr<const ServedSocket> socket,
              PortProtocol protocol);

  // From now on who is connected may have its certificate renewed, where `credentials` can.
  void renew_certificates() { renews_ = true; }

  // When the certificates end with which clients came since the start: of each name the one that ends last. One that
  // was revoked is left out, and one that ended a week ago.
  std::vector<CertificateEnd> certificate_ends();

 private:
  struct Port {
    kj::Own<kj::ConnectionReceiver> receiver;
    std::shared_ptr<const ServedSocket> socket;
    PortProtocol protocol;
  };
  struct Served;
  struct Life {  // of a certificate
    std::string serial;
    int64_t begins_s = 0, ends_s = 0;
  };

  kj::Promise<void> accept_loop(Port& port);
  kj::Promise<void> greet(kj::AuthenticatedStream stream, const Port& port);
  kj::Promise<void> serve(Shaken shaken, const Port& port, const std::string& address, int fd);
  kj::Promise<void> until_ended(int64_t ends_s);
  kj::Promise<void> linger(std::shared_ptr<UniqueFd> refused);
  void close_revoked();
  Result<std::string> renew(const RemoteClient& client, CertificateFacts& newest);
  uint32_t number_of(const std::string& name);
  void note_life(const std::string& client, const CertificateFacts& certificate);
  void deny(const RemoteClient& client, const std::string& why);
  void refuse_stranger(const Port& port, const std::string& address, const std::string& why);
  void log(const std::string& line);
  void taskFailed(kj::Exception&& exception) override;

  Service& service_;
  Credentials& credentials_;
  kj::Timer& timer_;
  Handshakes handshakes_;
  std::list<Port> ports_;
  std::map<std::string, uint32_t> numbers_;  // of names in certificates, which the CA bounds
  std::map<std::string, Life> lives_;        // the same names
  std::set<Served*> served_;
  uint32_t lingering_ = 0;
  bool renews_ = false;
  std::shared_ptr<Clients*> alive_;  // for what Credentials calls
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
