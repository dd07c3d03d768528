// SPDX-License-Identifier: Apache-2.0
// One body of memory, a host's own or the shared pool, run by the manager's state machine: every request
// becomes a lease that is granted, carved, released, fenced and scrubbed. The backend's part is played at once
// and never fails: this measures decisions, not devices.
//
// Place     Below replay.h. Nothing is stored and no memory is touched; time comes from the trace.
// Threads   One.
//
// Invariant No granule is taken twice. A second record of the free runs is kept here, from the extents that
//           the machine says it took; a breach found by it ends the process (TERRACE_CHECK).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/model/extent_map.h"
#include "daemon/state/state_machine.h"

namespace terrace::plan {

struct MemoryOptions {
  std::string name;             // of the pool; devices are NAME-0, NAME-1, ...
  uint64_t capacity_bytes = 0;  // over all devices; 0: there is none, and every take is refused
  uint64_t granule_bytes = 0;
  uint64_t devices = 1;  // the capacity is shared out among them, in whole granules
};

class Memory {
 public:
  // Errors    invalid_argument, limit_exceeded   as the state machine says them of devices and pools
  static Result<Memory> create(const MemoryOptions& options);

  // Takes `granules` for good or until give().
  // Errors    capacity_exhausted   the state machine's refusal: too little is free, or in too many pieces
  Result<LeaseId> take(uint64_t granules, uint64_t now_ns);

  // Ends a lease; its granules can be taken again when this returns.
  void give(LeaseId lease, uint64_t now_ns);

  uint64_t capacity_granules() const { return capacity_; }
  uint64_t free_granules() const { return free_; }
  uint64_t largest_free_run() const;  // on one device
  // 1 - (each device's longest free run, summed) / (all that is free); 0 when nothing is free. An empty pool of
  // several devices is not fragmented: no lease could have had more than one device in a piece anyway.
  double fragmentation() const;
  uint64_t extents_max() const { return extents_max_; }  // the most pieces that one lease was given

  // The state machine's invariants and the comparison with the record kept here; one sentence each breach.
  std::vector<std::string> check() const;

 private:
  Memory() = default;
  // Applies a command and plays the shell: answers each effect at once, until there is none left.
  daemon::Step drive(const daemon::Command& command, uint64_t now_ns);

  std::string name_;
  uint64_t capacity_ = 0;
  uint64_t free_ = 0;
  uint64_t extents_max_ = 0;
  daemon::StateMachine machine_;
  std::map<DeviceId, daemon::ExtentMap> runs_;
};

}  // namespace terrace::plan
