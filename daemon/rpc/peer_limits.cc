// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/peer_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "daemon/log/log.h"

namespace terrace::daemon {

namespace {

constexpr PeerKey key_of_authority = PeerKey{1} << 63;
constexpr PeerKey key_of_remote = PeerKey{1} << 62;

std::string socket_text(const ServedSocket& socket) {
  const std::string role = std::string("has the role ") + socket_role_name(socket.role);
  return "the socket " + socket.path + " " +
         (socket.tenant.empty() ? role : role + " of " + socket.tenant + " only");
}

}  // namespace

Authority Peers::authority_of(const PeerCredentials& peer) const {
  switch (peer.role()) {
    case SocketRole::by_uid:
      return identities_of(peer).admin_uids.contains(peer.uid) ? Authority::administrator : Authority::none;
    case SocketRole::tenant: return Authority::none;
    case SocketRole::oversight: return Authority::oversight;
    case SocketRole::administrator: return Authority::administrator;
  }
  return Authority::none;
}

PeerKey Peers::key_of(const PeerCredentials& peer) const {
  const bool reserved = authority_of(peer) != Authority::none;
  if (peer.remote != nullptr) return (reserved ? key_of_authority : 0) | key_of_remote | peer.remote->number;
  if (reserved) return key_of_authority | peer.uid;
  const bool one_tenant = peer.socket != nullptr && !peer.socket->tenant.empty();
  return one_tenant ? (PeerKey{peer.socket->number} + 1) << 32 : PeerKey{peer.uid};
}

Error Peers::refused_authority(const PeerCredentials& peer, Authority needed, const char* what) const {
  std::string detail;
  const char* wanted = needed == Authority::administrator ? "administrator" : "operator or administrator";
  if (peer.remote != nullptr) {
    detail = "client " + peer.remote->name + " has the role " + socket_role_name(peer.role()) + " at " +
             peer.socket->path + " (the lesser of its certificate's and the socket's), and " + what +
             " needs the role " + wanted +
             "; use another certificate (`terrace cert client`), or a socket that gives more ([[sockets]])";
  } else if (peer.role() == SocketRole::by_uid) {
    detail =
        peer.text() +
        " is no administrator here; list it under admin_uids in the daemon's configuration, or connect to a "
        "socket whose role makes one of it ([[sockets]] there)";
  } else {
    detail =
        socket_text(*peer.socket) + ", whatever the caller's uid, and " + what + " needs the role " + wanted +
        "; connect to a socket that has it, or change the roles in the daemon's configuration ([[sockets]])";
  }
  return Error{.code = ErrorCode::permission_denied, .where = what, .detail = std::move(detail)};
}

Status Peers::may_act_for(const PeerCredentials& peer, const std::string& tenant) const {
  if (is_admin(peer)) return {};
  const auto own = tenant_of(peer);
  if (own == tenant) return {};
  std::string detail;
  if (peer.remote != nullptr) {
    detail = "the certificate of client " + peer.remote->name +
             (own.has_value() ? " is tenant " + *own + "'s, not " + tenant + "'s" : " names no tenant") +
             "; use one that does (`terrace cert client --tenant`)";
  } else if (!own.has_value()) {
    detail = peer.text() + " has no tenant here; map it under [tenants] in the daemon's configuration";
  } else if (peer.socket != nullptr && !peer.socket->tenant.empty()) {
    detail = socket_text(*peer.socket) + ", whatever the caller's uid, and not of " + tenant +
             "; connect to another socket, or change it in the daemon's configuration ([[sockets]])";
  } else {
    detail = peer.text() + " is tenant " + *own + ", not " + tenant;
  }
  return Error{.code = ErrorCode::permission_denied, .where = "openSession", .detail = std::move(detail)};
}

std::optional<std::string> Peers::tenant_of(const PeerCredentials& peer) const {
  if (peer.remote != nullptr) {
    return peer.remote->tenant.empty() ? std::nullopt : std::optional<std::string>(peer.remote->tenant);
  }
  if (peer.socket != nullptr && !peer.socket->tenant.empty()) return peer.socket->tenant;
  const PeerIdentities& known = identities_of(peer);
  if (const auto at = known.tenants.find(peer.uid); at != known.tenants.end()) return at->second;
  if (known.allow_unmapped_uids || is_admin(peer)) return "uid-" + std::to_string(peer.uid);
  return std::nullopt;
}

std::string Peers::name_for_audit(const PeerCredentials& peer) const {
  if (auto tenant = tenant_of(peer)) return *tenant;
  return peer.remote == nullptr ? "uid-" + std::to_string(peer.uid) : "client:" + peer.remote->name;
}

bool Peers::names_tenant(const std::string& tenant) const {
  for (const auto& [uid, mapped] : peer_options_.tenants)
    if (mapped == tenant) return true;
  for (const auto& socket : peer_options_.sockets)
    if (socket->tenant == tenant && !tenant.empty()) return true;
  constexpr std::string_view prefix = "uid-";
  if (!tenant.starts_with(prefix)) return false;
  uint32_t uid = 0;
  const char* end = tenant.data() + tenant.size();
  const auto read = std::from_chars(tenant.data() + prefix.size(), end, uid);
  return read.ec == std::errc{} && read.ptr == end && tenant_of({.uid = uid, .pid = 0}) == tenant;
}

void tell_connections(const Peers& peers) {
  const PeerOptions& options = peers.peer_options();
  if (peers.connections_allowed() >= options.connections_max) return;
  log::warn(
      "{} files may be open (RLIMIT_NOFILE): {} connections at once instead of {}; raise it (LimitNOFILE=) to "
      "{}",
      options.descriptors_max, peers.connections_allowed(), options.connections_max,
      2 * uint64_t{options.connections_max} + limits::descriptors_own);
}

uint64_t raise_descriptors_allowed() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t most = std::max<rlim_t>(limit.rlim_max, limits::descriptors_wanted);
  const rlimit wanted{most, most};
  if (::setrlimit(RLIMIT_NOFILE, &wanted) == 0) return most;
  limit.rlim_cur = limit.rlim_max;  // without the right to more
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : limit.rlim_max;
}

