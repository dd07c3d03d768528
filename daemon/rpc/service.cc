#include "daemon/rpc/service.h"

#include <algorithm>
#include <vector>

namespace terrace::daemon {

Service::Service(Engine& engine, ServiceOptions options)
    : engine_(engine), options_(std::move(options)), started_ns_(engine.now_ns()) {
  engine_.set_notifier(this);
}

Service::~Service() {
  engine_.set_notifier(nullptr);
}

std::optional<std::string> Service::tenant_of(const PeerCredentials& peer) const {
  if (const auto at = options_.tenants.find(peer.uid); at != options_.tenants.end()) return at->second;
  if (options_.allow_unmapped_uids || is_admin(peer)) return "uid-" + std::to_string(peer.uid);
  return std::nullopt;
}

Status Service::may_hold(const LeaseRow& lease, ObjectAccess access, const HolderListener& listener) const {
  if (lease.mode == LeaseMode::shared_coherent) return {};
  const auto [begin, end] = holders_.equal_range(lease.id);
  for (auto at = begin; at != end; ++at) {
    const Holder& other = at->second;
    if (other.listener == &listener || (other.listener->pid() == listener.pid() && listener.pid() != 0))
      continue;  // 0: of another pid namespace
    const bool both_write = access == ObjectAccess::read_write && other.access == ObjectAccess::read_write;
    if (lease.mode == LeaseMode::shared_read_only && !both_write) continue;
    return Error{.code = ErrorCode::busy,
                 .where = "attach",
                 .detail = "lease " + std::to_string(lease.id.value) + " is held by process " +
                           std::to_string(other.listener->pid()) +
                           (lease.mode == LeaseMode::exclusive
                                ? " and exclusive; grant it in a shared mode to hold it more than once"
                                : ", which writes it; attach it read-only")};
  }
  return {};
}

void Service::add_holder(LeaseId lease, ObjectAccess access, HolderListener& listener) {
  const auto [begin, end] = holders_.equal_range(lease);
  for (auto at = begin; at != end; ++at) {
    if (at->second.listener != &listener) continue;
    if (access == ObjectAccess::read_write) at->second.access = access;
    return;
  }
  holders_.emplace(lease, Holder{&listener, access});
}

void Service::remove_listener(HolderListener& listener) {
  std::erase_if(holders_, [&](const auto& entry) { return entry.second.listener == &listener; });
}

void Service::revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) {
  const auto [begin, end] = holders_.equal_range(lease);
  std::vector<HolderListener*> listeners;
  for (auto at = begin; at != end; ++at) listeners.push_back(at->second.listener);
  for (HolderListener* listener : listeners) listener->revoking(lease, grace_ns, reason);
}

bool Service::move_requested(LeaseId, const std::string&) {
  return false;
}

void Service::fenced(LeaseId lease, const std::string& reason, LeaseCause) {
  const auto [begin, end] = holders_.equal_range(lease);
  std::vector<HolderListener*> listeners;
  for (auto at = begin; at != end; ++at) listeners.push_back(at->second.listener);
  holders_.erase(lease);
  memory_.erase({lease, ObjectAccess::read_only});
  memory_.erase({lease, ObjectAccess::read_write});
  usage_.erase(lease.value);
  for (HolderListener* listener : listeners) listener->fenced(lease, reason);
}

Result<SharedFd> Service::open_memory(const LeaseRow& lease, ObjectAccess access) {
  std::weak_ptr<const UniqueFd>& known = memory_[{lease.id, access}];
  if (SharedFd shared = known.lock()) return shared;
  TERRACE_ASSIGN_OR_RETURN(UniqueFd opened, engine_.backend().open(lease.object, access));
  SharedFd shared = std::make_shared<const UniqueFd>(std::move(opened));
  known = shared;
  return shared;
}

bool Service::connection_opened(const PeerCredentials& peer) {
  uint32_t& of_uid = connections_of_uid_[peer.uid];
  if (!is_admin(peer)) {
    const uint32_t reserved = std::min(limits::rpc_connections_reserved, options_.connections_max / 2);
    const uint32_t share = std::max(1u, options_.connections_max / limits::rpc_connections_uid_share);
    if (of_uid >= share || connections_ + reserved >= options_.connections_max) return false;
  } else if (connections_ >= options_.connections_max) {
    return false;
  }
  ++of_uid;
  ++connections_;
  return true;
}

void Service::connection_closed(const PeerCredentials& peer) {
  --connections_;
  const auto at = connections_of_uid_.find(peer.uid);
  if (at != connections_of_uid_.end() && --at->second == 0) connections_of_uid_.erase(at);
}

void Service::report_usage(LeaseId lease, ReportedUsage usage) {
  usage.reported_ns = engine_.now_ns();
  usage_[lease.value] = std::move(usage);
}

const ReportedUsage* Service::usage_of(LeaseId lease) const {
  const auto at = usage_.find(lease.value);
  return at == usage_.end() ? nullptr : &at->second;
}

}  // namespace terrace::daemon
