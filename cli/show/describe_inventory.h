// The hardware that a machine shows, as tables for people and JSON for programs.
//
// Place     Between daemon/inventory and output.h. Pure.
// The JSON keys are documented in docs/operations/devices.md and only ever added to.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/client/admin_types.h"
#include "daemon/inventory/inventory.h"

namespace terrace::cli {

// A table a kind, under a heading each; those of which there are none are left out. Empty: there is nothing.
std::string inventory_text(const inventory::Inventory& all);
nlohmann::json to_json(const inventory::Inventory& all);

// "300 ns, 8 GiB/s (hmat)" or "speed not known", with "node 1 at distance 20" and "persistent" where they
// apply.
std::string describe_tier(const TierFigures& tier);
// What a lease of such memory is, and who else has a way to it; empty: not said.
std::string describe_isolation(const TierFigures& tier);
std::string latency_text(const TierFigures& tier);    // "300 ns"; "-": not known
std::string bandwidth_text(const TierFigures& tier);  // "8 GiB/s"
nlohmann::json to_json(const TierFigures& tier);

}  // namespace terrace::cli
