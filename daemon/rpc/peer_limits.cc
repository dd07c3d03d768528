#include "daemon/rpc/peer_limits.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

namespace terrace::daemon {

std::optional<std::string> Peers::tenant_of(const PeerCredentials& peer) const {
  if (const auto at = peer_options_.tenants.find(peer.uid); at != peer_options_.tenants.end())
    return at->second;
  if (peer_options_.allow_unmapped_uids || is_admin(peer)) return "uid-" + std::to_string(peer.uid);
  return std::nullopt;
}

bool Peers::names_tenant(const std::string& tenant) const {
  for (const auto& [uid, mapped] : peer_options_.tenants)
    if (mapped == tenant) return true;
  constexpr std::string_view prefix = "uid-";
  if (!tenant.starts_with(prefix)) return false;
  uint32_t uid = 0;
  const char* end = tenant.data() + tenant.size();
  const auto read = std::from_chars(tenant.data() + prefix.size(), end, uid);
  return read.ec == std::errc{} && read.ptr == end && tenant_of({.uid = uid, .pid = 0}) == tenant;
}

bool Peers::connection_opened(const PeerCredentials& peer) {
  const auto at = connections_of_uid_.find(peer.uid);
  const uint32_t of_uid = at == connections_of_uid_.end() ? 0 : at->second;
  if (!is_admin(peer)) {
    const uint32_t reserved = std::min(limits::rpc_connections_reserved, peer_options_.connections_max / 2);
    const uint32_t share = std::max(1u, peer_options_.connections_max / limits::rpc_connections_uid_share);
    if (of_uid >= share || connections_ + reserved >= peer_options_.connections_max) return false;
  } else if (connections_ >= peer_options_.connections_max) {
    return false;
  }
  ++connections_of_uid_[peer.uid];
  ++connections_;
  return true;
}

void Peers::connection_closed(const PeerCredentials& peer) {
  --connections_;
  const auto at = connections_of_uid_.find(peer.uid);
  if (at != connections_of_uid_.end() && --at->second == 0) connections_of_uid_.erase(at);
}

void Peers::answer_taken(uint32_t uid, uint64_t bytes) {
  const auto at = unwritten_bytes_.find(uid);
  if (at != unwritten_bytes_.end() && (at->second -= std::min(at->second, bytes)) == 0)
    unwritten_bytes_.erase(at);
}

Status Peers::may_look(const PeerCredentials& peer) {
  const auto at = looks_.find(peer.uid);
  if (at == looks_.end()) return {};
  const uint64_t now = now_ns();
  if (at->second.paid_until_ns <= now) {
    looks_.erase(at);
    return {};
  }
  if (at->second.paid_until_ns - now <= ns_per_s) return {};
  return Error{.code = ErrorCode::limit_exceeded,
               .where = "may_look",
               .detail = "uid " + std::to_string(peer.uid) + " has had more leases looked through than " +
                         std::to_string(peer_options_.rows_looked_at_per_s) +
                         " a second; ask less often, and for several leases at once"};
}

void Peers::looked_at(const PeerCredentials& peer, uint64_t rows) {
  if (is_admin(peer)) return;
  uint64_t& paid_until_ns = looks_[peer.uid].paid_until_ns;
  paid_until_ns = std::max(paid_until_ns, now_ns()) + rows * ns_per_s / peer_options_.rows_looked_at_per_s;
}

uint64_t Peers::unwritten_bytes(uint32_t uid) const {
  const auto at = unwritten_bytes_.find(uid);
  return at == unwritten_bytes_.end() ? 0 : at->second;
}

}  // namespace terrace::daemon
