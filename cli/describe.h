// What the daemon reports, as JSON for programs and as rows and blocks for people.
//
// Place     Between AdminClient's structs and output.h. Pure.
// The JSON keys are documented in docs/operations/cli.md and only ever added to.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/admin_client.h"

namespace terrace::cli {

// Whether the daemon was asked how many bytes a lease's object occupies: it is in `lease show` and a grant,
// not in lists. Not measured is null, never 0.
enum class Measured : bool { no, yes };

nlohmann::json to_json(const LeaseInfo& lease, Measured measured = Measured::yes);
nlohmann::json to_json(const PoolInfo& pool);
nlohmann::json to_json(const DeviceStatus& device);
nlohmann::json to_json(const ServerStatus& server);

nlohmann::json to_json_list(const std::vector<LeaseInfo>& leases);  // not measured
nlohmann::json to_json_list(const std::vector<PoolInfo>& pools);
nlohmann::json to_json_list(const std::vector<DeviceStatus>& devices);

const char* mode_name(LeaseMode mode);                  // "exclusive", "shared-ro", "shared-coherent"
Result<LeaseMode> parse_mode(const std::string& text);  // Errors: invalid_argument, lists the three
std::string describe_expiry(const LeaseInfo& lease);    // "in 42 s", "persistent", "lapsed"

std::string lease_table(const std::vector<LeaseInfo>& leases);
std::string pool_table(const std::vector<PoolInfo>& pools);
std::string device_table(const std::vector<DeviceStatus>& devices);
std::string lease_block(const LeaseInfo& lease);  // everything known of one lease, residency included
std::string server_block(const ServerStatus& server, const std::string& socket_path);

}  // namespace terrace::cli
