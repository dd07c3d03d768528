#include "cli/show/describe.h"

#include <algorithm>
#include <sstream>

#include "cli/show/describe_inventory.h"
#include "cli/terminal/output.h"

namespace terrace::cli {
namespace {

std::string percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return std::to_string(static_cast<uint64_t>(100.0 * static_cast<double>(part) / static_cast<double>(whole))) +
         "%";
}

std::string describe_extent(const ExtentInfo& extent) {
  return extent.device + " at " + exact_size(extent.offset_bytes) + ", " + exact_size(extent.length_bytes);
}

// An object that occupies nothing under a lease that can be used is a lease without memory.
std::string describe_object_size(const LeaseStatus& lease) {
  if (!lease.measured) return "not measured";
  const bool live = lease.phase == "active" || lease.phase == "revoking";
  if (live && lease.object_bytes == 0)
    return "nothing: the lease's object is missing; 'terrace fsck' says what to do";
  std::string text = exact_size(lease.object_bytes) + " of the pool's memory";
  if (lease.object_bytes == 0) return text;
  return text + (lease.huge_pages ? ", in huge pages" : ", in small pages");
}

// Who keeps others out, and of what: "kernel; a dax device of its own, which nothing else maps".
std::string describe_lease_isolation(const LeaseStatus& lease) {
  const std::string memory = describe_isolation(lease.figures);
  return or_dash(lease.isolation) + (memory.empty() ? "" : "; " + memory);
}

// "device lost": for people, the name's words apart.
std::string cause_words(const LeaseStatus& lease) {
  std::string words(lease_cause_name(lease.cause));
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::string describe_phase(const LeaseStatus& lease) {
  std::string text = lease.phase;
  const std::string cause = cause_words(lease);
  if (!cause.empty()) text += " (" + cause + ")";
  if (!lease.reason.empty() && lease.reason != cause) text += ": " + lease.reason;
  return text;
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

const char* placement_name(PoolPlacement placement) {
  switch (placement) {
    case PoolPlacement::linear: return "linear";
    case PoolPlacement::striped: return "striped";
    case PoolPlacement::spread: return "spread";
  }
  return "linear";
}

std::string exact_size(uint64_t bytes) {
  constexpr std::pair<uint64_t, const char*> units[] = {
      {gib * 1024, " TiB"}, {gib, " GiB"}, {mib, " MiB"}, {kib, " KiB"}};
  for (const auto& [unit, name] : units) {
    if (bytes < unit) continue;
    const uint64_t hundredths = bytes % unit * 100;  // below 2^47: no overflow
    if (hundredths % unit != 0) continue;
    std::string text = std::to_string(bytes / unit);
    if (const uint64_t rest = hundredths / unit; rest != 0) {
      text += rest < 10 ? ".0" : ".";
      text += std::to_string(rest % 10 == 0 ? rest / 10 : rest);
    }
    return text + name;
  }
  return std::to_string(bytes) + " B";
}

std::string shortened(const std::string& text, size_t columns) {
  if (text.size() <= columns) return text;
  size_t end = text.rfind(' ', columns - 3);
  if (end == std::string::npos || end < columns / 2) end = columns - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return text.substr(0, end) + "...";
}

std::string describe_expiry(const LeaseInfo& lease) {
  if (lease.ttl_ns == 0) return "persistent";
  if (lease.phase == "waiting") return "-";  // its time begins with the grant
  if (lease.expires_in_ns == 0) return "lapsed";
  // Whole units are enough to act on: "in 59 s", not "in 59.98 s".
  const uint64_t ns = lease.expires_in_ns;
  return "in " + format_duration(ns >= ns_per_s ? ns / ns_per_s * ns_per_s : ns);
}

std::string device_state(const DeviceStatus& device) {
  std::string state = "seen";
  if (device.adopted) {
    state = device.state != "in_service" ? device.state : device.pool.empty() ? "adopted" : "in service";
  }
  return device.present ? state : state + ", absent";
}

std::string lease_table(const std::vector<LeaseStatus>& leases) {
  std::vector<std::vector<std::string>> rows;
  for (const LeaseStatus& lease : leases) {
    rows.push_back({std::to_string(lease.id.value), or_dash(lease.label), lease.pool, lease.tenant,
                    exact_size(lease.bytes), mode_name(lease.mode), lease.phase, or_dash(cause_words(lease)),
                    std::to_string(lease.epoch.value), describe_expiry(lease), or_dash(lease.usage.holder)});
  }
  return format_table(
      {"ID", "LABEL", "POOL", "TENANT", "SIZE", "MODE", "PHASE", "CAUSE", "EPOCH", "EXPIRES", "HOLDER"}, rows);
}

std::string pool_table(const std::vector<PoolInfo>& pools) {
  std::vector<std::vector<std::string>> rows;
  for (const PoolInfo& pool : pools) {
    rows.push_back(
        {pool.name, format_size(pool.capacity_bytes), format_size(pool.free_bytes),
         percent(pool.capacity_bytes - std::min(pool.free_bytes, pool.capacity_bytes), pool.capacity_bytes),
         format_size(pool.largest_free_bytes), format_size(pool.scrubbing_bytes),
         format_size(pool.quarantined_bytes), std::to_string(pool.waiting), std::to_string(pool.leases),
         std::to_string(pool.devices.size()), std::string(memory_coherence_name(pool.coherence))});
  }
  return format_table({"POOL", "CAPACITY", "FREE", "USED", "LARGEST FREE", "SCRUBBING", "QUARANTINED",
                       "WAITING", "LEASES", "DEVICES", "COHERENCE"},
                      rows);
}

std::string device_table(const std::vector<DeviceStatus>& devices) {
  constexpr size_t detail_columns = 32;  // all of it is in `device show`
  std::vector<std::vector<std::string>> rows;
  for (const DeviceStatus& device : devices) {
    const bool adopted = device.adopted;
    rows.push_back({device.serial, device.backend, format_size(device.capacity_bytes),
                    adopted ? format_size(device.free_bytes) : "-", format_size(device.granule_bytes),
                    device_state(device), or_dash(device.pool), adopted ? std::to_string(device.leases) : "-",
                    latency_text(device.tier), bandwidth_text(device.tier), or_dash(device.tier.source),
                    shortened(device.detail, detail_columns)});
  }
  return format_table({"SERIAL", "BACKEND", "CAPACITY", "FREE", "GRANULE", "STATE", "POOL", "LEASES", "LATENCY",
                       "BANDWIDTH", "FROM", "DETAIL"},
                      rows);
}

namespace {

std::string describe_owner(const PartOwner& owner) {
  std::string text = std::to_string(owner.part) + ", epoch " + std::to_string(owner.epoch) + ": ";
  if (!owner.owned) return text + "nobody's";
  return text + owner.holder + ", process " + std::to_string(owner.pid) +
         (owner.ended ? ", which has ended" : "");
}

}  // namespace

std::string lease_block(const LeaseStatus& lease) {
  std::vector<std::pair<std::string, std::string>> fields = {
      {"label", or_dash(lease.label)},
      {"pool", lease.pool},
      {"tenant", lease.tenant + (lease.host.empty() ? "" : " on " + lease.host)},
      {"size", exact_size(lease.bytes) + " (" + std::to_string(lease.bytes) + " bytes), granule " +
                   exact_size(lease.granule_bytes)},
      {"mode", std::string(mode_name(lease.mode)) + (lease.movable ? ", movable" : "")},
      {"phase", describe_phase(lease)},
      {"epoch", std::to_string(lease.epoch.value)},
      {"expires", describe_expiry(lease) + (lease.ttl_ns == 0 ? "" : ", ttl " + format_duration(lease.ttl_ns))},
      {"tier", lease.tier + ", " + describe_tier(lease.figures)},
      {"isolation", describe_lease_isolation(lease)},
      {"object", or_dash(lease.object)},
      {"occupied", describe_object_size(lease)},
      {"attached", count_text(lease.holders, "session")}};
  for (const ExtentInfo& extent : lease.extents) fields.emplace_back("extent", describe_extent(extent));
  for (const PartOwner& owner : lease.owners) fields.emplace_back("part", describe_owner(owner));
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
  std::string scrub = format_size(server.scrub_queued_bytes) + " to erase, " +
                      format_size(server.scrubbed_bytes) + " erased since the start";
  if (server.scrub_bytes_per_s != 0)
    scrub += ", at most " + format_size(server.scrub_bytes_per_s) + "/s in the background";
  std::vector<std::pair<std::string, std::string>> fields = {
      {"socket", socket_path},
      {"runtime", server.runtime_directory},
      {"state", server.state_file},
      {"memory", says_where ? server.huge_pages : server.object_directory + " (" + server.huge_pages + ")"},
      {"work", std::to_string(server.commands_applied) + " commands in " +
                   std::to_string(server.store_commits) + " store commits, " +
                   std::to_string(server.connections) + " connections"},
      {"scrub", scrub}};
  if (server.waiting != 0) fields.emplace_back("waiting", count_text(server.waiting, "grant") + " for room");
  std::istringstream findings(server.recovered);
  for (std::string finding; std::getline(findings, finding);) fields.emplace_back("last start", finding);
  if (server.failpoints) fields.emplace_back("build", "has failpoints: for tests, not for use");
  return "terraced " + printable(server.version) + ", pid " + std::to_string(server.pid) + ", up " +
         format_duration(server.uptime_ns) + "\n" + format_block(fields);
}

}  // namespace terrace::cli
