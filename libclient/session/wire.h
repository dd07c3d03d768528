// SPDX-License-Identifier: Apache-2.0
// Between the schema's structs and the client's own: no decisions, only translation. Bytes from the other
// side are never trusted to be in range: a reply with a number that an enum of ours has not is refused.
//
// Place     libclient/session, and the CLI's administration client.
// Threads   Pure functions.
#pragma once

#include <unistd.h>

#include <kj/exception.h>

#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/schema/enumerants.h"
#include "core/schema/terrace.capnp.h"
#include "terrace/session.h"

namespace terrace::client {

// The Error of a reply; its code is `ok` when the call succeeded. `where` is a literal naming the call; where
// it failed in the daemon is added to the detail.
Error error_from_wire(rpc::Error::Reader wire, const char* where);
Status status_from_wire(rpc::Error::Reader wire, const char* where);
// `version_mismatch`, naming the field and its number: a manager that is newer means something by it that this
// side cannot know.
Error unknown_enumerant_error(const std::string& unknown, const char* where);

// Of a whole reply: its error, or that it cannot be read.
template <typename Results>
Status status_from_wire(typename Results::Reader reply, const char* where) {
  TERRACE_RETURN_IF_ERROR(status_from_wire(reply.getError(), where));
  if (const std::string unknown = schema::unknown_enumerant_in<Results>(reply); !unknown.empty())
    return unknown_enumerant_error(unknown, where);
  return {};
}

// A broken connection, a peer's defect or an overload, as `unavailable`; a method that the other side does
// not know as `version_mismatch`.
Error error_from_kj(const kj::Exception& exception, const char* where);

// Errors    version_mismatch  a number of an enum that this side does not know
Result<LeaseInfo> lease_info_from_wire(rpc::LeaseInfo::Reader wire, const char* where);
Result<std::vector<LeaseInfo>> lease_infos_from_wire(capnp::List<rpc::LeaseInfo>::Reader wire,
                                                     const char* where);
Result<PoolInfo> pool_info_from_wire(rpc::PoolInfo::Reader wire, const char* where);
Result<std::vector<PoolInfo>> pool_infos_from_wire(capnp::List<rpc::PoolInfo>::Reader wire, const char* where);
TierFigures figures_from_wire(rpc::TierAttributes::Reader wire);

// Of a notice, which cannot be refused: a newer manager's cause is `revoked`. It was taken, and nothing says that
// it lapsed.
LeaseCause cause_from_wire(rpc::LeaseCause wire);
void usage_to_wire(const UsageReport& usage, rpc::Usage::Builder wire);
void run_to_wire(const RunFigures& figures, const RunCounters& told_before, rpc::RunFigures::Builder wire);
// A grant's fields without its request key.
bool ends_with_holders(const LeaseRequest& request);
void grant_to_wire(const LeaseRequest& request, rpc::GrantRequest::Builder wire);
// Of a grant or an attach: with `kill` this process agrees to be ended at a fence.
template <typename Asked>
void agree_on_wire(OnFence on_fence, Asked&& asked) {
  if (on_fence != OnFence::kill) return;
  asked.setOnFence(rpc::OnFence::KILL);
  asked.setProcess(static_cast<uint32_t>(::getpid()));
}

std::string text_from_wire(capnp::Text::Reader text);

}  // namespace terrace::client
