// From the schema's structs to the verbs' own: only translation, for the files that make calls.
#pragma once

#include <string>
#include <vector>

#include "cli/client/admin_types.h"
#include "cli/client/connection.h"
#include "cli/client/lease_client.h"

namespace terrace::cli {

inline constexpr uint32_t leases_per_call = 256;  // about 80 KiB of reply; keeps one call short for the daemon

ServerStatus read_server(rpc::ServerInfo::Reader reader);
DeviceStatus read_device(rpc::DeviceInfo::Reader reader);
// `measured`: whether the call is one that looks at the object's size.
LeaseStatus read_lease(rpc::LeaseInfo::Reader reader, bool measured);
std::vector<LeaseStatus> read_leases(capnp::List<rpc::LeaseInfo>::Reader reader);
DrainProgress read_progress(rpc::DeviceProgress::Reader reader);
CompactionStatus read_compaction(rpc::Compaction::Reader reader);
ReservationStatus read_reservation(rpc::Reservation::Reader reader);

using PoolsCall = std::function<Result<std::vector<PoolInfo>>()>;

// Grants in `session`; see GrantOptions. While it waits for room, `report` is called about once a second, with
// what `pools` says of the queue.
Result<LeaseStatus> grant_in_session(Connection& connection, rpc::TenantSession::Client session,
                                     const GrantOptions& options, const PoolsCall& pools,
                                     const WaitReport& report);

}  // namespace terrace::cli
