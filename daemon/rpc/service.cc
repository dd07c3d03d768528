#include "daemon/rpc/service.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>

namespace terrace::daemon {

Service::Service(Engine& engine, ServiceOptions options)
    : engine_(engine),
      options_(std::move(options)),
      started_ns_(engine.now_ns()),
      waiting_grants_(engine),
      tasks_(*this) {
  engine_.set_notifier(this);
}

Service::~Service() noexcept {
  engine_.set_notifier(nullptr);
}

void Service::taskFailed(kj::Exception&& exception) {
  spdlog::error("a command of the RPC layer failed: {}", exception.getDescription().cStr());
}

std::optional<std::string> Service::tenant_of(const PeerCredentials& peer) const {
  if (const auto at = options_.tenants.find(peer.uid); at != options_.tenants.end()) return at->second;
  if (options_.allow_unmapped_uids || is_admin(peer)) return "uid-" + std::to_string(peer.uid);
  return std::nullopt;
}

// --- who holds what -----------------------------------------------------------------------------------

namespace {

// Whether a drain or a compaction wants the lease elsewhere and its move is under way. Asked for movable leases
// of such devices and pools only: it looks at every lease.
bool moved_by_the_manager(const StateMachine& state, const LeaseRow& lease) {
  if (!lease.movable) return false;
  const bool draining = std::any_of(lease.extents.begin(), lease.extents.end(), [&state](const Extent& extent) {
    const DeviceRow* device = state.find_device(extent.device);
    return device != nullptr && device->state == DeviceState::draining;
  });
  if (!draining && state.compaction_of(lease.pool) == nullptr) return false;
  const std::vector<WantedMove> wanted = state.moves_wanted();
  return std::any_of(wanted.begin(), wanted.end(), [&lease](const WantedMove& move) {
    return move.lease == lease.id && move.target.valid();
  });
}

}  // namespace

Status Service::may_hold(const LeaseRow& lease, ObjectAccess access, const HolderListener& listener) const {
  const auto moving = moving_.find(lease.id);
  if (moving != moving_.end() ? moving->second != &listener
                              : engine_.is_moving(lease.id) || moved_by_the_manager(engine_.state(), lease)) {
    return Error{
        .code = ErrorCode::busy,
        .where = "attach",
        .detail = "lease " + std::to_string(lease.id.value) + " is being moved; try again in a moment"};
  }
  return holders_.may_hold(lease, access, listener);
}

void Service::revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) {
  for (HolderListener* listener : holders_.of(lease)) listener->revoking(lease, grace_ns, reason);
}

void Service::fenced(LeaseId lease, const std::string& reason, LeaseCause cause) {
  usage_.erase(lease.value);
  for (HolderListener* listener : holders_.take_all(lease)) listener->fenced(lease, reason, cause);
}

void Service::epoch_stepped(const LeaseRow& lease, const std::string& reason, LeaseCause cause,
                            HolderListener* keeper) {
  for (HolderListener* listener : holders_.take_outdated(lease, keeper))
    listener->fenced(lease.id, reason, cause);
}

Result<SharedFd> Service::open_memory(const LeaseRow& lease, ObjectAccess access) {
  return open_object(lease.object, access);
}

Result<SharedFd> Service::open_object(const std::string& object, ObjectAccess access) {
  const MemoryCache::key_type key{object, access};
  if (const auto known = memory_->find(key); known != memory_->end())
    if (SharedFd shared = known->second.lock()) return shared;
  TERRACE_ASSIGN_OR_RETURN(UniqueFd opened, engine_.backend().open(object, access));
  const std::weak_ptr<MemoryCache> cache = memory_;
  SharedFd shared(new UniqueFd(std::move(opened)), [cache, key](const UniqueFd* fd) {
    if (const auto entries = cache.lock()) {
      const auto at = entries->find(key);
      if (at != entries->end() && at->second.expired()) entries->erase(at);
    }
    delete fd;
  });
  (*memory_)[key] = shared;
  return shared;
}

void Service::submit_unasked(Command command, Actor actor) {
  tasks_.add(engine_.submit(std::move(command), std::move(actor)).ignoreResult());
}

