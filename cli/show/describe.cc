// SPDX-License-Identifier: Apache-2.0
#include "cli/show/describe.h"

#include <algorithm>
#include <sstream>

#include "cli/show/describe_inventory.h"
#include "cli/terminal/output.h"
#include "core/schema/words.h"

namespace terrace::cli {
namespace {

std::string percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return std::to_string(static_cast<uint64_t>(100.0 * static_cast<double>(part) / static_cast<double>(whole))) +
         "%";
}

std::string describe_extent(rpc::Extent::Reader extent) {
  return str(extent.getDevice()) + " at " + exact_size(extent.getOffset()) + ", " +
         exact_size(extent.getLength());
}

// An object that occupies nothing under a lease that can be used is a lease without memory.
std::string describe_object_size(const LeaseStatus& lease) {
  if (!lease->getMeasured()) return "not measured";
  const bool live =
      lease->getPhase() == rpc::LeasePhase::ACTIVE || lease->getPhase() == rpc::LeasePhase::REVOKING;
  if (live && lease->getObjectBytes() == 0)
    return "nothing: the lease's object is missing; 'terrace fsck' says what to do";
  std::string text = exact_size(lease->getObjectBytes()) + " of the pool's memory";
  if (lease->getObjectBytes() == 0) return text;
  return text + (lease->getHugePages() ? ", in huge pages" : ", in small pages");
}

// Who keeps others out, and of what: "kernel; a dax device of its own, which nothing else maps".
std::string describe_lease_isolation(const LeaseStatus& lease) {
  const std::string memory = describe_isolation(lease->getAttributes());
  return or_dash(str(lease->getIsolation())) + (memory.empty() ? "" : "; " + memory);
}

std::string describe_phase(const LeaseStatus& lease) {
  std::string text(schema::enum_word(lease->getPhase()));
  const std::string cause = cause_words(lease);
  const std::string reason = str(lease->getReason());
  if (!cause.empty()) text += " (" + cause + ")";
  if (!reason.empty() && reason != cause) text += ": " + reason;
  return text;
}

std::string describe_holder(const LeaseStatus& lease) {
  return str(lease->getTenant()) + (lease->getHost().size() == 0 ? "" : " on " + str(lease->getHost()));
}

}  // namespace

Result<rpc::LeaseMode> parse_mode(const std::string& text) {
  if (text == "shared-ro") return rpc::LeaseMode::SHARED_READ_ONLY;
  std::string word = text;
  std::replace(word.begin(), word.end(), '-', '_');
  if (const auto mode = schema::enum_of_word<rpc::LeaseMode>(word)) return *mode;
  std::string known;
  for (const std::string& one : schema::enum_words<rpc::LeaseMode>())
    known += (known.empty() ? "" : ", ") + one;
  return Error{.code = ErrorCode::invalid_argument,
               .where = "parse_mode",
               .detail = "'" + text + "' is not a lease mode; they are " + known};
}

