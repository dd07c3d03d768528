// SPDX-License-Identifier: Apache-2.0
// What an administrator's connection and a tenant's have in common: grants that may wait, lists by pages, offers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/client/connection.h"
#include "cli/client/lease_client.h"

namespace terrace::cli {

inline constexpr uint32_t leases_per_call = 256;  // about 80 KiB of reply; keeps one call short for the daemon

// All leases, by pages: `page(after, limit)` gives those with ids above `after`, ascending. `where` is its method.
// Errors    corrupt  a list that does not ascend; it would keep us here for ever
Result<std::vector<LeaseStatus>> all_pages(
    const char* where,
    const std::function<Result<std::vector<LeaseStatus>>(uint64_t after, uint32_t limit)>& page);

using PoolsCall = std::function<Result<std::vector<PoolStatus>>()>;

// Grants in `session`; see GrantOptions. While it waits for room, `report` is called about once a second, with
// what `pools` says of the queue.
Result<LeaseStatus> grant_in_session(Connection& connection, rpc::TenantSession::Client session,
                                     const GrantOptions& options, const PoolsCall& pools,
                                     const WaitReport& report);

// Leases that others offer to the session's tenant; one of them becomes its own; an offer of its own is taken back.
Result<std::vector<LeaseStatus>> offers_in_session(Connection& connection, rpc::TenantSession::Client session);
Result<LeaseStatus> accept_in_session(Connection& connection, rpc::TenantSession::Client session, LeaseId id);
Status withdraw_in_session(Connection& connection, rpc::TenantSession::Client session, LeaseId id);

}  // namespace terrace::cli
