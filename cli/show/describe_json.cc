#include <nlohmann/json.hpp>

#include "cli/show/describe.h"
#include "cli/show/describe_inventory.h"

namespace terrace::cli {

using nlohmann::json;

json to_json(const LeaseStatus& lease) {
  json extents = json::array();
  for (const ExtentInfo& extent : lease.extents) {
    extents.push_back({{"device", extent.device},
                       {"offset_bytes", extent.offset_bytes},
                       {"length_bytes", extent.length_bytes}});
  }
  json usage = nullptr;
  if (!lease.usage.holder.empty()) {
    usage = {{"holder", lease.usage.holder},
             {"ddr_bytes", lease.usage.ddr_bytes},
             {"cxl_bytes", lease.usage.cxl_bytes},
             {"live_bytes", lease.usage.live_bytes},
             {"age_ns", lease.usage_age_ns}};
  }
  json owners = json::array();
  for (const PartOwner& owner : lease.owners) {
    owners.push_back({{"part", owner.part},
                      {"epoch", owner.epoch},
                      {"owned", owner.owned},
                      {"ended", owner.ended},
                      {"pid", owner.owned ? json(owner.pid) : json(nullptr)},
                      {"holder", owner.owned ? json(owner.holder) : json(nullptr)}});
  }
  const bool persistent = lease.ttl_ns == 0;
  return {{"id", lease.id.value},
          {"epoch", lease.epoch.value},
          {"pool", lease.pool},
          {"tenant", lease.tenant},
          {"host", lease.host},
          {"label", lease.label},
          {"mode", mode_name(lease.mode)},
          {"phase", lease.phase},
          {"cause", lease.cause == LeaseCause::none ? json(nullptr) : json(lease_cause_name(lease.cause))},
          {"reason", lease.reason},
          {"bytes", lease.bytes},
          {"granule_bytes", lease.granule_bytes},
          {"movable", lease.movable},
          {"holders", lease.holders},
          {"persistent", persistent},
          {"ttl_ns", lease.ttl_ns},
          {"expires_in_ns", persistent ? json(nullptr) : json(lease.expires_in_ns)},
          {"tier", lease.tier},
          {"isolation", lease.isolation},
          {"figures", to_json(lease.figures)},
          {"object", lease.object},
          {"object_bytes", lease.measured ? json(lease.object_bytes) : json(nullptr)},
          {"huge_pages", lease.huge_pages},
          {"extents", extents},
          {"coherence", memory_coherence_name(lease.coherence)},
          {"owners", owners},
          {"usage", usage}};
}

json to_json(const PoolInfo& pool) {
  json classes = json::array();
  for (const FreeRuns& runs : pool.free_runs)
    classes.push_back({{"run_bytes_min", runs.run_bytes_min}, {"runs", runs.runs}, {"bytes", runs.bytes}});
  return {{"name", pool.name},
          {"devices", pool.devices},
          {"placement", placement_name(pool.placement)},
          {"stripe_bytes", pool.placement == PoolPlacement::striped ? json(pool.stripe_bytes) : json(nullptr)},
          {"coherence", memory_coherence_name(pool.coherence)},
          {"figures", to_json(pool.figures)},
          {"capacity_bytes", pool.capacity_bytes},
          {"free_bytes", pool.free_bytes},
          {"grantable_bytes", pool.grantable_bytes},
          {"leased_bytes", pool.leased_bytes},
          {"scrubbing_bytes", pool.scrubbing_bytes},
          {"quarantined_bytes", pool.quarantined_bytes},
          {"reserved_bytes", pool.reserved_bytes},
          {"largest_free_bytes", pool.largest_free_bytes},
          {"free_runs", classes},
          {"granule_bytes", pool.granule_bytes},
          {"waiting", pool.waiting},
          {"waiting_bytes", pool.waiting_bytes},
          {"leases", pool.leases}};
}

json to_json(const DeviceStatus& device) {
  return {{"serial", device.serial},
          {"backend", device.backend},
          {"pool", device.pool},
          {"state", device.adopted ? json(device.state) : json(nullptr)},
          {"adopted", device.adopted},
          {"present", device.present},
          {"capacity_bytes", device.capacity_bytes},
          {"free_bytes", device.free_bytes},
          {"largest_free_bytes", device.largest_free_bytes},
          {"used_bytes", device.used_bytes},
          {"leases", device.leases},
          {"granule_bytes", device.granule_bytes},
          {"tier", to_json(device.tier)},
          {"contents", device.contents.empty() ? json(nullptr) : json(device.contents)},
          {"detail", device.detail}};
}

json to_json(const ServerStatus& server) {
  return {{"version", server.version},
          {"pid", server.pid},
          {"uptime_ns", server.uptime_ns},
          {"boot_id", server.boot_id},
          {"runtime_directory", server.runtime_directory},
          {"state_file", server.state_file},
          {"object_directory", server.object_directory},
          {"huge_pages", server.huge_pages},
          {"store_commits", server.store_commits},
          {"commands_applied", server.commands_applied},
          {"connections", server.connections},
          {"scrubbed_bytes", server.scrubbed_bytes},
          {"scrub_queued_bytes", server.scrub_queued_bytes},
          {"scrub_bytes_per_s", server.scrub_bytes_per_s == 0 ? json(nullptr) : json(server.scrub_bytes_per_s)},
          {"waiting", server.waiting},
          {"recovered", server.recovered},
          {"failpoints", server.failpoints}};
}

json to_json(const MoveStatus& move) {
  return {{"lease", move.lease.value}, {"tenant", move.tenant}, {"label", move.label},
          {"bytes", move.bytes},       {"state", move.state},   {"blocked", move.blocked}};
}

json to_json(const DrainProgress& progress) {
  return {{"device", to_json(progress.device)},
          {"left_bytes", progress.left_bytes},
          {"moves", to_json_list(progress.moves)}};
}

json to_json(const CompactionStatus& compaction) {
  const bool placed = !compaction.device.empty();
  return {{"active", compaction.active},
          {"device", placed ? json(compaction.device) : json(nullptr)},
          {"offset_bytes", placed ? json(compaction.offset_bytes) : json(nullptr)},
          {"length_bytes", placed ? json(compaction.length_bytes) : json(nullptr)},
          {"left_bytes", compaction.left_bytes},
          {"moves", to_json_list(compaction.moves)}};
}

json to_json(const QuotaStatus& quota) {
  const bool everybody = quota.tenant == "*";
  return {{"tenant", quota.tenant},
          {"bytes_max", quota.bytes_max == 0 ? json(nullptr) : json(quota.bytes_max)},
          {"leases_max", quota.leases_max == 0 ? json(nullptr) : json(quota.leases_max)},
          {"bytes", everybody ? json(nullptr) : json(quota.bytes)},
          {"leases", everybody ? json(nullptr) : json(quota.leases)}};
}

json to_json(const ReservationStatus& reservation) {
  const bool lasting = reservation.ttl_ns == 0;
  return {{"id", reservation.id},
          {"pool", reservation.pool},
          {"tenant", reservation.tenant},
          {"bytes", reservation.bytes},
          {"used_bytes", reservation.used_bytes},
          {"ttl_ns", reservation.ttl_ns},
          {"expires_in_ns", lasting ? json(nullptr) : json(reservation.expires_in_ns)}};
}

json to_json(const AuditRecord& entry) {
  return {{"sequence", entry.sequence}, {"wall_ns", entry.wall_ns}, {"actor", entry.actor},
          {"tenant", entry.tenant},     {"verb", entry.verb},       {"subject", entry.subject},
          {"detail", entry.detail}};
}

json to_json(const FindingStatus& finding) {
  return {{"severity", finding.severity},
          {"subject", finding.subject},
          {"what", finding.what},
          {"repair", finding.repair}};
}

}  // namespace terrace::cli