// For people, the word's parts apart.
std::string cause_words(const LeaseStatus& lease) {
  if (lease->getCause() == rpc::LeaseCause::NONE) return {};
  std::string words(schema::enum_word(lease->getCause()));
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
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

std::string describe_expiry(const LeaseStatus& lease) {
  if (lease->getTtlNs() == 0) return "persistent";
  if (lease->getPhase() == rpc::LeasePhase::WAITING) return "-";  // its time begins with the grant
  const uint64_t ns = lease->getExpiresInNs();
  if (ns == 0) return "lapsed";
  // Whole units are enough to act on: "in 59 s", not "in 59.98 s".
  return "in " + format_duration(ns >= ns_per_s ? ns / ns_per_s * ns_per_s : ns);
}

std::string device_state(const DeviceStatus& device) {
  std::string state = "seen";
  if (device->getAdopted()) {
    state = schema::enum_word(device->getState());
    if (device->getState() == rpc::DeviceState::IN_SERVICE)
      state = device->getPool().size() == 0 ? "adopted" : "in service";
  }
  return device->getPresent() ? state : state + ", absent";
}

std::string lease_table(const std::vector<LeaseStatus>& leases) {
  std::vector<std::vector<std::string>> rows;
  for (const LeaseStatus& lease : leases) {
    rows.push_back({std::to_string(lease->getId()), or_dash(str(lease->getLabel())), str(lease->getPool()),
                    str(lease->getTenant()), exact_size(lease->getBytes()),
                    std::string(schema::enum_word(lease->getMode())),
                    std::string(schema::enum_word(lease->getPhase())), or_dash(cause_words(lease)),
                    std::to_string(lease->getEpoch()), describe_expiry(lease),
                    or_dash(str(lease->getUsage().getHolder()))});
  }
  return format_table(
      {"ID", "LABEL", "POOL", "TENANT", "SIZE", "MODE", "PHASE", "CAUSE", "EPOCH", "EXPIRES", "HOLDER"}, rows);
}

namespace {

// "2", or "2, 1 absent".
std::string describe_devices(const PoolStatus& pool) {
  std::string text = std::to_string(pool->getDevices().size());
  if (const uint32_t absent = pool->getAbsentDevices().size(); absent != 0)
    text += ", " + std::to_string(absent) + " absent";
  return text;
}

}  // namespace

std::string pool_table(const std::vector<PoolStatus>& pools) {
  std::vector<std::vector<std::string>> rows;
  for (const PoolStatus& pool : pools) {
    const uint64_t capacity = pool->getCapacityBytes();
    const uint64_t unused = std::min(pool->getFreeBytes() + pool->getAbsentBytes(), capacity);
    rows.push_back({str(pool->getName()), format_size(capacity), format_size(pool->getFreeBytes()),
                    percent(capacity - unused, capacity), format_size(pool->getLargestFreeBytes()),
                    format_size(pool->getScrubbingBytes()), format_size(pool->getQuarantinedBytes()),
                    std::to_string(pool->getWaiting()), std::to_string(pool->getLeases()),
                    describe_devices(pool), std::string(schema::enum_word(pool->getCoherence()))});
  }
  return format_table({"POOL", "CAPACITY", "FREE", "USED", "LARGEST FREE", "SCRUBBING", "QUARANTINED",
                       "WAITING", "LEASES", "DEVICES", "COHERENCE"},
                      rows);
}

std::string device_table(const std::vector<DeviceStatus>& devices) {
  constexpr size_t detail_columns = 32;  // all of it is in `device show`
  std::vector<std::vector<std::string>> rows;
  for (const DeviceStatus& device : devices) {
    const bool adopted = device->getAdopted();
    const Figures figures = device->getAttributes();
    rows.push_back(
        {str(device->getSerial()), str(device->getBackend()), format_size(device->getCapacityBytes()),
         adopted && device->getPresent() ? format_size(device->getFreeBytes()) : "-",
         format_size(device->getGranuleBytes()), device_state(device), or_dash(str(device->getPool())),
         adopted ? std::to_string(device->getLeases()) : "-", latency_text(figures), bandwidth_text(figures),
         or_dash(str(figures.getSource())), shortened(str(device->getDetail()), detail_columns)});
  }
  return format_table({"SERIAL", "BACKEND", "CAPACITY", "FREE", "GRANULE", "STATE", "POOL", "LEASES", "LATENCY",
                       "BANDWIDTH", "FROM", "DETAIL"},
                      rows);
}

namespace {

std::string describe_owner(rpc::PartOwner::Reader owner) {
  std::string text = std::to_string(owner.getPart()) + ", epoch " + std::to_string(owner.getEpoch()) + ": ";
  if (!owner.getOwned()) return text + "nobody's";
  return text + str(owner.getHolder()) + ", process " + std::to_string(owner.getPid()) +
         (owner.getHost().size() == 0 ? "" : " on host " + str(owner.getHost())) +
         (owner.getEnded() ? ", which has ended" : "");
}

void add_usage(std::vector<std::pair<std::string, std::string>>& fields, const LeaseStatus& lease) {
  const auto usage = lease->getUsage();
  if (!lease->hasUsage()) {
    fields.emplace_back("holder", "has not reported its use");
    return;
  }
  fields.emplace_back(
      "holder", or_dash(str(usage.getHolder())) + ", reported " + format_duration(usage.getAgeNs()) + " ago");
  fields.emplace_back("in DDR", format_size(usage.getDdrBytes()));
  fields.emplace_back("in CXL", format_size(usage.getCxlBytes()));
  fields.emplace_back("live", format_size(usage.getLiveBytes()) + " in use by the holder's allocations");
}

}  // namespace

std::string lease_block(const LeaseStatus& lease) {
  const uint64_t ttl_ns = lease->getTtlNs();
  std::vector<std::pair<std::string, std::string>> fields = {
      {"label", or_dash(str(lease->getLabel()))},
      {"pool", str(lease->getPool())},
      {"tenant", describe_holder(lease)},
      {"size", exact_size(lease->getBytes()) + " (" + std::to_string(lease->getBytes()) + " bytes), granule " +
                   exact_size(lease->getGranuleBytes())},
      {"mode", std::string(schema::enum_word(lease->getMode())) + (lease->getMovable() ? ", movable" : "")},
      {"phase", describe_phase(lease)},
      {"epoch", std::to_string(lease->getEpoch())},
      {"expires", describe_expiry(lease) + (ttl_ns == 0 ? "" : ", ttl " + format_duration(ttl_ns))},
      {"tier", str(lease->getTier()) + ", " + describe_tier(lease->getAttributes())},
      {"isolation", describe_lease_isolation(lease)},
      {"object", or_dash(str(lease->getObject()))}};
  if (lease->getOnFence() == rpc::OnFence::KILL)
    fields.emplace_back("on fence", "kill: each holder agreed to be ended before the memory is taken");
  if (lease->getAgent().size() != 0) fields.emplace_back("agent", str(lease->getAgent()));
  for (const capnp::Text::Reader host : lease->getFurtherHosts()) fields.emplace_back("also on", str(host));
  fields.emplace_back("occupied", describe_object_size(lease));
  fields.emplace_back("attached", count_text(lease->getHolders(), "session"));
  if (lease->getOfferedTo().size() != 0)
    fields.emplace_back("offered to", "tenant " + printable(str(lease->getOfferedTo())));
  for (const auto extent : lease->getExtents()) fields.emplace_back("extent", describe_extent(extent));
  for (const auto owner : lease->getOwners()) fields.emplace_back("part", describe_owner(owner));
  add_usage(fields, lease);
  return "lease " + std::to_string(lease->getId()) + "\n" + format_block(fields);
}

namespace {

using BlockFields = std::vector<std::pair<std::string, std::string>>;

// One socket at which callers are known by their uid is what everybody expects, and is not told.
void add_sockets(BlockFields& fields, capnp::List<rpc::ServedSocket>::Reader sockets) {
  const auto by_uid = [](rpc::ServedSocket::Reader socket) { return str(socket.getRole()) == "by-uid"; };
  if (sockets.size() == 0 || (sockets.size() == 1 && by_uid(sockets[0]))) return;
  for (const auto socket : sockets) {
    std::string text = printable(str(socket.getPath())) + ", ";
    if (socket.getTenant().size() != 0) {
      text += "tenant " + printable(str(socket.getTenant())) + " only";
    } else {
      text += by_uid(socket) ? "each caller by its uid" : "role " + printable(str(socket.getRole()));
    }
    fields.emplace_back("serves", std::move(text));
  }
}

void add_certificates(BlockFields& fields, rpc::ServerInfo::Reader server) {
  for (const auto end : server.getCertificates()) {
    fields.emplace_back(str(end.getWhat()),
                        str(end.getName()) + ", " +
                            count_text(static_cast<uint64_t>(std::max(end.getDaysLeft(), 0)), "day") + " left" +
                            (end.getSoon() ? ": renew it" : ""));
  }
}

std::string open_text(rpc::ServerInfo::Reader server) {
  return std::to_string(server.getConnections()) + " of " + std::to_string(server.getConnectionsMax()) +
         " connections, " + std::to_string(server.getDescriptors()) + " of " +
         std::to_string(server.getDescriptorsMax()) + " files";
}

std::string block_head(rpc::ServerInfo::Reader server, const std::string& what) {
  return "terraced " + printable(str(server.getVersion())) + what + ", pid " + std::to_string(server.getPid()) +
         ", up " + format_duration(server.getUptimeNs()) + "\n";
}

std::string agent_block(rpc::ServerInfo::Reader server, const std::string& socket_path) {
  const auto agent = server.getAgent();
  const std::string host = str(agent.getHost());
  const uint64_t left_ns = agent.getHostLeaseLeftNs() / ns_per_ms * ns_per_ms;
  BlockFields fields = {
      {"socket", socket_path},
      {"manager",
       str(agent.getManager()) + (agent.getConnected() ? ", connected" : ", away: " + str(agent.getTrouble()))},
      {"host lease", left_ns == 0 ? "none: nothing is leased here" : format_duration(left_ns) + " left"},
      {"guard", agent.getGuarded() ? "runs" : "missing ('terrace health')"},
      {"runtime", str(server.getRuntimeDirectory())},
      {"memory", str(server.getHugePages())},
      {"open", open_text(server) + ", " + count_text(agent.getSessions(), "session")}};
  add_sockets(fields, server.getSockets());
  add_certificates(fields, server);
  if (server.getFailpoints()) fields.emplace_back("build", "has failpoints: for tests, not for use");
  return block_head(server, host.empty() ? ", an agent" : ", the agent of host " + printable(host)) +
         format_block(fields);
}

}  // namespace

std::string server_block(rpc::ServerInfo::Reader server, const std::string& socket_path) {
  if (server.hasAgent()) return agent_block(server, socket_path);
  const std::string pages = str(server.getHugePages());
  const std::string objects = str(server.getObjectDirectory());
  const bool says_where = pages.find(objects) != std::string::npos;
  std::string scrub = format_size(server.getScrubQueuedBytes()) + " to erase, " +
                      format_size(server.getScrubbedBytes()) + " erased since the start";
  if (server.getScrubBytesPerS() != 0)
    scrub += ", at most " + format_size(server.getScrubBytesPerS()) + "/s in the background";
  BlockFields fields = {{"socket", socket_path},
                        {"runtime", str(server.getRuntimeDirectory())},
                        {"state", str(server.getStateFile())},
                        {"store", or_dash(str(server.getStoreId()))},
                        {"memory", says_where ? pages : objects + " (" + pages + ")"},
                        {"work", std::to_string(server.getCommandsApplied()) + " commands in " +
                                     std::to_string(server.getStoreCommits()) + " store commits"},
                        {"open", open_text(server)},
                        {"scrub", scrub}};
  add_sockets(fields, server.getSockets());
  if (server.getWaiting() != 0)
    fields.emplace_back("waiting", count_text(server.getWaiting(), "grant") + " for room");
  add_certificates(fields, server);
  std::istringstream findings(str(server.getRecovered()));
  for (std::string finding; std::getline(findings, finding);) fields.emplace_back("last start", finding);
  if (server.getFailpoints()) fields.emplace_back("build", "has failpoints: for tests, not for use");
  return block_head(server, "") + format_block(fields);
}

}  // namespace terrace::cli
