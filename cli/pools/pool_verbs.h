// SPDX-License-Identifier: Apache-2.0
// The parts of `terrace pool` that lie in more than one file.
#pragma once

#include "cli/client/admin_client.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {

// Errors    not_found  with the name that may have been meant
Result<PoolStatus> find_pool(AdminClient& client, const std::string& name);

// region.cc: the options of composing a region, but for its memdevs.
void add_region_options(Command verb, RegionOptions& region);

// pool_compact.cc
void add_pool_compact_verb(Command pool, Context& context);

}  // namespace terrace::cli
