// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/service.h"

#include <algorithm>
#include <bit>

#include "daemon/log/log.h"
#include "daemon/rpc/ended_holders.h"

namespace terrace::daemon {

Service::Service(Engine& engine, ServiceOptions options)
    : Peers(options),
      engine_(engine),
      options_(std::move(options)),
      started_ns_(engine.now_ns()),
      waiting_grants_(engine),
      litmus_runs_(engine, {options_.host, options_.object_directory}),
      ended_holders_(kj::heap<EndedHolders>(
          *this, engine.timer(), options_.state_file.empty() ? "" : options_.state_file + "-holders")),
      health_(*this, {options_.health, options_.state_file, options_.memdev_health}),
      event_waiters_(engine_.events(), engine_.timer()),
      tasks_(*this) {
  engine_.set_notifier(this);
}

Service::~Service() noexcept {
  engine_.set_notifier(nullptr);
}

void Service::taskFailed(kj::Exception&& exception) {
  log::error("a command of the RPC layer failed: {}", exception.getDescription().cStr());
}

// --- who holds what -----------------------------------------------------------------------------------

Status Service::may_hold(const LeaseRow& lease, ObjectAccess access, const HolderListener& listener) const {
  const auto moving = moving_.find(lease.id);
  if (moving != moving_.end() && moving->second != &listener) {
    return Error{
        .code = ErrorCode::busy,
        .where = "attach",
        .detail = "lease " + std::to_string(lease.id.value) + " is being moved; try again in a moment"};
  }
  return holders_.may_hold(lease, access, listener);
}

void Service::revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) {
  for (HolderListener* listener : holders_.of(lease)) listener->revoking(lease, grace_ns, reason);
  ended_holders_->revoking(lease);
}

kj::Promise<std::set<LeaseId>> Service::nobody_has(std::set<LeaseId> leases) {
  return ended_holders_->nobody_has(leases);
}

void Service::fenced(LeaseId lease, const std::string& reason, LeaseCause cause) {
  usage_.erase(lease.value);
  ended_holders_->forget(lease);
  for (HolderListener* listener : holders_.take_all(lease)) listener->fenced(lease, reason, cause);
}

void Service::epoch_stepped(const LeaseRow& lease, const std::string& reason, LeaseCause cause,
                            HolderListener* keeper) {
  for (HolderListener* listener : holders_.take_outdated(lease, keeper))
    listener->fenced(lease.id, reason, cause);
}

Result<SharedFd> Service::open_memory(const std::string& object, ObjectAccess access) {
  TERRACE_RETURN_IF_ERROR(engine_.backend().hand_out(object));
  return open_object(object, access);
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
    if (device.pool == pool && !state.absent(id)) runs += state.free_of(id).runs().size();
  FreeClasses& known = free_classes_[pool];
  const uint64_t now_ns = engine_.now_ns();
  if (runs > runs_always_fresh && known.made_ns != 0 && now_ns - known.made_ns < stale_ns) return known.classes;
  std::map<uint64_t, FreeClass> by_min;
  for (const auto& [id, device] : state.devices()) {
    if (device.pool != pool || state.absent(id)) continue;
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

bool Service::pins_outlast(const PoolRow* pool) const {
  if (pool == nullptr || pool->trust == TenantTrust::mutual) return false;
  for (const auto& [id, device] : engine_.state().devices())
    if (device.pool == pool->id && engine_.backend().attributes(device.serial).fence == Fence::trusting)
      return true;
  return false;
}

// What does not exist, or is asked for by another, is the state machine's to refuse.
Status Service::place_transfer(Transfer& request) const {
  const LeaseRow* lease = engine_.state().find_lease(request.lease);
  if (lease != nullptr) request.pins_outlast = pins_outlast(engine_.state().find_pool(lease->pool));
  if (hosts_ == nullptr || lease == nullptr) return {};
  if (!request.tenant.empty() && lease->tenant != request.tenant) return {};
  TERRACE_ASSIGN_OR_RETURN(request.to_agent, hosts_->agent_for(*lease, request.to_host, request.to_tenant));
  return {};
}

void Service::handed_over(const LeaseRow& lease) {
  ended_holders_->forget(lease.id);
  epoch_stepped(lease, "handed to " + lease.tenant + " on " + lease.host, LeaseCause::revoked, nullptr);
}

Status Service::place_accepted(AcceptOffer& request) const {
  const LeaseRow* lease = engine_.state().find_lease(request.lease);
  const auto offer = engine_.state().offers().find(request.lease);
  if (lease != nullptr) request.pins_outlast = pins_outlast(engine_.state().find_pool(lease->pool));
  if (hosts_ == nullptr || lease == nullptr || offer == engine_.state().offers().end() ||
      offer->second.to_tenant != request.tenant)
    return {};
  TERRACE_ASSIGN_OR_RETURN(request.to_agent, hosts_->agent_for(*lease, offer->second.to_host, request.tenant));
  return {};
}

bool Service::knows_tenant(const std::string& tenant) const {
  if (names_tenant(tenant) || (hosts_ != nullptr && hosts_->names_tenant(tenant))) return true;
  const StateMachine& state = engine_.state();
  if (tenant != "*" && state.quotas().contains(tenant)) return true;
  for (const auto& [id, reservation] : state.reservations())
    if (reservation.tenant == tenant) return true;
  return state.tenant_use(tenant).leases != 0;
}

}  // namespace terrace::daemon
