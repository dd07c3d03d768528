// SPDX-License-Identifier: Apache-2.0
// The hardware that a machine shows, as tables for people. As JSON it is what core/schema/json.h makes of it; the
// keys are documented in docs/operations/devices.md and only ever added to.
//
// Place     Between statuses.h and output.h. Pure.
#pragma once

#include <string>

#include "cli/client/statuses.h"

namespace terrace::cli {

// A table a kind, under a heading each; those of which there are none are left out. Empty: there is nothing.
std::string inventory_text(rpc::Inventory::Reader all);

// "300 ns, 8 GiB/s (hmat)" or "speed not known", with "node 1 at distance 20" and "persistent" where they
// apply.
std::string describe_tier(const Figures& figures);
// What a lease of such memory is, and who else has a way to it; empty: not said.
std::string describe_isolation(const Figures& figures);
std::string latency_text(const Figures& figures);    // "300 ns"; "-": not known
std::string bandwidth_text(const Figures& figures);  // "8 GiB/s"

}  // namespace terrace::cli
