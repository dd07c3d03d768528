// SPDX-License-Identifier: Apache-2.0
// Dax memory as memory of a node: `terrace pool create --system-ram`, `terrace pool delete --offline` and, one
// step at a time, `terrace device online|offline`.
#pragma once

#include <string>
#include <vector>

#include "cli/client/admin_client.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {

// Those of `wanted`, or all that come into question where none is named: dax devices that nobody adopted, and
// memory nodes. Pure.
// Errors    not_found         none comes into question, or one that was named is not there
//           invalid_argument  none is named and there are several, or one that was named is neither of both
//           busy              a dax device that is adopted
Result<std::vector<DeviceStatus>> system_ram_devices(const std::vector<DeviceStatus>& all,
                                                     const std::vector<std::string>& wanted);

// Says what is lost, asks unless `yes`, brings `pool.devices` online, adopts the nodes and makes a pool of
// them. What was done is undone when a later step fails; the error says where that failed, too.
Status create_system_ram_pool(const Context& context, AdminClient& client, PoolOptions pool, bool yes);

// Deletes the pool, gives its nodes up and takes their memory back: dax devices again.
Status delete_system_ram_pool(const Context& context, AdminClient& client, const std::string& name);

// `device online` and `device offline`.
void add_system_ram_verbs(Command device, Context& context);

}  // namespace terrace::cli
