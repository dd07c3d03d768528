// SPDX-License-Identifier: Apache-2.0
// Compares what the store says with what there is: rows with each other, with the memory objects, the devices,
// and what processes still map. Changes nothing and asks nobody; what is found comes with what fixes it.
//
// Place     daemon/fsck; offline from `terraced --fsck` (command.h), at start from the engine, and for
//           Admin.fsck of a serving manager. docs/operations/fsck.md is for those who read its findings.
// Threads   Pure functions.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/fsck/process_scan.h"
#include "daemon/memory/backend.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

// error: something is lost, or must not be granted from; warning: somebody should look; note: a state that
// ends by itself, or that an operator chose.
enum class Severity : uint8_t { note, warning, error };

std::string_view severity_name(Severity severity);

struct Finding {
  Severity severity = Severity::note;
  std::string subject;  // "lease 7", "device emu:a", "object lease-9", "process 123", "store", ...
  std::string what;
  std::string repair;  // what would fix it, and who does that

  bool operator==(const Finding&) const = default;
};

// What is known beside the rows.
struct CheckContext {
  bool serving = false;  // a manager is at work: what it is in the middle of is no finding
  // Objects of grants and moves that no row says anything of yet (pending leases).
  std::set<std::string> in_flight = {};
  std::string boot_id = {};  // of this boot; empty: unknown
};

// Errors first, then by subject as the rows are ordered. `image` is trusted no further than the store's.
std::vector<Finding> check_consistency(const Image& image, const std::vector<ObservedObject>& objects,
                                       const std::vector<SeenDevice>& devices,
                                       const std::vector<LiveMapping>& mappings,
                                       const CheckContext& context = {});

// Only the part about processes that still have what was taken from them.
std::vector<Finding> check_mappings(const Image& image, const std::vector<LiveMapping>& mappings,
                                    const CheckContext& context = {});

}  // namespace terrace::daemon
