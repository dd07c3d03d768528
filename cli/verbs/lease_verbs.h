// SPDX-License-Identifier: Apache-2.0
// The parts of `terrace lease` that lie in more than one file.
#pragma once

#include "cli/client/admin_client.h"
#include "cli/client/lease_client.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {

// The lease that `name`, an id or a label, stands for.
Result<LeaseStatus> find_lease(LeaseClient& client, const std::string& name);
// Its id only; the daemon is asked only for labels.
Result<LeaseId> find_lease_id(LeaseClient& client, const std::string& name);
// On the wire a ttl of 0 would mean the default, or the lease's own.
Error zero_ttl(const char* where);
void add_lease_argument(Command verb, std::string& name);

// lease_grant.cc
void add_lease_grant_verb(Command lease, Context& context);
// lease_change.cc: resize, transfer, offers, accept, withdraw, quarantined
void add_lease_change_verbs(Command lease, Context& context);

// The bytes that "512M", "+64M" or "-64M" mean for a lease of `bytes`.
// Errors    invalid_argument  no size, or nothing would be left; capacity_exhausted is the daemon's to say
Result<uint64_t> parse_new_size(const std::string& text, uint64_t bytes);

}  // namespace terrace::cli
