// SPDX-License-Identifier: Apache-2.0
// The indexes over leases: what is due when, who has which label or key, how much everybody uses.
#include <algorithm>

#include "core/base/check.h"
#include "daemon/model/phases.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

LeaseRow& StateMachine::add_lease(LeaseRow lease) {
  TERRACE_CHECK(may_begin(lease.phase), "I14: no lease begins in this phase");
  index_lease(lease);
  LeaseRow* row = put_row(std::move(lease));
  TERRACE_CHECK(row != nullptr, "I5: the id of a new lease is another's");
  return *row;
}

LeaseRow* StateMachine::put_row(LeaseRow lease) {
  const LeaseId id = lease.id;
  const auto [at, added] = leases_.emplace(id, std::move(lease));
  if (!added) return nullptr;
  row_of_.emplace(id, &at->second);
  return &at->second;
}

void StateMachine::index_lease(const LeaseRow& lease) {
  account_.take(lease.extents);
  uint64_t bytes = 0;
  for (const Extent& extent : lease.extents)
    bytes += extent.granules * devices_.at(extent.device).granule_bytes;
  TERRACE_CHECK(bytes == lease.bytes || lease.phase == LeasePhase::waiting,
                "I4: the bytes of a lease are not those of its extents");
  index_.insert(lease);
  count_lease(lease, true);
}

void StateMachine::unindex_lease(const LeaseRow& lease) {
  account_.give(lease.extents);
  index_.remove(lease);
  count_lease(lease, false);
}

void StateMachine::settle_account() {
  account_.settle([this](DeviceId id) { return free_.at(id).free_granules(); });
}

void StateMachine::count_lease(const LeaseRow& lease, bool in) {
  const auto count = [in](uint64_t& counter, uint64_t by) {
    TERRACE_CHECK(in || counter >= by, "I10: a counter of use would fall below zero");
    TERRACE_CHECK(!in || counter <= UINT64_MAX - by, "I10: a counter of use would wrap");
    counter = in ? counter + by : counter - by;
  };
  PoolCounters& pool = pool_counters_[lease.pool];
  if (lease.phase == LeasePhase::waiting) {
    count(pool.waiting, 1);
    count(pool.waiting_bytes, lease.bytes);
    uint64_t& own = waiting_of_tenant_[lease.tenant];
    count(own, 1);
    if (own == 0) waiting_of_tenant_.erase(lease.tenant);
    return;
  }
  count(pool.leases, 1);
  switch (lease.phase) {
    case LeasePhase::fencing:
    case LeasePhase::scrubbing: count(pool.scrubbing_bytes, lease.bytes); return;
    case LeasePhase::quarantined: count(pool.quarantined_bytes, lease.bytes); return;
    default: count(pool.leased_bytes, lease.bytes);
  }
  if (is_move_target(lease.id)) return;
  TenantUse& use = tenant_use_[lease.tenant];
  count(use.bytes, lease.bytes);
  count(use.leases, 1);
  if (use.leases == 0) tenant_use_.erase(lease.tenant);
  uint64_t& there = tenant_bytes_[{lease.pool, lease.tenant}];
  count(there, lease.bytes);
  if (there == 0) tenant_bytes_.erase({lease.pool, lease.tenant});
}

// What nobody has of an absent device is not free: nobody could be given it.
void StateMachine::add_device_use(const DeviceRow& device, PoolUse& use) const {
  const ExtentMap& free = free_.at(device.id);
  const uint64_t free_bytes = free.free_granules() * device.granule_bytes;
  use.capacity_bytes += device.capacity_bytes;
  if (absent_.contains(device.id)) {
    use.absent_bytes += free_bytes;
    return;
  }
  use.free_bytes += free_bytes;
  if (placeable(device)) use.grantable_bytes += free_bytes;
  use.largest_free_bytes = std::max(use.largest_free_bytes, free.largest_run() * device.granule_bytes);
}

PoolUse StateMachine::pool_use(PoolId id) const {
  PoolUse use;
  for (const auto& [device_id, device] : devices_)
    if (device.pool == id) add_device_use(device, use);
  add_lease_use(id, use);
  return use;
}

std::map<PoolId, PoolUse> StateMachine::pool_uses() const {
  std::map<PoolId, PoolUse> uses;
  for (const auto& [id, pool] : pools_) uses.try_emplace(id);
  for (const auto& [id, device] : devices_)
    if (const auto at = uses.find(device.pool); at != uses.end()) add_device_use(device, at->second);
  for (auto& [id, use] : uses) add_lease_use(id, use);
  return uses;
}

void StateMachine::add_lease_use(PoolId id, PoolUse& use) const {
  if (const auto at = pool_counters_.find(id); at != pool_counters_.end()) {
    use.leased_bytes = at->second.leased_bytes;
    use.scrubbing_bytes = at->second.scrubbing_bytes;
    use.quarantined_bytes = at->second.quarantined_bytes;
    use.leases = at->second.leases;
    use.waiting = at->second.waiting;
    use.waiting_bytes = at->second.waiting_bytes;
  }
  for (const auto& [growth_lease, growth] : growths_) {
    const LeaseRow& lease = leases_.at(growth_lease);
    if (lease.pool == id) use.leased_bytes += growth.bytes - lease.bytes;
  }
  use.reserved_bytes = unfilled_of_others(id, "");
  use.reserved_bytes = std::min(use.reserved_bytes, use.grantable_bytes);
}

TenantUse StateMachine::tenant_use(const std::string& tenant) const {
  const auto at = tenant_use_.find(tenant);
  TenantUse use = at == tenant_use_.end() ? TenantUse{} : at->second;
  for (const auto& [id, growth] : growths_) {
    const LeaseRow& lease = leases_.at(id);
    if (lease.tenant == tenant) use.bytes += growth.bytes - lease.bytes;
  }
  return use;
}

uint64_t StateMachine::tenant_bytes_in(PoolId pool, const std::string& tenant) const {
  const auto at = tenant_bytes_.find({pool, tenant});
  return at == tenant_bytes_.end() ? 0 : at->second;
}

}  // namespace terrace::daemon