void Service::report_usage(LeaseId lease, ReportedUsage usage) {
  usage.reported_ns = engine_.now_ns();
  usage_[lease.value] = std::move(usage);
}

const ReportedUsage* Service::usage_of(LeaseId lease) const {
  const auto at = usage_.find(lease.value);
  return at == usage_.end() ? nullptr : &at->second;
}

const std::vector<FreeClass>& Service::free_classes(PoolId pool) {
  constexpr size_t runs_always_fresh = 4096;
  constexpr uint64_t stale_ns = 200 * ns_per_ms;
  const StateMachine& state = engine_.state();
  size_t runs = 0;
  for (const auto& [id, device] : state.devices())
    if (device.pool == pool) runs += state.free_of(id).runs().size();
  FreeClasses& known = free_classes_[pool];
  const uint64_t now_ns = engine_.now_ns();
  if (runs > runs_always_fresh && known.made_ns != 0 && now_ns - known.made_ns < stale_ns) return known.classes;
  std::map<uint64_t, FreeClass> by_min;
  for (const auto& [id, device] : state.devices()) {
    if (device.pool != pool) continue;
    for (const auto& [first, count] : state.free_of(id).runs()) {
      const uint64_t bytes = count * device.granule_bytes;
      FreeClass& found = by_min[std::bit_floor(bytes)];
      found.run_bytes_min = std::bit_floor(bytes);
      ++found.runs;
      found.bytes += bytes;
    }
  }
  known.classes.clear();
  for (const auto& [min, found] : by_min) known.classes.push_back(found);
  known.made_ns = now_ns;
  return known.classes;
}

// --- how much each uid takes --------------------------------------------------------------------------

bool Service::connection_opened(const PeerCredentials& peer) {
  const auto at = connections_of_uid_.find(peer.uid);
  const uint32_t of_uid = at == connections_of_uid_.end() ? 0 : at->second;
  if (!is_admin(peer)) {
    const uint32_t reserved = std::min(limits::rpc_connections_reserved, options_.connections_max / 2);
    const uint32_t share = std::max(1u, options_.connections_max / limits::rpc_connections_uid_share);
    if (of_uid >= share || connections_ + reserved >= options_.connections_max) return false;
  } else if (connections_ >= options_.connections_max) {
    return false;
  }
  ++connections_of_uid_[peer.uid];
  ++connections_;
  return true;
}

void Service::connection_closed(const PeerCredentials& peer) {
  --connections_;
  const auto at = connections_of_uid_.find(peer.uid);
  if (at != connections_of_uid_.end() && --at->second == 0) connections_of_uid_.erase(at);
}

void Service::answer_taken(uint32_t uid, uint64_t bytes) {
  const auto at = unwritten_bytes_.find(uid);
  if (at != unwritten_bytes_.end() && (at->second -= std::min(at->second, bytes)) == 0)
    unwritten_bytes_.erase(at);
}

Status Service::may_look(const PeerCredentials& peer) {
  const auto at = looks_.find(peer.uid);
  if (at == looks_.end()) return {};
  const uint64_t now_ns = engine_.now_ns();
  if (at->second.paid_until_ns <= now_ns) {
    looks_.erase(at);
    return {};
  }
  if (at->second.paid_until_ns - now_ns <= ns_per_s) return {};
  return Error{.code = ErrorCode::limit_exceeded,
               .where = "may_look",
               .detail = "uid " + std::to_string(peer.uid) + " has had more leases looked through than " +
                         std::to_string(options_.rows_looked_at_per_s) +
                         " a second; ask less often, and for several leases at once"};
}

void Service::looked_at(const PeerCredentials& peer, uint64_t rows) {
  if (is_admin(peer)) return;
  uint64_t& paid_until_ns = looks_[peer.uid].paid_until_ns;
  paid_until_ns = std::max(paid_until_ns, engine_.now_ns()) + rows * ns_per_s / options_.rows_looked_at_per_s;
}

uint64_t Service::unwritten_bytes(uint32_t uid) const {
  const auto at = unwritten_bytes_.find(uid);
  return at == unwritten_bytes_.end() ? 0 : at->second;
}

}  // namespace terrace::daemon
