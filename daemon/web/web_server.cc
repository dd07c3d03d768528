// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/web_server.h"

#include <kj/debug.h>
#include <poll.h>

#include <cctype>
#include <utility>

#include "core/identity/machine_name.h"
#include "daemon/log/log.h"
#include "daemon/web/request_guard.h"

namespace terrace::daemon {
namespace {

// Of one uid, of one client's certificate, or of all who come over plain TCP. A browser opens six.
constexpr uint32_t web_connections_max = 32;
// Of all: descriptors of the manager's are for leases first.
constexpr uint32_t web_connections_all_max = 96;
// Of them, for operators and administrators: there are many tenants, each with its connections.
constexpr uint32_t web_connections_reserved = 32;
constexpr kj::Duration web_write_max = 30 * kj::SECONDS;

constexpr const char* read_only_over_tcp =
    "over plain TCP nobody is known, and nothing can be changed; use the manager's unix socket (`ssh -L "
    "9464:/run/terrace/http.sock`), or HTTPS with a certificate ([[sockets]] with protocol = \"https\")";

PeerCredentials credentials_of(kj::AuthenticatedStream& accepted) {
  PeerCredentials peer;
  peer.uid = UINT32_MAX;  // nobody
  if (auto* local = dynamic_cast<kj::LocalPeerIdentity*>(accepted.peerIdentity.get())) {
    const auto credentials = local->getCredentials();
    KJ_IF_MAYBE (uid, credentials.uid) peer.uid = *uid;
    KJ_IF_MAYBE (pid, credentials.pid) peer.pid = *pid;
  }
  return peer;
}

// Whether the other end has closed or ended its half: what it still would read nobody knows.
bool is_gone(int fd) {
  pollfd one{fd, POLLRDHUP, 0};
  return fd >= 0 && ::poll(&one, 1, 0) == 1 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// "node1:9464" -> "node1".
std::string name_in(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

// The requests of one connection.
class WebServer::Requests final : public kj::HttpService {
 public:
  // `fd`: of the connection, which outlives this; -1: not known.
  Requests(WebServer& server, PeerCredentials peer, PeerKey key, int fd)
      : server_(server), peer_(std::move(peer)), key_(key), fd_(fd) {}

  kj::Promise<void> request(kj::HttpMethod method, kj::StringPtr url, const kj::HttpHeaders& headers,
                            kj::AsyncInputStream& body, Response& response) override {
    Asked asked{.method = method, .path = std::string(url.begin(), url.size())};
    const auto read = [&headers](kj::HttpHeaderId name, std::string& text) {
      KJ_IF_MAYBE (found, headers.get(name)) text.assign(found->begin(), found->size());
    };
    read(kj::HttpHeaderId::HOST, asked.headers.host);
    read(kj::HttpHeaderId::CONTENT_TYPE, asked.headers.content_type);
    read(server_.accepted_, asked.accepted);
    read(server_.known_, asked.known);
    read(server_.origin_, asked.headers.origin);
    read(server_.fetch_site_, asked.headers.fetch_site);
    read(server_.fetch_dest_, asked.headers.fetch_dest);
    read(server_.action_, asked.headers.action);
    asked.headers.secure = peer_.remote != nullptr;
    return server_.turns_.turn(key_).then([this, asked = std::move(asked), &body, &response]() mutable {
      return answer(std::move(asked), body, response);
    });
  }

 private:
  struct Asked {
    kj::HttpMethod method;
    std::string path, accepted = {}, known = {};
    ActHeaders headers = {};
  };

  kj::Promise<void> answer(Asked asked, kj::AsyncInputStream& body, Response& response) {
    // Also at the unix socket: what ssh forwards of it is a port that a browser reaches.
    if (!server_.own_name(asked.headers.host))
      return send(response,
                  web_refusal(421, ErrorCode::permission_denied, "ask by this machine's name or address"));
    // TLS has no words for it: its handshake ended well.
    if (peer_.remote != nullptr && !peer_.remote->refused.empty())
      return send(response, web_refusal(403, ErrorCode::permission_denied, peer_.remote->refused));
    const bool posted = server_.pages_.takes(web_place(asked.path));
    if (posted && asked.method == kj::HttpMethod::POST)
      return server_.pages_
          .take(peer_, {.path = std::move(asked.path),
                        .headers = std::move(asked.headers),
                        .body = body,
                        .turn = [this] { return server_.turns_.turn(key_); },
                        .gone = [fd = fd_] { return is_gone(fd); }})
          .then([this, &response](WebAnswer answer) { return send(response, std::move(answer)); });
    const bool head = asked.method == kj::HttpMethod::HEAD;
    if (posted || (asked.method != kj::HttpMethod::GET && !head)) {
      WebAnswer answer =
          web_refusal(405, ErrorCode::unsupported,
                      posted ? "this changes something: use POST" : "only GET: nothing can be changed here");
      answer.allowed = posted ? "POST" : "GET, HEAD";
      return send(response, std::move(answer));
    }
    if (const std::string why = why_not_shown(asked.headers); !why.empty())
      return send(response, web_refusal(403, ErrorCode::permission_denied, why), head);
    return server_.pages_.answer(peer_, asked.path, {asked.accepted, asked.known})
        .then([this, head, &response](WebAnswer answer) { return send(response, std::move(answer), head); });
  }

  kj::Promise<void> send(Response& response, WebAnswer answer, bool head = false) {
    auto text = kj::heap<std::string>(std::move(answer.body));
    kj::HttpHeaders headers(*server_.headers_);
    headers.set(kj::HttpHeaderId::CONTENT_TYPE, kj::str(answer.type.c_str()));
    headers.set(
        server_.content_policy_,
        kj::str(answer.policy.empty() ? "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
                                      : answer.policy.c_str()));
    headers.set(server_.sniffing_, "nosniff");
    // What has a tag is asked for again with it each time: another version of the program has another one.
    headers.set(server_.caching_, answer.etag.empty() ? "no-store" : "no-cache");
    if (!answer.etag.empty()) {
      headers.set(server_.etag_, kj::str(answer.etag.c_str()));
      headers.set(server_.vary_, "Accept-Encoding");
    }
    if (answer.gzip) headers.set(server_.encoding_, "gzip");
    if (!answer.location.empty()) headers.set(kj::HttpHeaderId::LOCATION, kj::str(answer.location.c_str()));
    if (!answer.allowed.empty()) headers.set(server_.allow_, kj::str(answer.allowed.c_str()));
    auto out = response.send(answer.status, answer.status < 400 ? "OK" : "Refused", headers, text->size());
    if (head || text->empty()) return kj::READY_NOW;
    auto written = out->write(text->data(), text->size());
    // One that asks and takes nothing would keep the answer, and its place, for good.
    auto stalled = server_.timer_.afterDelay(web_write_max).then([]() -> kj::Promise<void> {
      return KJ_EXCEPTION(DISCONNECTED, "it takes no answer");
    });
    return written.attach(kj::mv(out), kj::mv(text)).exclusiveJoin(kj::mv(stalled));
  }

  WebServer& server_;
  const PeerCredentials peer_;
  const PeerKey key_;
  const int fd_;
};

WebServer::WebServer(Peers& peers, WebPages& pages, kj::LowLevelAsyncIoProvider& io, kj::Timer& timer,
                     Turns& turns)
    : peers_(peers),
      pages_(pages),
      io_(io),
      timer_(timer),
      content_policy_(header_names_.add("Content-Security-Policy")),
      sniffing_(header_names_.add("X-Content-Type-Options")),
      caching_(header_names_.add("Cache-Control")),
      allow_(header_names_.add("Allow")),
      etag_(header_names_.add("ETag")),
      encoding_(header_names_.add("Content-Encoding")),
      vary_(header_names_.add("Vary")),
      accepted_(header_names_.add("Accept-Encoding")),
      known_(header_names_.add("If-None-Match")),
      origin_(header_names_.add("Origin")),
      fetch_site_(header_names_.add("Sec-Fetch-Site")),
      fetch_dest_(header_names_.add("Sec-Fetch-Dest")),
      action_(header_names_.add(action_header)),
      headers_(header_names_.build()),
      tcp_role_(std::make_shared<const ServedSocket>(
          ServedSocket{"http", SocketRole::oversight, "", 0, read_only_over_tcp})),
      names_{"localhost", lower_case(machine_name())},
      turns_(turns),
      tasks_(*this) {}

WebServer::~WebServer() noexcept = default;

void WebServer::listen_unix_socket(UniqueFd listener) {
  auto receiver = io_.wrapListenSocketFd(listener.release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                                                 kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                                                                 kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
  listeners_.push_back({kj::mv(receiver), true});
  tasks_.add(accept_loop(listeners_.back()));
}

void WebServer::listen_tcp(kj::Own<kj::ConnectionReceiver> receiver, const std::string& address) {
  answer_to(address);
  listeners_.push_back({kj::mv(receiver), false});
  tasks_.add(accept_loop(listeners_.back()));
}

// Never ends: whatever fails, as for want of descriptors, accepting is tried again.
kj::Promise<void> WebServer::accept_loop(Listener& listener) {
  return kj::evalNow([&listener] { return listener.receiver->acceptAuthenticated(); })
      .then([this, &listener](kj::AuthenticatedStream accepted) {
        take(kj::mv(accepted), listener.by_uid);
        return turns_.look();  // one that connects without end does not keep the loop from hearing others
      })
      .catch_([this](kj::Exception&&) { return timer_.afterDelay(100 * kj::MILLISECONDS); })
      .then([this, &listener] { return accept_loop(listener); });
}

void WebServer::take(kj::AuthenticatedStream accepted, bool by_uid) {
  PeerCredentials peer = credentials_of(accepted);
  const auto& sockets = peers_.peer_options().sockets;
  if (!by_uid)
    peer.socket = tcp_role_;
  else if (!sockets.empty())
    peer.socket = sockets.front();
  int fd = -1;
  KJ_IF_MAYBE (own, accepted.stream->getFd()) fd = *own;
  tasks_.add(serve(kj::mv(accepted.stream), std::move(peer), fd));
}

kj::Promise<void> WebServer::serve_remote(kj::Own<kj::AsyncIoStream> stream, PeerCredentials peer, int fd) {
  peer.identities = peers_.identities();
  return serve(kj::mv(stream), std::move(peer), fd);
}

void WebServer::answer_to(const std::string& address) {
  names_.insert(lower_case(name_in(address)));
}

void WebServer::answer_to_certificate(const std::vector<std::string>& dns_names) {
  certified_names_ = {dns_names.begin(), dns_names.end()};
}

bool WebServer::has_room(const PeerCredentials& peer, PeerKey key) {
  const auto at = connections_of_.find(key);
  if (at != connections_of_.end() && at->second >= web_connections_max) return false;
  const bool reserved = peers_.authority_of(peer) != Authority::none;
  return connections_ < web_connections_all_max - (reserved ? 0 : web_connections_reserved);
}

kj::Promise<void> WebServer::serve(kj::Own<kj::AsyncIoStream> stream, PeerCredentials peer, int fd) {
  const PeerKey key = peers_.key_of(peer);
  if (!has_room(peer, key)) {
    peers_.peer_log().warn(peers_.now_ns(), peer.text() + ": HTTP connection closed, too many are open");
    return kj::READY_NOW;
  }
  ++connections_;
  ++connections_of_[key];
  auto counted = kj::defer([this, key] {
    --connections_;
    if (--connections_of_[key] == 0) connections_of_.erase(key);
  });
  auto requests = kj::heap<Requests>(*this, std::move(peer), key, fd);
  auto server = kj::heap<kj::HttpServer>(timer_, *headers_, *requests);
  auto served = server->listenHttp(kj::mv(stream));
  return served
      .catch_([](kj::Exception&&) {})  // a peer that went away, or spoke something else
      .attach(kj::mv(server), kj::mv(requests), kj::mv(counted));
}

bool WebServer::own_name(const std::string& host) const {
  const std::string name = lower_case(name_in(host));
  const bool address = host.starts_with('[') || name.find_first_not_of("0123456789.") == std::string::npos;
  return address || names_.contains(name) || certified_names_.contains(name);
}

void WebServer::taskFailed(kj::Exception&& exception) {
  log::warn("http: {}", exception.getDescription().cStr());
}

}  // namespace terrace::daemon
