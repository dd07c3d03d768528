// SPDX-License-Identifier: Apache-2.0
// The figures of a run's memory: by process, by size class, by tier and lease, and summed over the
// run.
//
// Place     Broker::report() fills it from the control page and the leases; cli writes and shows it.
// Trust     Processes tell their numbers themselves (protocol.h): sums saturate, counts and indexes are
//           bounded, nothing else is believed or refused.
// Threads   Plain values.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/supply/control.h"
#include "allocator/supply/protocol.h"

namespace terrace::supply {

struct RunStats {
  Totals totals;
  uint64_t peak_live_bytes = 0;  // all processes together, as seen each tick; at least any process's own peak
  uint64_t ddr_used = 0;         // of the DDR budget
  uint64_t leases_granted = 0, leases_released = 0;
  uint64_t leased_bytes = 0, leased_bytes_peak = 0;
};

struct SizeClassReport {
  bool large = false;  // runs of pages, else blocks of the small allocator
  uint64_t bytes_min = 0, bytes_max = 0;
  uint64_t blocks = 0, bytes = 0;  // live
  uint64_t allocations = 0;        // large only: since the start, ended processes included
  uint64_t bytes_at_peak = 0;      // when the run's live bytes were highest, as far as was seen
};

// Of one process, or summed.
struct MemoryReport {
  uint64_t live_ddr = 0, live_cxl = 0, live_detached = 0;  // of the window, handed out, by where it is
  uint64_t large_bytes = 0;                                // in blocks of the program
  uint64_t mapped_bytes = 0;                               // in mappings of the program
  uint64_t extent_bytes = 0, plain_bytes = 0;              // that the small allocator has: window, elsewhere
  uint64_t small_bytes = 0;                                // live in small blocks
  uint64_t ddr_bytes = 0;                                  // charged to the DDR budget
  uint64_t leased_bytes = 0;
  uint64_t outside_bytes = 0;  // resident, the process's own, in neither budget: mmap, stacks, other allocators
  uint64_t free_bytes = 0, longest_free_bytes = 0;  // of the window; of several: the longest of any
  uint64_t peak_live = 0;                           // of the window
  uint64_t allocations_ddr = 0, allocations_cxl = 0, allocations_detached = 0;
  uint64_t refused = 0, fallbacks = 0, fallback_bytes = 0, during_fork = 0;
  std::array<uint64_t, full_reasons> refused_by = {}, fallbacks_by = {};
  uint64_t promotions = 0, demotions = 0;  // granules
  uint64_t promoted_bytes = 0, demoted_bytes = 0;
  // Lately; 0 from the Broker, which knows one moment only.
  uint64_t promotions_per_s = 0, demotions_per_s = 0, copy_bytes_per_s = 0;

  // What the program has: its blocks, large and small; where the small ones are not told, their extents.
  uint64_t live_bytes() const;
  // What is kept for it: DDR, leases, plain memory of the small allocator.
  uint64_t held_bytes() const;
  void add(const MemoryReport& other);
};

struct ProcessReport {
  pid_t pid = 0;
  std::string name;
  bool running = true;  // false: `memory` is what it was at the end
  bool small_known = false;
  uint64_t small_age_ns = 0;  // since the small classes were told
  bool room_known = false;    // free_bytes and longest_free_bytes
  MigrationState migration = MigrationState::not_started;
  EndReason end_reason = EndReason::none;  // of `stopped`
  bool can_start = false;                  // of `not_started`: its window is made for it
  bool forked_child = false;
  std::string why_still;  // in words; empty: its memory moves, or it has ended
  MemoryReport memory;
  std::vector<SizeClassReport> classes;  // with live blocks or allocations, ascending
};

struct LeaseReport {
  uint64_t id = 0;
  std::string label;
  pid_t owner = 0;
  std::string owner_name;
  uint64_t bytes = 0;
  uint64_t live_bytes = 0;  // handed out of it; 0 once its owner has ended
};

struct RunReport {
  RunStats stats;
  MemoryReport sum;                      // of the running processes; counters of the ended ones as well
  std::vector<SizeClassReport> classes;  // summed likewise
  std::vector<ProcessReport> processes;  // running, by pid, then ended, the largest first
  uint64_t processes_left_out = 0;       // ended ones that are in the sums only
  std::vector<LeaseReport> leases;
  uint64_t peak_live_bytes = 0;  // of all together, with the classes' bytes_at_peak
  // Processes that the program started and that do not use the window: statically linked ones, those with an
  // allocator of their own. What they have resident for themselves.
  uint64_t other_processes = 0, other_bytes = 0;
  // Of running processes: whose small blocks are in `sum` by their extents only.
  uint64_t small_unknown = 0;
};

// One process's numbers. `small_known_before`: its page when its small classes could last be read whole, for
// when that is not so in `page`; may be nullptr. `now_ns`: CLOCK_MONOTONIC.
ProcessReport describe_process(const Slot& slot, const ProcessStatistics& page,
                               const ProcessStatistics* small_known_before, uint64_t leased_bytes,
                               uint64_t now_ns);
// Whether the small classes of a copied page were whole when they were copied.
bool small_classes_are_complete(const ProcessStatistics& page);

// Adds to a table that is kept ascending.
void add_classes(const std::vector<SizeClassReport>& from, std::vector<SizeClassReport>* to);

const char* full_reason_name(uint32_t reason);  // "budgets", "scattered", ...

}  // namespace terrace::supply
