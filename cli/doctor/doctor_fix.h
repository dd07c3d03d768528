// SPDX-License-Identifier: Apache-2.0
// `terrace doctor --fix`: the safe fixes. There is one: a dax device that came up as
// system-ram, and that no lease uses, becomes devdax again.
//
// Place     cli/doctor/doctor.cc -> here -> the manager, where its numa backend keeps the node; else
//           daemon/inventory does it.
#pragma once

#include <string>
#include <vector>

#include "cli/client/statuses.h"
#include "cli/terminal/output.h"
#include "daemon/inventory/dax_mode.h"
#include "daemon/inventory/inventory.h"

namespace terrace::cli {

struct DaxFix {
  std::string device;  // "dax0.1"
  uint64_t bytes = 0;
  int node = -1;
  std::string refusal = {};  // in words, why it is left alone; empty: it can be fixed
  std::string via = {};      // the manager's device that it is memory of ("numa:node1"); empty: nobody's
};

// What there is to fix, of `devices` as the manager sees them. Pure.
std::vector<DaxFix> plan_fixes(const inventory::Inventory& inventory, const std::vector<DeviceStatus>& devices);

// The consequences, for the one who is asked. Pure.
std::string describe_fixes(const std::vector<DaxFix>& fixes, bool manager_asked);

// How a manager is told to give a node's memory back.
class NodeOwner {
 public:
  virtual ~NodeOwner() = default;
  virtual Status offline(const std::string& serial) = 0;
};

struct FixOutcome {
  std::string device;
  Status status;
};

// Fixes what has no refusal, one after the other; goes on after a failure. `owner` may be null.
std::vector<FixOutcome> apply_fixes(const std::vector<DaxFix>& fixes, inventory::DaxModes& modes,
                                    NodeOwner* owner);

// All of it: looks, asks, fixes, looks again, says how it went.
// Errors    those of confirm() and of the manager; a device that could not be fixed is reported here
Status run_fix(Context& context, bool yes);

}  // namespace terrace::cli
