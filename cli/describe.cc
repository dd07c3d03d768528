#include "cli/describe.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace terrace::cli {

using nlohmann::json;

namespace {

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

std::string percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return std::to_string(static_cast<uint64_t>(100.0 * static_cast<double>(part) / static_cast<double>(whole))) +
         "%";
}

std::string describe_extent(const ExtentInfo& extent) {
  return extent.device + " at " + format_size(extent.offset_bytes) + ", " + format_size(extent.length_bytes);
}

}  // namespace

const char* mode_name(LeaseMode mode) {
  switch (mode) {
    case LeaseMode::exclusive: return "exclusive";
    case LeaseMode::shared_read_only: return "shared-ro";
    case LeaseMode::shared_coherent: return "shared-coherent";
  }
  return "exclusive";
}

Result<LeaseMode> parse_mode(const std::string& text) {
  for (const LeaseMode mode : {LeaseMode::exclusive, LeaseMode::shared_read_only, LeaseMode::shared_coherent}) {
    if (text == mode_name(mode)) return mode;
  }
  return Error{.code = ErrorCode::invalid_argument,
               .where = "parse_mode",
               .detail = "'" + text + "' is not a lease mode; use exclusive, shared-ro or shared-coherent"};
}

json to_json(const LeaseInfo& lease, Measured measured) {
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
  const bool persistent = lease.ttl_ns == 0;
  return {{"id", lease.id.value},
          {"epoch", lease.epoch.value},
          {"pool", lease.pool},
          {"tenant", lease.tenant},
          {"host", lease.host},
          {"label", lease.label},
          {"mode", mode_name(lease.mode)},
          {"phase", lease.phase},
          {"reason", lease.reason},
          {"bytes", lease.bytes},
          {"granule_bytes", lease.granule_bytes},
          {"persistent", persistent},
          {"ttl_ns", lease.ttl_ns},
          {"expires_in_ns", persistent ? json(nullptr) : json(lease.expires_in_ns)},
          {"tier", lease.tier},
          {"isolation", lease.isolation},
          {"object", lease.object},
          {"object_bytes", measured == Measured::yes ? json(lease.object_bytes) : json(nullptr)},
          {"huge_pages", lease.huge_pages},
          {"extents", extents},
          {"usage", usage}};
}

json to_json(const PoolInfo& pool) {
  return {{"name", pool.name},
          {"devices", pool.devices},
          {"capacity_bytes", pool.capacity_bytes},
          {"free_bytes", pool.free_bytes},
          {"leased_bytes", pool.leased_bytes},
          {"scrubbing_bytes", pool.scrubbing_bytes},
          {"quarantined_bytes", pool.quarantined_bytes},
          {"largest_free_bytes", pool.largest_free_bytes},
          {"granule_bytes", pool.granule_bytes},
          {"leases", pool.leases}};
}

json to_json(const DeviceStatus& device) {
  return {{"serial", device.serial},
          {"backend", device.backend},
          {"pool", device.pool},
          {"adopted", device.adopted},
          {"present", device.present},
          {"capacity_bytes", device.capacity_bytes},
          {"free_bytes", device.free_bytes},
          {"granule_bytes", device.granule_bytes},
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
          {"recovered", server.recovered},
          {"failpoints", server.failpoints}};
}

json to_json_list(const std::vector<LeaseInfo>& leases) {
  json list = json::array();
  for (const LeaseInfo& lease : leases) list.push_back(to_json(lease, Measured::no));
  return list;
}

json to_json_list(const std::vector<PoolInfo>& pools) {
  json list = json::array();
  for (const PoolInfo& pool : pools) list.push_back(to_json(pool));
  return list;
}

json to_json_list(const std::vector<DeviceStatus>& devices) {
  json list = json::array();
  for (const DeviceStatus& device : devices) list.push_back(to_json(device));
  return list;
}

std::string describe_expiry(const LeaseInfo& lease) {
  if (lease.ttl_ns == 0) return "persistent";
  if (lease.expires_in_ns == 0) return "lapsed";
  // Whole units are enough to act on: "in 59 s", not "in 59.98 s".
  const uint64_t ns = lease.expires_in_ns;
  return "in " + format_duration(ns >= ns_per_s ? ns / ns_per_s * ns_per_s : ns);
}

std::string lease_table(const std::vector<LeaseInfo>& leases) {
  std::vector<std::vector<std::string>> rows;
  for (const LeaseInfo& lease : leases) {
    rows.push_back({std::to_string(lease.id.value), or_dash(lease.label), lease.pool, lease.tenant,
                    format_size(lease.bytes), mode_name(lease.mode), lease.phase,
                    std::to_string(lease.epoch.value), describe_expiry(lease), or_dash(lease.usage.holder)});
  }
  return format_table({"ID", "LABEL", "POOL", "TENANT", "SIZE", "MODE", "PHASE", "EPOCH", "EXPIRES", "HOLDER"},
                      rows);
}

