// SPDX-License-Identifier: Apache-2.0
// A range of the engine: its memory, what its owner asked for, what is known of its granules, what the tier page says.
//
// Threads   With the range's lock held, `memory->lock()`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout/tier_page.h"
#include "tiering/hotness/sampler.h"
#include "tiering/migration/tiered_memory.h"
#include "tiering/policy/policy.h"

namespace terrace::tiering {

inline constexpr uint32_t ranges_max = layout::tier_ranges_max;

// What the owner keeps account of. All are called on the engine's thread with the range's lock held, except
// `after_round`, without it. Any may be null.
struct RangeHooks {
  void* owner = nullptr;
  // May `granules` more be in DDR? And: they no longer are.
  bool (*take_ddr)(void* owner, uint32_t granules) = nullptr;
  void (*give_ddr)(void* owner, uint32_t granules) = nullptr;
  void (*after_round)(void* owner) = nullptr;
  // Before each round, with the lock: nullptr, or why the range must not be moved (or looked at) ever again, as
  // when its lease is being taken back: where copies are not guarded (EngineOptions::copy), one from memory that
  // is fenced ends the process.
  const char* (*why_stop)(void* owner) = nullptr;
};

struct RangeOptions {
  const char* name = "";                // printable, at most tier_name_bytes - 1
  const PolicyEntry* policy = nullptr;  // nullptr: the default
  uint64_t ddr_granules_max = 0;        // in DDR at most
  uint32_t weight = 1;                  // of its fair part, where ranges share DDR
  RangeHooks hooks;
};

struct RangeState {
  TieredMemory* memory = nullptr;  // nullptr: there is no range here
  RangeOptions options;
  PolicyMemory policy_memory;
  Sampler sampler;
  layout::TierRange page = {};         // what the tier page shows, kept here too where there is none
  layout::TierRange* shown = nullptr;  // of the tier page
  uint8_t* cells = nullptr;
  uint64_t sweep_due_ns = 0, plan_due_ns = 0;
  double ddr_accesses = 0, cxl_accesses = 0;  // decayed, as the sampler sees them
  uint64_t copied_bytes = 0, copied_shown_bytes = 0, shown_ns = 0;
  bool lost_memory = false;
  bool paused_meanwhile = false;  // forked: what it was, or was asked to be since

  layout::TierState state() const { return static_cast<layout::TierState>(page.state); }
  void set_state(layout::TierState state) { page.state = static_cast<uint32_t>(state); }
  // Of no use to the engine any more, or not for now.
  void give_up(layout::TierState state, const char* reason);
  // What was given up for a fork is as it was before.
  void suspend(const char* reason);
  void resume();
  void set_paused(bool paused);
  void set_policy(const PolicyEntry* policy);
  void set_ddr_granules_max(uint64_t granules);
  // Not where it was given up, or its memory is about to go (RangeHooks::why_stop; then it is given up).
  bool may_move();
};

// Cut to `size` - 1 bytes, and filled up with zeros.
void copy_text(char* to, size_t size, const char* from);

}  // namespace terrace::tiering
