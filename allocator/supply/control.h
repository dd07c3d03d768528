// SPDX-License-Identifier: Apache-2.0
// The supervisor's side of the control page: the run's DDR budget and one slot a process.
//
// Threads   One at a time: the caller's lock. Programs write their slots meanwhile.
// Trust     Slots are untrusted numbers; sums saturate and never go below zero.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "allocator/supply/protocol.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::supply {

// What lets the programs' memory move between DDR and CXL. Without it their DDR part is plain memory.
struct Migration {
  std::string policy;             // of tiering/policy; empty: nothing moves
  uint64_t copy_bytes_per_s = 0;  // of each process; 0: unbounded
  uint64_t round_ns = 0;          // 0: the engine's own
  bool access_events = false;     // the kernel's records of accesses as well (tiering/hotness/access_events.h)
  // /dev/userfaultfd, for programs that may not make a userfaultfd themselves; -1: they may. The caller's, open
  // as long as the Broker lives.
  int userfault_device = -1;
};

// Sums over processes: those that ended, and those that still run.
struct Totals {
  uint64_t live_ddr = 0, live_cxl = 0, live_detached = 0;  // running processes only
  uint64_t peak_live_process = 0;                          // the largest that any one process had
  uint64_t allocations_ddr = 0, allocations_cxl = 0, allocations_detached = 0;
  uint64_t fallbacks = 0, refused = 0, during_fork = 0;
  uint64_t forks_switched = 0, switched_bytes = 0, forks_failed = 0;
  uint64_t folded_bytes = 0, folds = 0;
  uint64_t processes = 0;
  uint64_t processes_moving = 0;        // in which the engine runs now
  uint64_t processes_moved = 0;         // in which it moved something
  uint64_t tier_ddr = 0, tier_cxl = 0;  // of running processes whose memory migrates: where it is now
  uint64_t promotions = 0, demotions = 0, moves_undone = 0, moves_skipped = 0;  // granules
  uint64_t leases_left = 0, left_bytes = 0;  // emptied since they were taken back
  uint64_t stalled_ns = 0, copy_ns = 0, sampler_ns = 0;
};

class ControlPage {
 public:
  struct Budgets {
    uint64_t ddr_bytes = 0;
    uint64_t cxl_bytes = 0;
    bool fallback = false;
    const Migration* migration = nullptr;  // nullptr or without a policy: nothing moves
  };
  static Result<std::unique_ptr<ControlPage>> create(Budgets budgets);
  ~ControlPage();
  ControlPage(const ControlPage&) = delete;
  ControlPage& operator=(const ControlPage&) = delete;

  int fd() const { return fd_.get(); }
  uint64_t device() const { return device_; }
  uint64_t inode() const { return inode_; }

  // A fresh slot for `pid`; one that it had as another program image is given back first. no_slot: all taken.
  uint32_t claim(pid_t pid);
  uint32_t pid(uint32_t slot) const;  // 0: it is free
  // A copy of the slot's numbers as they are now; pid 0 when it is free.
  Slot read(uint32_t slot) const;
  // A copy of the slot's page of statistics; small classes may be half written (small_classes_are_complete).
  ProcessStatistics read_statistics(uint32_t slot) const;
  // Asks all processes for what they work out only then.
  void ask_for_statistics();
  // Tells the process to leave the lease of its segment, with so much DDR beyond the budget. False: it has no
  // slot, or its memory does not move.
  bool ask_to_leave(pid_t pid, uint32_t segment, uint64_t room_bytes);
  // Another lease has the segment's number now.
  void stay(pid_t pid, uint32_t segment);
  // Called with a process's last numbers before its slot is cleared.
  void on_end(std::function<void(const Slot&, const ProcessStatistics&)> handler) {
    on_end_ = std::move(handler);
  }
  // The process is gone (or is another program now): adds up its counters and returns its DDR charge, or moves
  // the part that its forked children still hold to them.
  void reclaim(uint32_t slot);
  // Gives back charges that no slot accounts for: those of processes killed between two steps. Call it about
  // once a second; only what was missing in `reconcile_rounds` calls in a row counts.
  void reconcile();

  Totals totals() const;
  uint64_t ddr_used() const;
  uint32_t processes() const;  // slots in use

 private:
  static constexpr int reconcile_rounds = 5;

  ControlPage() = default;
  Slot& slot(uint32_t index) const { return slots_of(header_)[index]; }
  void give_back(uint64_t bytes);

  UniqueFd fd_;
  ControlHeader* header_ = nullptr;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  Totals ended_;
  uint64_t surplus_min_ = UINT64_MAX;
  int surplus_rounds_ = 0;
  std::function<void(const Slot&, const ProcessStatistics&)> on_end_;
};

}  // namespace terrace::supply
