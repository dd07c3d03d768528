// SPDX-License-Identifier: Apache-2.0
// What a command would do, found by doing it: each function applies the command, and what would follow from it, to a copy
// of the state machine that it is given. So a preview knows no rule of its own that could differ from what happens.
//
// What is assumed   Nobody else asks for anything meanwhile, every carve, copy, fence and scrub succeeds, and leases that
//                   move do so one after the other, in the order of their ids.
// Place     daemon/rpc/admin asks, in a snapshot of the process (Engine::run_on_snapshot): a copy of 100,000 leases, and a
//           drain of them, takes longer than others should wait.
// Threads   Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/state/command.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

// A place on a device, in bytes.
struct PlacedExtent {
  std::string device;  // serial
  uint64_t offset = 0, length = 0;

  bool operator==(const PlacedExtent&) const = default;
};

// A lease that the act concerns, and what becomes of it.
struct PreviewedLease {
  LeaseId lease;  // invalid: one that would be made
  std::string tenant, host, label;
  uint64_t bytes = 0;
  std::map<std::string, uint64_t> to;  // serial -> bytes that it would have there; empty: it goes nowhere
  std::string state;                   // in words
  bool blocked = false;                // it does not go by itself; `state` says why and what to do
  std::vector<PlacedExtent> from_extents = {},
                            to_extents = {};  // of one that moves; of one that is made the second
};

// A tenant that the act concerns: what it has, and what bounds it afterwards.
struct PreviewedTenant {
  std::string tenant;
  uint64_t bytes = 0, leases = 0;          // that it has now; of a drain: that are on the device
  uint64_t bytes_max = 0, leases_max = 0;  // 0: no bound
  bool over = false;                       // it has more than it may, and gets nothing more
};

struct Preview {
  Status outcome;       // what the act would be answered with
  std::string summary;  // one sentence without its end: "moves 12 leases, 3.1 GiB"
  std::vector<std::string> notes;
  uint64_t leases = 0, bytes = 0;                  // that the act makes, moves or ends
  uint64_t blocked_leases = 0, blocked_bytes = 0;  // that stay where they are until somebody does something
  std::map<std::string, uint64_t> to;              // serial -> bytes, of all leases together
  std::vector<PreviewedLease> all;                 // the blocked ones first
  std::vector<PreviewedTenant> tenants;
  uint64_t waiting_before = 0;  // of a grant that would wait: requests before it
  bool would_wait = false;      // of a grant: there is no room now, and it may wait for some
  std::optional<PlacedExtent> run =
      {};  // of a compaction: the place that it clears; none: nothing has to be cleared
};

// Who has a lease: sessions of the manager's, which the state machine does not know.
using HolderCount = std::function<size_t(LeaseId)>;

// A grant: where it would lie, or what it is refused for; without room now, behind whom it would wait. Whether
// `command` has a time to wait makes no difference to what is looked at.
Preview preview_grant(StateMachine copy, Grant command);

// A drain: which leases move, to where, and which do not.
Preview preview_drain(StateMachine copy, const std::string& serial, uint64_t now_ns,
                      const HolderCount& holders);

// A compaction: which place it clears, which leases move from there, to where, and which do not.
Preview preview_compaction(StateMachine copy, const CompactPool& command, const HolderCount& holders);

// What is taken from whom, and who of those that wait gets room by that.
Preview preview_revoke(StateMachine copy, const Revoke& command, size_t holders);
Preview preview_release(StateMachine copy, const Release& command, size_t holders);

// Who has more than it then may, and which requests that wait would be refused.
Preview preview_quota(StateMachine copy, const SetQuota& command);

}  // namespace terrace::daemon
