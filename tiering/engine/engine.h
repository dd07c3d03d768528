// SPDX-License-Identifier: Apache-2.0
// Rounds of looking, planning and moving over the tiered ranges of one process.
//
// Place     An owner (libterrace's TieredRange, the preload library) gives it a thread: hotness → policy →
//           migration, statistics into the tier page (core/layout/tier_page.h), requests out of it.
// Threads   run() and round() are the engine thread's. announce(), note_access(), wake() from any thread. All
//           else before the thread starts, or with every range's lock() held.
// Memory    libc only: it lives in unmodified programs. Its thread touches no memory of the range but through
//           aliases, and takes no lock that a thread could hold while it waits for a granule.
// Parts     note_ring.h (what other threads say), range_state.h (a range), range_mover.h (moves, E1 and half of E2),
//           tier_page_writer.h (what `terrace tier` reads and asks for)
//
// Invariants
//   E2  No granule is zapped while it moves: a round does one after the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/layout/tier_page.h"
#include "tiering/engine/note_ring.h"
#include "tiering/engine/range_mover.h"
#include "tiering/engine/range_state.h"
#include "tiering/engine/tier_page_writer.h"
#include "tiering/hotness/access_events.h"
#include "tiering/migration/copy.h"
#include "tiering/migration/tiered_memory.h"
#include "tiering/policy/policy.h"

namespace terrace::tiering {

struct EngineOptions {
  int userfault_device = -1;        // as Userfault::start; not kept
  uint64_t batch_bytes = 2u << 20;  // of one run of moves: how long an access can wait
  uint64_t copy_bytes_per_s_max = 2ull << 30;
  uint64_t round_ns = 250'000'000;
  uint64_t sweep_gap_ns_min = 0;  // between two looks of the sampler; 0: its own
  uint32_t copy_threads = 1;
  CopyBlock copy = nullptr;  // as Mover::set_copy(); a range whose memory went away during a copy is given up
  bool prove_moves = false;  // nothing moves whose pages may be pinned: Mover::prove_moves()
  TierCosts costs;
  PolicyOptions policy;
  uint64_t ddr_granules_shared = 0;  // not 0: divided between the ranges, of one size of granule; their own
                                     // maxima are where they begin
  bool publish = true;               // make the tier page
  // Look at the kernel's records of faults and the PMU's samples, what of them is permitted. Off: records cost
  // the whole program, also where it uses no range.
  bool access_events = false;
};

class Engine {
 public:
  Engine() = default;
  ~Engine() { close(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Always usable afterwards: where userfaultfd is refused the ranges work and nothing moves, which can_move(),
  // the tier page and the returned errno say.
  int open(const EngineOptions& options);
  void close();
  // In a child of fork, which has neither the threads nor the memory: everything stays callable, and nothing of
  // the parent's is touched.
  void abandon_in_child();
  bool abandoned() const { return abandoned_; }
  bool can_move() const { return mover_.mover().started(); }
  bool can_move(const TieredMemory& memory) const { return can_move() || memory.on_nodes(); }
  Mover& mover() { return mover_.mover(); }
  // Of EngineOptions::prove_moves: 0, or why the kernel cannot be asked. Then moves are not proved: the owner
  // decides.
  int prove_errno() const { return prove_errno_; }
  const AccessEvents& access_events() const { return events_; }

  // 0 or ENOSPC (ranges_max). `memory` outlives its place here. `*index` names the range.
  int add_range(TieredMemory* memory, const RangeOptions& options, uint32_t* index);
  void remove_range(uint32_t index);

  // Held during each round. Whoever adds or removes ranges, reads their statistics, or forks, while run() is at
  // work takes it; a round lasts as long as a tenth of a second's copy budget, and some ms.
  MoveLock& lock() TERRACE_RETURN_CAPABILITY(lock_) { return lock_; }
  // Rounds until stop(); sleeps in between.
  void run();
  void stop();
  // One round over all ranges. Returns when the next one is due, in ns from now.
  uint64_t round();
  void wake();  // begin the next round now

  // The granules will be used in `in_ns` from now (a step's order, a request's blocks). Lock-free; when too
  // many are waiting to be taken note of, the rest are dropped and counted.
  void announce(uint32_t range, uint32_t first, uint32_t count, uint64_t in_ns);
  // An exact count from a guard.
  void note_access(uint32_t range, uint32_t first, uint32_t count, uint32_t accesses);

  // As `terrace tier pause|resume|set`; engine thread or with the range's lock held.
  void set_paused(uint32_t range, bool paused) { ranges_[range].set_paused(paused); }
  void set_policy(uint32_t range, const PolicyEntry* policy) { ranges_[range].set_policy(policy); }
  void set_ddr_granules_max(uint32_t range, uint64_t granules) {
    ranges_[range].set_ddr_granules_max(granules);
  }
  void set_copy_budget(uint64_t bytes_per_s) { mover_.budget().set(bytes_per_s); }
  // Moves what it can of the granules now, whatever the policy thinks, within the range's DDR bound but beyond
  // the copy budget. What stopped it, if something did: no_slot, no_memory (the bound), held, ...
  MoveResult move_now(uint32_t range, uint32_t first, uint32_t count, Residency to);
  // The range is of no use to the engine any more (a fork made it private, its lease is lost).
  void give_up(uint32_t range, layout::TierState state, const char* reason) {
    ranges_[range].give_up(state, reason);
  }
  // Given up because memory behind it went away during a copy. Range's or engine's lock held.
  bool has_lost_memory(uint32_t range) const { return ranges_[range].lost_memory; }
  // What was given up for a fork is as it was before. Range's lock held.
  void suspend(uint32_t range, const char* reason) { ranges_[range].suspend(reason); }
  void resume(uint32_t range) { ranges_[range].resume(); }
  // Asked for before or since.
  bool suspended_paused(uint32_t range) const { return ranges_[range].paused_meanwhile; }
  // What others copy for the engine counts too. The engine's thread's.
  CopyBudget& copy_budget() { return mover_.budget(); }

  const layout::TierRange& statistics(uint32_t range) const { return ranges_[range].page; }

 private:
  static constexpr uint32_t moves_per_round = 2048;
  static constexpr size_t tables_bytes = NoteRing::bytes + moves_per_round * sizeof(Move);

  void describe(RangeState& range, TieredMemory* memory, const char* name, bool blind);
  void tell_refused(layout::TierRange& page);

  // rounds.cc
  uint64_t round_of(RangeState& range);
  void take_note(const Note& note);
  void take_notes();
  void take_events();
  void obey(RangeState& range);
  void sample(RangeState& range, uint64_t now_ns);
  void plan_and_move(RangeState& range, uint64_t now_ns);
  // Not analysed: takes the locks of as many ranges as there are.
  void divide_ddr(uint64_t now_ns) TERRACE_NO_THREAD_SAFETY_ANALYSIS;

  MoveLock lock_;
  EngineOptions options_;
  RangeMover mover_;
  AccessEvents events_;
  NoteRing notes_;
  TierPageWriter page_;
  RangeState ranges_[ranges_max];
  uint32_t range_count_ = 0;
  char* tables_ = nullptr;  // mapped: of the notes, then of the moves of a round
  Move* moves_ = nullptr;
  int userfault_errno_ = 0, prove_errno_ = 0;
  uint64_t divided_ns_ = 0;
  std::atomic<uint32_t> wake_word_{0};
  std::atomic<bool> stopping_{false};
  bool abandoned_ = false;
};

}  // namespace terrace::tiering
