// SPDX-License-Identifier: Apache-2.0
// Processes that claim parts of shared_coherent leases, give them back, and die. Checked with every answer:
//   owner            a part is never given to a process while one lives that has it and did not give it back
//   owner liveness   (the manager) a claim of a part whose owner was seen to have ended is not refused as busy
//   owner epoch      a part's epoch is greater than every one that was given before
//
// Place     tests/sim/actors. Speaks to the manager over a lossy, slow connection; has no memory of its own.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/sim/manager/connection.h"

namespace terrace::sim {

class SimOwners {
 public:
  SimOwners(Environment& environment, Manager& daemon);

  // One turn: a claim, a release, a death, or nothing.
  void act();
  void settle() { settled_ = true; }
  // The machine restarts: no process lives on.
  void end();

 private:
  struct Claim {
    uint64_t epoch = 0;
    uint64_t request = 0;
    daemon::ProcessId process;
    uint64_t hand_overs = 0;  // of the lease, when it was asked for: a hand-over shuts every owner out
    bool leaving = false;
  };
  using Part = std::pair<LeaseId, uint64_t>;

  bool alive(const daemon::ProcessId& process) const { return started_.at(process.pid - 1) == process.started; }
  void claim(const daemon::LeaseRow& lease, uint64_t part);
  void claimed(const daemon::ClaimPart& asked, uint64_t hand_overs, const daemon::OwnerRow& owner);
  void give_back(const Part& part, Claim& claim);

  Environment& environment_;
  Manager& daemon_;
  Connection connection_;
  std::vector<uint64_t> started_;  // of process 1, 2, ...
  std::map<Part, Claim> claims_;   // the newest that was acknowledged
  bool settled_ = false;
};

}  // namespace terrace::sim