uint32_t Peers::connections_allowed() const {
  const uint64_t all = peer_options_.descriptors_max;
  if (all == 0) return peer_options_.connections_max;
  const uint64_t left = all > limits::descriptors_own ? all - limits::descriptors_own : 0;
  return static_cast<uint32_t>(
      std::min<uint64_t>(peer_options_.connections_max, std::max<uint64_t>(left / 2, 4)));
}

uint64_t Peers::open_memory_max() const {
  const uint64_t all = peer_options_.descriptors_max;
  if (all == 0) return UINT32_MAX;
  const uint64_t others = limits::descriptors_own + limits::descriptors_reserved + connections_allowed();
  return all > others ? all - others : 1;
}

Status Peers::may_open_memory(const PeerCredentials& peer) const {
  if (authority_of(peer) != Authority::none) return {};
  const uint64_t most = open_memory_max();
  const auto at = open_of_.find(key_of(peer));
  const uint32_t of_uid = at == open_of_.end() ? 0 : *at->second;
  if (*open_of_all_ < most && of_uid < std::max<uint64_t>(most / 4, 1)) return {};
  return Error{.code = ErrorCode::limit_exceeded,
               .where = "attach",
               .detail = std::to_string(of_uid) + " answers with memory are on their way to " + peer.text() +
                         ", " + std::to_string(*open_of_all_) + " to all; take them, then ask again"};
}

std::shared_ptr<HandedMemory> Peers::hand(const PeerCredentials& peer, std::shared_ptr<const UniqueFd> memory) {
  if (memory == nullptr) return nullptr;
  std::erase_if(open_of_, [](const auto& entry) { return *entry.second == 0; });
  auto& of_uid = open_of_[key_of(peer)];
  if (of_uid == nullptr) of_uid = std::make_shared<uint32_t>(0);
  const bool reserved = authority_of(peer) != Authority::none;
  const auto of_all = reserved ? std::make_shared<uint32_t>(0) : open_of_all_;
  return std::make_shared<HandedMemory>(std::move(memory), OpenCounts{of_uid, of_all});
}

bool Peers::connection_opened(const PeerCredentials& peer) {
  const PeerKey key = key_of(peer);
  const auto at = connections_of_.find(key);
  const uint32_t of_uid = at == connections_of_.end() ? 0 : at->second;
  const uint32_t most = connections_allowed();
  if (authority_of(peer) == Authority::none) {
    const uint32_t reserved = std::min(limits::rpc_connections_reserved, most / 2);
    const uint32_t share = std::max(1u, most / limits::rpc_connections_uid_share);
    if (of_uid >= share || connections_ + reserved >= most) return false;
  } else if (connections_ >= most) {
    return false;
  }
  ++connections_of_[key];
  ++connections_;
  return true;
}

void Peers::connection_closed(const PeerCredentials& peer) {
  --connections_;
  const auto at = connections_of_.find(key_of(peer));
  if (at != connections_of_.end() && --at->second == 0) connections_of_.erase(at);
}

void Peers::answer_taken(PeerKey key, uint64_t bytes) {
  const auto at = unwritten_bytes_.find(key);
  if (at != unwritten_bytes_.end() && (at->second -= std::min(at->second, bytes)) == 0)
    unwritten_bytes_.erase(at);
}

Status Peers::may_look(const PeerCredentials& peer) {
  const auto at = looks_.find(key_of(peer));
  if (at == looks_.end()) return {};
  const uint64_t now = now_ns();
  if (at->second.paid_until_ns <= now) {
    looks_.erase(at);
    return {};
  }
  if (at->second.paid_until_ns - now <= ns_per_s) return {};
  return Error{.code = ErrorCode::limit_exceeded,
               .where = "may_look",
               .detail = peer.text() + " has had more leases looked through than " +
                         std::to_string(peer_options_.rows_looked_at_per_s) +
                         " a second; ask less often, and for several leases at once"};
}

void Peers::looked_at(const PeerCredentials& peer, uint64_t rows) {
  if (authority_of(peer) != Authority::none) return;
  uint64_t& paid_until_ns = looks_[key_of(peer)].paid_until_ns;
  paid_until_ns = std::max(paid_until_ns, now_ns()) + rows * ns_per_s / peer_options_.rows_looked_at_per_s;
}

uint64_t Peers::unwritten_bytes(PeerKey key) const {
  const auto at = unwritten_bytes_.find(key);
  return at == unwritten_bytes_.end() ? 0 : at->second;
}

}  // namespace terrace::daemon
