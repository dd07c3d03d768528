// Between the schema's structs and the client's own: no decisions, only translation. Bytes from the other
// side are never trusted to be in range: unknown numbers become the nearest safe meaning.
//
// Place     libclient/session, and the CLI's administration client.
// Threads   Pure functions.
#pragma once

#include <kj/exception.h>

#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/schema/terrace.capnp.h"
#include "terrace/session.h"

namespace terrace::client {

// The Error of a reply; its code is `ok` when the call succeeded. `where` is a literal naming the call; where
// it failed in the daemon is added to the detail.
Error error_from_wire(rpc::Error::Reader wire, const char* where);
Status status_from_wire(rpc::Error::Reader wire, const char* where);

// A broken connection, a peer's defect or an overload, as `unavailable`; a method that the other side does
// not know as `version_mismatch`.
Error error_from_kj(const kj::Exception& exception, const char* where);

// `now_ns` is CLOCK_BOOTTIME, the clock in which the daemon stamps usage reports.
LeaseInfo lease_info_from_wire(rpc::LeaseInfo::Reader wire);
std::vector<LeaseInfo> lease_infos_from_wire(capnp::List<rpc::LeaseInfo>::Reader wire);
TierFigures figures_from_wire(rpc::TierAttributes::Reader wire);
PoolInfo pool_info_from_wire(rpc::PoolInfo::Reader wire);
std::vector<PoolInfo> pool_infos_from_wire(capnp::List<rpc::PoolInfo>::Reader wire);

LeaseMode mode_from_wire(rpc::LeaseMode wire);
rpc::LeaseMode mode_to_wire(LeaseMode mode);
rpc::Access access_to_wire(LeaseAccess access);
const char* phase_from_wire(rpc::LeasePhase wire);  // "active", ...; "unknown" for a newer peer's
LeaseCause cause_from_wire(rpc::LeaseCause wire);
PoolPlacement placement_from_wire(rpc::Placement wire);
rpc::Placement placement_to_wire(PoolPlacement placement);
MemoryCoherence coherence_from_wire(rpc::Coherence wire);
rpc::Coherence coherence_to_wire(MemoryCoherence coherence);
void usage_to_wire(const UsageReport& usage, rpc::Usage::Builder wire);
// A grant's fields without its request key.
bool ends_with_holders(const LeaseRequest& request);
void grant_to_wire(const LeaseRequest& request, rpc::GrantRequest::Builder wire);

std::string text_from_wire(capnp::Text::Reader text);

}  // namespace terrace::client
