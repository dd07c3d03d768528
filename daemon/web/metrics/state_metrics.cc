// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/metrics/state_metrics.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::daemon {
namespace {

using Kind = MetricsText::Kind;

void add_pools(MetricsText& out, const StateMachine& state) {
  std::vector<std::pair<std::string_view, PoolUse>> pools;
  for (const auto& [id, pool] : state.pools()) pools.emplace_back(pool.name, state.pool_use(id));
  const auto of_pools = [&](const char* name, const char* help, uint64_t PoolUse::*value) {
    out.family(name, Kind::gauge, help);
    for (const auto& [pool, use] : pools) out.sample(use.*value, {{"pool", pool}});
  };
  of_pools("terrace_pool_capacity_bytes", "All memory of a pool's devices.", &PoolUse::capacity_bytes);
  out.family("terrace_pool_bytes", Kind::gauge,
             "A pool's memory by what it is: free, leased, being scrubbed, or quarantined.");
  for (const auto& [pool, use] : pools) {
    out.sample(use.free_bytes, {{"pool", pool}, {"state", "free"}});
    out.sample(use.leased_bytes, {{"pool", pool}, {"state", "leased"}});
    out.sample(use.scrubbing_bytes, {{"pool", pool}, {"state", "scrubbing"}});
    out.sample(use.quarantined_bytes, {{"pool", pool}, {"state", "quarantined"}});
  }
  of_pools("terrace_pool_absent_bytes", "Nobody's, on devices that are not there; not among the free ones.",
           &PoolUse::absent_bytes);
  of_pools("terrace_pool_grantable_bytes", "Free on devices that are present and in service.",
           &PoolUse::grantable_bytes);
  of_pools("terrace_pool_reserved_bytes", "Of the free bytes, kept for tenants with reservations.",
           &PoolUse::reserved_bytes);
  of_pools("terrace_pool_largest_free_run_bytes", "The longest free run of a pool.",
           &PoolUse::largest_free_bytes);
  of_pools("terrace_pool_leases", "Leases of a pool, whatever their phase.", &PoolUse::leases);
  of_pools("terrace_pool_waiting_grants", "Grants in a pool's queue.", &PoolUse::waiting);
  of_pools("terrace_pool_waiting_bytes", "What the grants in a pool's queue ask for.", &PoolUse::waiting_bytes);
}

void add_devices(MetricsText& out, const StateMachine& state) {
  const auto of_devices = [&](const char* name, const char* help, auto value) {
    out.family(name, Kind::gauge, help);
    for (const auto& [id, device] : state.devices()) {
      const PoolRow* pool = state.find_pool(device.pool);
      out.sample(uint64_t{value(id, device)},
                 {{"device", device.serial}, {"pool", pool == nullptr ? std::string_view() : pool->name}});
    }
  };
  of_devices("terrace_device_capacity_bytes", "All memory of an adopted device.",
             [](DeviceId, const DeviceRow& device) { return device.capacity_bytes; });
  of_devices("terrace_device_used_bytes", "What leases have of a device, whatever their phases.",
             [&](DeviceId id, const DeviceRow& device) {
               return device.capacity_bytes - state.device_free_bytes(id);
             });
  of_devices("terrace_device_present", "Whether an adopted device is there.",
             [&](DeviceId id, const DeviceRow&) { return state.absent(id) ? 0u : 1u; });
  of_devices("terrace_device_draining", "Whether a device is being emptied.",
             [](DeviceId, const DeviceRow& device) { return device.state == DeviceState::draining ? 1u : 0u; });
  of_devices("terrace_device_failed", "Whether a device was given up.",
             [](DeviceId, const DeviceRow& device) { return device.state == DeviceState::failed ? 1u : 0u; });
}

void add_tenants(MetricsText& out, const StateMachine& state) {
  struct Tenant {
    std::string_view name;
    TenantUse use;
  };
  std::vector<Tenant> tenants;
  for (const auto& [name, use] : state.tenant_uses()) tenants.push_back({name, state.tenant_use(name)});
  std::sort(tenants.begin(), tenants.end(), [](const Tenant& left, const Tenant& right) {
    return left.use.bytes != right.use.bytes ? left.use.bytes > right.use.bytes : left.name < right.name;
  });
  const auto of_tenants = [&](const char* name, const char* help, uint64_t TenantUse::*value) {
    out.family(name, Kind::gauge, help);
    uint64_t others = 0;
    for (size_t i = 0; i < tenants.size(); ++i) {
      if (i < metrics_tenants_max)
        out.sample(tenants[i].use.*value, {{"tenant", tenants[i].name}});
      else
        others += tenants[i].use.*value;
    }
    if (tenants.size() > metrics_tenants_max) out.sample(others, {{"tenant", ""}});
  };
  out.gauge("terrace_tenants", "Tenants that have leases.", uint64_t{tenants.size()});
  of_tenants("terrace_tenant_bytes", "What a tenant has of all pools together; tenant \"\": all further ones.",
             &TenantUse::bytes);
  of_tenants("terrace_tenant_leases", "Leases of a tenant in all pools; tenant \"\": of all further ones.",
             &TenantUse::leases);
  out.family("terrace_quota_bytes", Kind::gauge,
             "The most that a tenant may have; \"*\": one without its own quota.");
  for (const auto& [name, quota] : state.quotas())
    if (quota.bytes_max != 0) out.sample(quota.bytes_max, {{"tenant", name}});
  out.family("terrace_quota_leases", Kind::gauge,
             "The most leases of a tenant; \"*\": of one without its own quota.");
  for (const auto& [name, quota] : state.quotas())
    if (quota.leases_max != 0) out.sample(quota.leases_max, {{"tenant", name}});
}

}  // namespace

void add_state(MetricsText& out, const StateMachine& state) {
  uint64_t leases = 0;
  for (const auto& [id, use] : state.pool_uses()) leases += use.leases;
  out.gauge("terrace_leases", "Leases of all pools, waiting grants not among them.", leases);
  add_pools(out, state);
  add_devices(out, state);
  add_tenants(out, state);
}

}  // namespace terrace::daemon
