// SPDX-License-Identifier: Apache-2.0
#include "daemon/clients/clients.h"

#include <fcntl.h>
#include <kj/debug.h>
#include <sys/socket.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "daemon/clients/client_rights.h"
#include "daemon/log/log.h"
#include "daemon/tls/tls.h"

namespace terrace::daemon {
namespace {

// Refused peers that are still connected, each for a second.
constexpr uint32_t lingering_max = 16;

// A client that is gone without a word (a laptop's lid) gives its place back after this.
constexpr uint64_t silent_network_ns_max = 60 * ns_per_s;

// Waits for the end of a certificate are cut in pieces: the wall clock may be set.
constexpr int64_t look_at_clock_s = 60;

// For so long after its end a certificate is told of: somebody wonders why that client does not come any more.
constexpr int64_t ended_told_s = 7 * certificate_day_s;

// "10.0.0.9:51234" -> "10.0.0.9"
std::string without_port(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

// A few bytes, to whom nothing was sent before: they go out, or are of no use.
void answer_in_plain(const UniqueFd& peer, const std::string& answer) {
  if (answer.empty() || !peer.valid()) return;
  (void)::send(peer.get(), answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  ::shutdown(peer.get(), SHUT_WR);
}

Error no_entry(const std::string& why) {
  return Error{.code = ErrorCode::permission_denied, .where = "tls", .detail = why};
}

Error no_renewal(ErrorCode code, const std::string& why) {
  return Error{.code = code, .where = "renewCertificate", .detail = why};
}

}  // namespace

// A connection that was let in, until it ends.
struct Clients::Served {
  Served(Clients& all_in, std::shared_ptr<const RemoteClient> client_in)
      : all(all_in), client(std::move(client_in)), cut(kj::newPromiseAndFulfiller<void>()) {
    all.served_.insert(this);
  }
  ~Served() noexcept(false) { all.served_.erase(this); }
  KJ_DISALLOW_COPY(Served);

  Clients& all;
  const std::shared_ptr<const RemoteClient> client;
  kj::PromiseFulfillerPair<void> cut;
};

Clients::Clients(Service& service, Credentials& credentials, kj::Timer& timer)
    : service_(service),
      credentials_(credentials),
      timer_(timer),
      alive_(std::make_shared<Clients*>(this)),
      tasks_(*this) {
  credentials_.on_change([alive = std::weak_ptr<Clients*>(alive_)] {
    if (const auto clients = alive.lock()) (*clients)->close_revoked();
  });
  service_.health().tell_ends_of_clients([this] { return certificate_ends(); });
}

Clients::~Clients() noexcept(false) {
  service_.health().tell_ends_of_clients({});
  alive_.reset();
}

void Clients::log(const std::string& line) {
  service_.peer_log().warn(service_.now_ns(), line);
}

void Clients::taskFailed(kj::Exception&& exception) {
  log(std::string("a client's connection ended: ") + exception.getDescription().cStr());
}

void Clients::listen(kj::Own<kj::ConnectionReceiver> port, std::shared_ptr<const ServedSocket> socket,
                     PortProtocol protocol) {
  ports_.push_back({kj::mv(port), std::move(socket), std::move(protocol)});
  tasks_.add(accept_loop(ports_.back()));
}

// Never ends, whatever fails. Between two connections the loop looks at its descriptors: a full line of them does not
// keep it from hearing others.
kj::Promise<void> Clients::accept_loop(Port& port) {
  return kj::evalNow([&port] { return port.receiver->acceptAuthenticated(); })
      .then([this, &port](kj::AuthenticatedStream stream) {
        tasks_.add(greet(kj::mv(stream), port));
        return timer_.afterDelay(0 * kj::NANOSECONDS);
      })
      .catch_([this, &port](kj::Exception&& exception) {
        log("accepting clients at " + port.socket->path + " failed: " + exception.getDescription().cStr());
        return timer_.afterDelay(100 * kj::MILLISECONDS);
      })
      .then([this, &port] { return accept_loop(port); });
}

kj::Promise<void> Clients::greet(kj::AuthenticatedStream stream, const Port& port) {
  const std::string address = without_port(stream.peerIdentity->toString().cStr());
  std::string source;
  int own = -1;
  auto held = std::make_shared<UniqueFd>();
  KJ_IF_MAYBE (fd, stream.stream->getFd()) {
    set_keep_alive(*fd, silent_network_ns_max);
    source = source_of(*fd);
    own = *fd;
    held->reset(::fcntl(*fd, F_DUPFD_CLOEXEC, 0));
  }
  auto denied = std::make_shared<bool>(false);
  const auto refused = [this, &port, address, denied](const CertificateFacts& peer, const std::string& why) {
    *denied = true;
    deny(remote_client(peer, *port.socket, address), why);
  };
  return handshakes_
      .run(std::move(source), credentials_.accept(kj::mv(stream), refused, port.protocol.handshake_max))
      .then([this, &port, address, held, own](Shaken shaken) {
        held->reset();
        return serve(kj::mv(shaken), port, address, own);
      })
      .catch_([this, &port, address, held, denied](kj::Exception&& exception) {
        if (!*denied) refuse_stranger(port, address, tls_failure(exception));
        if (spoke_plain_http(exception)) answer_in_plain(*held, port.protocol.for_plain_http);
        return linger(held);
      });
}

// As Agents' does: closed at once, the kernel would take back the words that say why.
kj::Promise<void> Clients::linger(std::shared_ptr<UniqueFd> refused) {
  if (!refused->valid() || lingering_ >= lingering_max) return kj::READY_NOW;
  ++lingering_;
  return timer_.afterDelay(1 * kj::SECONDS).attach(kj::defer([this, refused] { --lingering_; }));
}

kj::Promise<void> Clients::serve(Shaken shaken, const Port& port, const std::string& address, int fd) {
  auto client = std::make_shared<RemoteClient>(remote_client(shaken.peer, *port.socket, address));
  client->number = number_of(client->name);
  if (!client->refused.empty()) {
    deny(*client, client->refused);  // it is served all the same, with just that answer
  } else {
    note_life(client->name, shaken.peer);
    client->renew = [alive = std::weak_ptr<Clients*>(alive_), known = *client,
                     newest = shaken.peer]() mutable -> Result<std::string> {
      if (const auto clients = alive.lock()) return (*clients)->renew(known, newest);
      return no_renewal(ErrorCode::unavailable, "this manager is ending");
    };
  }
  PeerCredentials peer;
  peer.uid = no_uid;
  peer.socket = port.socket;
  peer.remote = client;
  auto served = kj::heap<Served>(*this, client);
  auto ended =
      until_ended(shaken.peer.ends_s).then([this, client] { deny(*client, "its certificate has expired"); });
  auto cut = kj::mv(served->cut.promise);
  return port.protocol.serve(kj::mv(shaken.stream.stream), std::move(peer), fd)
      .exclusiveJoin(kj::mv(ended))
      .exclusiveJoin(kj::mv(cut))
      .attach(kj::mv(served));
}

kj::Promise<void> Clients::until_ended(int64_t ends_s) {
  const int64_t left_s = ends_s - std::time(nullptr);
  if (left_s <= 0) return kj::READY_NOW;
  return timer_.afterDelay(std::min(left_s, look_at_clock_s) * kj::SECONDS).then([this, ends_s] {
    return until_ended(ends_s);
  });
}

void Clients::close_revoked() {
  std::vector<Served*> revoked;
  for (Served* served : served_)
    if (credentials_.is_revoked(served->client->serial)) revoked.push_back(served);
  for (Served* served : revoked) {
    if (!served->cut.fulfiller->isWaiting()) continue;
    deny(*served->client, "its certificate was revoked");
    served->cut.fulfiller->fulfill();
  }
}

// `newest`: what this connection has, which what is made takes the place of. As of hosts' the certificate that is renewed
// stays good until its end; a list may have come since the handshake.
Result<std::string> Clients::renew(const RemoteClient& client, CertificateFacts& newest) {
  if (!renews_)
    return no_renewal(ErrorCode::unsupported,
                      "this manager renews no certificates of clients ([tls] renew_clients)");
  if (credentials_.is_revoked(client.serial) || credentials_.is_revoked(newest.serial)) {
    deny(client, "its certificate was revoked");
    return no_renewal(ErrorCode::permission_denied, "its certificate was revoked");
  }
  TERRACE_ASSIGN_OR_RETURN(std::string pem, credentials_.renew(newest));
  TERRACE_ASSIGN_OR_RETURN(newest, parse_facts(pem));
  note_life(client.name, newest);
  const std::string who = "client " + client.name;
  service_.engine().note("renew-certificate", who, "serial " + newest.serial,
                         Actor{.text = who + " from " + client.address, .administrator = false});
  log::info("the certificate of {} was renewed: {}", who, shown_certificate(newest));
  return pem;
}

uint32_t Clients::number_of(const std::string& name) {
  return numbers_.try_emplace(name, static_cast<uint32_t>(numbers_.size())).first->second;
}

void Clients::note_life(const std::string& client, const CertificateFacts& certificate) {
  Life& known = lives_[client];
  if (certificate.ends_s > known.ends_s)
    known = {.serial = certificate.serial, .begins_s = certificate.begins_s, .ends_s = certificate.ends_s};
}

std::vector<CertificateEnd> Clients::certificate_ends() {
  const int64_t now_s = std::time(nullptr);
  std::erase_if(lives_, [&](const auto& one) {
    return now_s - one.second.ends_s > ended_told_s || credentials_.is_revoked(one.second.serial);
  });
  std::vector<CertificateEnd> ends;
  for (const auto& [client, life] : lives_)
    ends.push_back({.what = "client",
                    .name = client,
                    .days_left = life.ends_s <= now_s ? -1 : days_left(life.ends_s, now_s),
                    .soon = ends_soon(life.begins_s, life.ends_s, now_s)});
  return ends;
}

// Whoever has a certificate of the CA is somebody: the audit log has what it was refused.
void Clients::deny(const RemoteClient& client, const std::string& why) {
  const std::string who = "client " + client.name + " from " + client.address;
  log(who + " (serial " + client.serial + ") was refused: " + why);
  PeerCredentials peer;
  peer.remote = std::make_shared<const RemoteClient>(client);
  service_.engine().note_denied("connection", service_.name_for_audit(peer), no_entry(why),
                                Actor{.text = who, .administrator = false});
}

// Anybody who reaches the port can cause these, as many as he likes: they are events, which are folded, and no rows of
// the audit log, which would push others' out.
void Clients::refuse_stranger(const Port& port, const std::string& address, const std::string& why) {
  log("a connection from " + address + " to " + port.socket->path + " was refused: " + why);
  Event event;
  event.kind = EventKind::call_denied;
  event.severity = EventSeverity::warning;
  event.code = error_code_name(ErrorCode::permission_denied);
  event.cause = "a stranger at " + port.socket->path;
  event.message = "denied connection: " + why;
  service_.engine().events().tell(std::move(event));
}

}  // namespace terrace::daemon
