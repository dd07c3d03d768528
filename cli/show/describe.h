// SPDX-License-Identifier: Apache-2.0
// What the daemon reports, as rows and blocks for people. As JSON for programs it is what core/schema/json.h makes
// of a message; the keys are documented in docs/operations/cli.md and only ever added to.
//
// Place     Between statuses.h and output.h. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/client/statuses.h"
#include "core/base/result.h"
#include "core/schema/json.h"

namespace terrace::cli {

using schema::to_json;
using schema::to_json_list;

// "shared_read_only", or what older versions called it: "shared-ro", "shared-coherent".
// Errors    invalid_argument, lists the modes
Result<rpc::LeaseMode> parse_mode(const std::string& text);
std::string describe_expiry(const LeaseStatus& lease);  // "in 42 s", "persistent", "lapsed"
std::string cause_words(const LeaseStatus& lease);      // "device lost"; empty: nobody takes it

// A size in the largest unit in which two decimals say all of it: "1026 MiB", where format_size rounds to "1
// GiB".
std::string exact_size(uint64_t bytes);
// The first words of `text` in at most `columns`, with "..." where something is left out.
std::string shortened(const std::string& text, size_t columns);
// "seen", "adopted", "in service", "draining", "failed"; with ", absent" when it is not there now.
std::string device_state(const DeviceStatus& device);

std::string lease_table(const std::vector<LeaseStatus>& leases);
std::string pool_table(const std::vector<PoolStatus>& pools);
std::string device_table(const std::vector<DeviceStatus>& devices);
std::string lease_block(const LeaseStatus& lease);  // everything known of one lease, residency included
std::string server_block(rpc::ServerInfo::Reader server, const std::string& socket_path);

// describe_pool.cc
std::string waiting_table(const std::vector<WaitingStatus>& waiting);
std::string device_block(const DeviceStatus& device);
std::string pool_block(const PoolStatus& pool);  // composition, what is where, how broken up the free part is
// One bar of `width` characters: '#' leased, '~' being scrubbed, '!' quarantined, '.' free, '?' absent. What is not
// nothing gets at least one character.
std::string usage_bar(const PoolStatus& pool, size_t width);
std::string move_table(Moves moves);
// "3 leases left to move, 24 MiB; 1 blocked: lease 7 (team-a, redis, 8 MiB): not movable"
std::string describe_moves(uint64_t left_bytes, Moves moves);

}  // namespace terrace::cli