std::string pool_table(const std::vector<PoolInfo>& pools) {
  std::vector<std::vector<std::string>> rows;
  for (const PoolInfo& pool : pools) {
    rows.push_back(
        {pool.name, format_size(pool.capacity_bytes), format_size(pool.free_bytes),
         percent(pool.capacity_bytes - std::min(pool.free_bytes, pool.capacity_bytes), pool.capacity_bytes),
         format_size(pool.largest_free_bytes), format_size(pool.scrubbing_bytes),
         format_size(pool.quarantined_bytes), std::to_string(pool.leases),
         std::to_string(pool.devices.size())});
  }
  return format_table(
      {"POOL", "CAPACITY", "FREE", "USED", "LARGEST FREE", "SCRUBBING", "QUARANTINED", "LEASES", "DEVICES"},
      rows);
}

std::string device_table(const std::vector<DeviceStatus>& devices) {
  std::vector<std::vector<std::string>> rows;
  for (const DeviceStatus& device : devices) {
    std::string state = device.adopted ? "adopted" : "seen";
    if (!device.present) state += ", absent";
    rows.push_back({device.serial, device.backend, format_size(device.capacity_bytes),
                    device.adopted ? format_size(device.free_bytes) : "-", format_size(device.granule_bytes),
                    state, or_dash(device.pool), device.detail});
  }
  return format_table({"SERIAL", "BACKEND", "CAPACITY", "FREE", "GRANULE", "STATE", "POOL", "DETAIL"}, rows);
}

std::string lease_block(const LeaseInfo& lease) {
  std::vector<std::pair<std::string, std::string>> fields = {
      {"label", or_dash(lease.label)},
      {"pool", lease.pool},
      {"tenant", lease.tenant + (lease.host.empty() ? "" : " on " + lease.host)},
      {"size", format_size(lease.bytes) + " (" + std::to_string(lease.bytes) + " bytes), granule " +
                   format_size(lease.granule_bytes)},
      {"mode", mode_name(lease.mode)},
      {"phase", lease.phase + (lease.reason.empty() ? "" : ": " + lease.reason)},
      {"epoch", std::to_string(lease.epoch.value)},
      {"expires", describe_expiry(lease) + (lease.ttl_ns == 0 ? "" : ", ttl " + format_duration(lease.ttl_ns))},
      {"tier", lease.tier + ", isolation " + lease.isolation},
      {"object", or_dash(lease.object)},
      {"occupied", format_size(lease.object_bytes) + " of the pool's memory" +
                       (lease.huge_pages ? ", in huge pages" : ", in small pages")}};
  for (const ExtentInfo& extent : lease.extents) fields.emplace_back("extent", describe_extent(extent));
  if (lease.usage.holder.empty()) {
    fields.emplace_back("holder", "has not reported its use");
  } else {
    fields.emplace_back("holder",
                        lease.usage.holder + ", reported " + format_duration(lease.usage_age_ns) + " ago");
    fields.emplace_back("in DDR", format_size(lease.usage.ddr_bytes));
    fields.emplace_back("in CXL", format_size(lease.usage.cxl_bytes));
    fields.emplace_back("live", format_size(lease.usage.live_bytes) + " in use by the holder's allocations");
  }
  return "lease " + std::to_string(lease.id.value) + "\n" + format_block(fields);
}

std::string server_block(const ServerStatus& server, const std::string& socket_path) {
  const bool says_where = server.huge_pages.find(server.object_directory) != std::string::npos;
  std::vector<std::pair<std::string, std::string>> fields = {
      {"socket", socket_path},
      {"runtime", server.runtime_directory},
      {"state", server.state_file},
      {"memory", says_where ? server.huge_pages : server.object_directory + " (" + server.huge_pages + ")"},
      {"work", std::to_string(server.commands_applied) + " commands in " +
                   std::to_string(server.store_commits) + " store commits, " +
                   std::to_string(server.connections) + " connections"}};
  std::istringstream findings(server.recovered);
  for (std::string finding; std::getline(findings, finding);) fields.emplace_back("last start", finding);
  if (server.failpoints) fields.emplace_back("build", "has failpoints: for tests, not for use");
  return "terraced " + printable(server.version) + ", pid " + std::to_string(server.pid) + ", up " +
         format_duration(server.uptime_ns) + "\n" + format_block(fields);
}

}  // namespace terrace::cli
