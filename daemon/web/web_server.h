// SPDX-License-Identifier: Apache-2.0
// A manager or an agent over HTTP: connections and requests. What is answered is its WebPages'.
//
// Place     The roles make one beside the RpcServer, on the same loop. On the unix socket a peer is known
//           by its uid, as at the RPC's main socket; over TLS by its certificate (daemon/clients); on plain TCP everybody
//           is an operator, who may look at everything, and that is why it is off unless the configuration says where
//           it listens.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async-io.h>
#include <kj/compat/http.h>

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "daemon/rpc/connection/turns.h"
#include "daemon/web/web_answer.h"

namespace terrace::daemon {

class WebServer final : private kj::TaskSet::ErrorHandler {
 public:
  // `peers`, `pages` and `turns` outlive it.
  WebServer(Peers& peers, WebPages& pages, kj::LowLevelAsyncIoProvider& io, kj::Timer& timer, Turns& turns);
  ~WebServer() noexcept;

  void listen_unix_socket(UniqueFd listener);
  // `address`: as the configuration says it, HOST:PORT.
  void listen_tcp(kj::Own<kj::ConnectionReceiver> receiver, const std::string& address);
  // Serves one that came over TLS, whose certificate was looked at: `peer.remote`. `fd`: of the connection, as long as
  // `stream` lives; -1: not known. Resolves when it is gone; to drop the promise closes it.
  kj::Promise<void> serve_remote(kj::Own<kj::AsyncIoStream> stream, PeerCredentials peer, int fd);
  // Peers may ask by the name in `address` (HOST:PORT) from now on.
  void answer_to(const std::string& address);
  // And by those in our certificate, which may be another one some day.
  void answer_to_certificate(const std::vector<std::string>& dns_names);

 private:
  struct Listener {
    kj::Own<kj::ConnectionReceiver> receiver;
    bool by_uid = true;
  };

  class Requests;

  kj::Promise<void> accept_loop(Listener& listener);
  void take(kj::AuthenticatedStream accepted, bool by_uid);
  kj::Promise<void> serve(kj::Own<kj::AsyncIoStream> stream, PeerCredentials peer, int fd);
  bool has_room(const PeerCredentials& peer, PeerKey key);
  // Whether a browser that was led here by a foreign page would not send this `Host`: it sends the page's name. An
  // address, or this machine's own name, is nobody else's.
  bool own_name(const std::string& host) const;
  void taskFailed(kj::Exception&& exception) override;

  Peers& peers_;
  WebPages& pages_;
  kj::LowLevelAsyncIoProvider& io_;
  kj::Timer& timer_;
  kj::HttpHeaderTable::Builder header_names_;
  kj::HttpHeaderId content_policy_, sniffing_, caching_, allow_, etag_, encoding_, vary_, accepted_, known_,
      origin_, fetch_site_, fetch_dest_, action_;
  kj::Own<kj::HttpHeaderTable> headers_;
  std::shared_ptr<const ServedSocket> tcp_role_;
  std::set<std::string> names_, certified_names_;  // by which peers may ask
  uint32_t connections_ = 0;
  std::map<PeerKey, uint32_t> connections_of_;
  std::list<Listener> listeners_;
  Turns& turns_;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
