// SPDX-License-Identifier: Apache-2.0
// Leases that should leave their place, moved in a copy of the state: for a drain and for a compaction alike.
//
// Place     Inside daemon/state/preview: preview_drain.cc and preview_compaction.cc begin the act, and say what is theirs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/state/preview/words.h"

namespace terrace::daemon {

class PreviewedMoves {
 public:
  PreviewedMoves(StateMachine copy, uint64_t now_ns, const HolderCount& holders)
      : state_(std::move(copy)), now_ns_(now_ns), holders_(holders) {}

  StateMachine& state() { return state_; }

  // Once the act has begun in state(): every lease that `concerned` names and that may move is moved, and its old memory
  // erased, until none finds room any more. Writes what became of them, and its sums, into `preview`.
  void run(const std::function<bool(const LeaseRow&)>& concerned, Preview& preview);

  uint64_t no_room_bytes() const { return no_room_bytes_; }

 private:
  void sort_leases(const std::function<bool(const LeaseRow&)>& concerned, Preview& preview);
  std::string why_stuck(const LeaseRow& lease, const WantedMove* move) const;
  void move_all();
  Status move(PreviewedLease& one);
  void block(PreviewedLease one, const std::string& why);
  void sum_up(Preview& preview) const;
  void tell(Preview& preview) const;

  StateMachine state_;
  const uint64_t now_ns_;
  const HolderCount& holders_;
  std::vector<PreviewedLease> candidates_, moved_, blocked_;
  Served served_;
  uint64_t asked_ = 0, by_themselves_ = 0, no_room_bytes_ = 0;
};

}  // namespace terrace::daemon
