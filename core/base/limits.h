// SPDX-License-Identifier: Apache-2.0
// Every fixed bound of the service in one place, each with its reason and its cost.
#pragma once

#include <cstdint>

#include "core/base/units.h"

namespace terrace::limits {

// The smallest unit placed, leased or moved. 2 MiB is the dax default alignment and a huge page: one
// page-table entry switches a granule between tiers.
inline constexpr uint64_t granule_bytes = 2 * mib;

// A device alignment beyond 1 GiB does not exist on x86-64.
inline constexpr uint64_t granule_bytes_max = 1 * gib;

// Extents of one lease. A row stays within one SQLite page or two (24 bytes an extent); a request that
// would need more is told that the pool is too fragmented.
inline constexpr uint64_t lease_extents_max = 256;

// Leases alive at once in one manager. Sized for 100 racks of 1,000; about 1 KiB of daemon memory each.
inline constexpr uint64_t leases_max = 1'000'000;

inline constexpr uint64_t devices_max = 4096;  // memdevs a manager can adopt; a 16-way fabric has far fewer
inline constexpr uint64_t pools_max = 1024;

// Names appear in tables, file names and SQL rows: short, printable, no '/'.
inline constexpr uint64_t name_bytes_max = 63;
inline constexpr uint64_t label_bytes_max = 127;
inline constexpr uint64_t reason_bytes_max = 255;

// Lease times. Below one second renewal traffic would swamp the store; above 30 days a lost client keeps
// memory from everybody: then the lease should be persistent (no expiry) and owned by an operator.
inline constexpr uint64_t ttl_ns_min = 1 * ns_per_s;
inline constexpr uint64_t ttl_ns_max = 30ull * 86400 * ns_per_s;
inline constexpr uint64_t ttl_ns_default = 60 * ns_per_s;
// How long holders have after a start to say that they are there, before the manager moves what nobody seems to have (a
// client tries to reconnect at least once a second).
inline constexpr uint64_t reconnect_ns = 5 * ns_per_s;
// How long a fence waits for holders that it has killed (on_fence kill). Letting go of a TiB that a device's driver has
// pinned takes seconds; what takes longer hangs in the kernel, and its lease is quarantined until it has ended.
inline constexpr uint64_t holder_end_ns_max = 10 * ns_per_s;
inline constexpr uint64_t grace_ns_max = 3600 * ns_per_s;

// The queue of a full pool. A request waits in the daemon's memory (about 1 KiB) and for half of its turn keeps
// room from others, so neither how many nor how long is unbounded; one tenant cannot fill the queue.
inline constexpr uint64_t wait_ns_max = 3600 * ns_per_s;
inline constexpr uint64_t waiting_max = 4096;
inline constexpr uint64_t waiting_per_tenant_max = 256;
// The phases of a turn (daemon/model/waiting_queue.h). The first ones are a sixth of what the request may wait,
// so that a short wait has two holds too, and at most half of the usual TTL, for the sake of those held up. A
// large request may need longer holds, until enough leases have ended; the bound is what those who want little
// are asked to put up with at once.
inline constexpr uint64_t queue_phase_ns = 30 * ns_per_s;
inline constexpr uint64_t queue_phase_ns_min = 10 * ns_per_ms;
inline constexpr uint64_t queue_hold_ns_max = 300 * ns_per_s;

// A holder that began a move and neither finished nor gave it up loses the target after this.
inline constexpr uint64_t move_ns_max = 600 * ns_per_s;
inline constexpr uint64_t compaction_ns_max = 3600 * ns_per_s;

inline constexpr uint64_t quotas_max = 65'536;
inline constexpr uint64_t reservations_max = 4096;

// The audit log is a ring of about 20 MiB in the store; one text of it is a line on a screen.
inline constexpr uint64_t audit_rows_max = 100'000;
inline constexpr uint64_t audit_text_bytes_max = 255;
inline constexpr uint32_t audit_rows_per_page_max = 10'000;

// Erased in pieces, so that a grant that waits for a little gets it before a large lease is all erased, and the
// bandwidth bound is kept to within one piece.
inline constexpr uint64_t scrub_piece_bytes = 256 * mib;

// One RPC message: a list of 10,000 leases is 2 MiB; anything larger is an attack or a defect.
inline constexpr uint64_t rpc_message_bytes_max = 16 * mib;
inline constexpr uint32_t rpc_fds_per_message_max = 4;
inline constexpr uint32_t rpc_calls_outstanding_max = 1024;  // per connection; further calls are refused
inline constexpr uint32_t rpc_sessions_max = 8;              // per connection; a client needs one
inline constexpr uint32_t rpc_leases_max = 65'536;           // lease capabilities per connection
inline constexpr uint64_t rpc_hello_ns_max =
    10 * ns_per_s;  // a connection that has not said hello by then is closed
// Of the connections: what one uid that is no administrator may have, and what is kept for administrators.
inline constexpr uint32_t rpc_connections_uid_share = 4;  // a quarter of all
inline constexpr uint32_t rpc_connections_reserved = 16;
inline constexpr uint32_t rpc_connections_max = 4096;  // per daemon; further ones are closed
// Of the descriptors of a daemon's process: for its store, workers and devices, and kept for administrators.
inline constexpr uint64_t descriptors_own = 384;
inline constexpr uint64_t descriptors_reserved = 64;
inline constexpr uint64_t descriptors_wanted = 65'536;   // the limit that it raises itself to, where it may
inline constexpr uint32_t leases_per_page_max = 10'000;  // one answer to a list call

}  // namespace terrace::limits
