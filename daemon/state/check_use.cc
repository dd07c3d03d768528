// SPDX-License-Identifier: Apache-2.0
// I10: the counters of use against the rows, each added up anew; and where compactions are.
#include <map>

#include "daemon/state/state_machine.h"

namespace terrace::daemon {

std::vector<std::string> StateMachine::check_use() const {
  std::vector<std::string> problems;
  std::map<PoolId, PoolCounters> pools;
  std::map<std::string, TenantUse> tenants;
  std::map<std::pair<PoolId, std::string>, uint64_t> there;
  for (const auto& [id, lease] : leases_) {
    PoolCounters& pool = pools[lease.pool];
    if (lease.phase == LeasePhase::waiting) {
      ++pool.waiting;
      pool.waiting_bytes += lease.bytes;
      continue;
    }
    ++pool.leases;
    const bool going = lease.phase == LeasePhase::fencing || lease.phase == LeasePhase::scrubbing;
    if (going) {
      pool.scrubbing_bytes += lease.bytes;
    } else if (lease.phase == LeasePhase::quarantined) {
      pool.quarantined_bytes += lease.bytes;
    } else {
      pool.leased_bytes += lease.bytes;
      if (is_move_target(id)) continue;
      ++tenants[lease.tenant].leases;
      tenants[lease.tenant].bytes += lease.bytes;
      there[{lease.pool, lease.tenant}] += lease.bytes;
    }
  }
  for (const auto& [id, counters] : pool_counters_) pools.try_emplace(id);  // one left at zero is right
  for (const auto& [id, expected] : pools) {
    const auto kept = pool_counters_.find(id);
    if ((kept == pool_counters_.end() ? PoolCounters{} : kept->second) == expected) continue;
    problems.push_back("I10: the counters of pool " + std::to_string(id.value) + " differ from its leases");
  }
  const auto same_use = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.bytes == b.second.bytes && a.second.leases == b.second.leases;
  };
  if (!std::equal(tenants.begin(), tenants.end(), tenant_use_.begin(), tenant_use_.end(), same_use))
    problems.push_back("I10: the counters of tenants differ from their leases");
  if (there != tenant_bytes_) problems.push_back("I10: the bytes of tenants in pools differ from their leases");

  for (const auto& [pool, plan] : compactions_) {
    const DeviceRow* device = find_device(plan.device);
    const bool holds = device != nullptr && device->pool == pool && plan.window.count > 0 &&
                       plan.window.first + plan.window.count <= device->capacity_bytes / device->granule_bytes;
    if (!holds) problems.push_back("I10: pool " + std::to_string(pool.value) + " has a compaction elsewhere");
  }
  return problems;
}

}  // namespace terrace::daemon
