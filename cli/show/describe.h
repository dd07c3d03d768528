// What the daemon reports, as JSON for programs and as rows and blocks for people.
//
// Place     Between admin_types.h and output.h. Pure.
// The JSON keys are documented in docs/operations/cli.md and only ever added to.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/client/admin_types.h"

namespace terrace::cli {

// describe_json.cc. What was not measured, is not known or does not apply is null, never 0.
nlohmann::json to_json(const LeaseStatus& lease);
nlohmann::json to_json(const PoolInfo& pool);
nlohmann::json to_json(const DeviceStatus& device);
nlohmann::json to_json(const ServerStatus& server);
nlohmann::json to_json(const MoveStatus& move);
nlohmann::json to_json(const DrainProgress& progress);
nlohmann::json to_json(const CompactionStatus& compaction);
nlohmann::json to_json(const QuotaStatus& quota);
nlohmann::json to_json(const ReservationStatus& reservation);
nlohmann::json to_json(const AuditRecord& entry);
nlohmann::json to_json(const FindingStatus& finding);
template <typename Json = nlohmann::json, typename Item>
Json to_json_list(const std::vector<Item>& items) {
  Json list = Json::array();
  for (const Item& item : items) list.push_back(to_json(item));
  return list;
}

const char* mode_name(LeaseMode mode);                  // "exclusive", "shared-ro", "shared-coherent"
Result<LeaseMode> parse_mode(const std::string& text);  // Errors: invalid_argument, lists the three
std::string describe_expiry(const LeaseInfo& lease);    // "in 42 s", "persistent", "lapsed"

const char* placement_name(PoolPlacement placement);  // "linear", "striped", "spread"

// A size in the largest unit in which two decimals say all of it: "1026 MiB", where format_size rounds to "1
// GiB".
std::string exact_size(uint64_t bytes);
// The first words of `text` in at most `columns`, with "..." where something is left out.
std::string shortened(const std::string& text, size_t columns);
// "seen", "adopted", "in service", "draining", "failed"; with ", absent" when it is not there now.
std::string device_state(const DeviceStatus& device);

std::string lease_table(const std::vector<LeaseStatus>& leases);
std::string pool_table(const std::vector<PoolInfo>& pools);
std::string device_table(const std::vector<DeviceStatus>& devices);
std::string lease_block(const LeaseStatus& lease);  // everything known of one lease, residency included
std::string server_block(const ServerStatus& server, const std::string& socket_path);

// describe_pool.cc
std::string device_block(const DeviceStatus& device);
std::string pool_block(const PoolInfo& pool);  // composition, what is where, how broken up the free part is
// One bar of `width` characters: '#' leased, '~' being scrubbed, '!' quarantined, '.' free. What is not nothing
// gets at least one character.
std::string usage_bar(const PoolInfo& pool, size_t width);
std::string move_table(const std::vector<MoveStatus>& moves);
// "3 leases left to move, 24 MiB; 1 blocked: lease 7 (team-a, redis, 8 MiB): not movable"
std::string describe_moves(uint64_t left_bytes, const std::vector<MoveStatus>& moves);

}  // namespace terrace::cli
