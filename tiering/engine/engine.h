// SPDX-License-Identifier: Apache-2.0
// Rounds of looking, planning and moving over the tiered ranges of one process.
//
// Place     An owner (libterrace's TieredRange, the preload library) gives it a thread: hotness → policy →
//           migration, statistics into the tier page (core/layout/tier_page.h), requests out of it.
// Threads   run() and round() are the engine thread's. announce(), note_access(), wake() from any thread. All
//           else before the thread starts, or with every range's lock() held.
// Memory    libc only: it lives in unmodified programs. Its thread touches no memory of the range but through
//           aliases, and takes no lock that a thread could hold while it waits for a granule.
//
// Invariants
//   E1  No range holds more than its share of DDR but by the granules of one batch, while two trade places.
//   E2  No granule that is held, or gone, is moved; no granule is zapped while it moves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/layout/tier_page.h"
#include "tiering/hotness/access_events.h"
#include "tiering/hotness/sampler.h"
#include "tiering/migration/copy.h"
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
  bool can_move() const { return mover_.started(); }
  bool can_move(const TieredMemory& memory) const { return can_move() || memory.on_nodes(); }
  Mover& mover() { return mover_; }
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
  void set_paused(uint32_t range, bool paused);
  void set_policy(uint32_t range, const PolicyEntry* policy);
  void set_ddr_granules_max(uint32_t range, uint64_t granules);
  void set_copy_budget(uint64_t bytes_per_s) { budget_.set(bytes_per_s); }
  // Moves what it can of the granules now, whatever the policy thinks, within the range's DDR bound but beyond
  // the copy budget. What stopped it, if something did: no_slot, no_memory (the bound), held, ...
  MoveResult move_now(uint32_t range, uint32_t first, uint32_t count, Residency to);
  // The range is of no use to the engine any more (a fork made it private, its lease is lost).
  void give_up(uint32_t range, layout::TierState state, const char* reason);
  // Given up because memory behind it went away during a copy. Range's or engine's lock held.
  bool has_lost_memory(uint32_t range) const { return ranges_[range].lost_memory; }
  // What was given up for a fork is as it was before. Range's lock held.
  void suspend(uint32_t range, const char* reason);
  void resume(uint32_t range);
  // Asked for before or since.
  bool suspended_paused(uint32_t range) const { return ranges_[range].paused_meanwhile; }
  // What others copy for the engine counts too. The engine's thread's.
  CopyBudget& copy_budget() { return budget_; }

  const layout::TierRange& statistics(uint32_t range) const { return ranges_[range].page; }

 private:
  struct Note {
    uint32_t range, first, count, accesses;  // accesses 0: an announcement
    uint64_t when_ns;
    // Of the ring's position: empty, to be written at `position`; position + 1: written.
    std::atomic<uint32_t> sequence;
  };
  struct Range {
    TieredMemory* memory = nullptr;
    RangeOptions options;
    PolicyMemory policy_memory;
    Sampler sampler;
    layout::TierRange page = {};  // what the tier page shows, kept here too where there is none
    layout::TierRange* shown = nullptr;
    uint8_t* cells = nullptr;
    uint64_t sweep_due_ns = 0, plan_due_ns = 0;
    double ddr_accesses = 0, cxl_accesses = 0;  // decayed, as the sampler sees them
    uint64_t copied_bytes = 0, copied_shown_bytes = 0, shown_ns = 0;
    bool lost_memory = false;
    bool paused_meanwhile = false;  // forked: what it was, or was asked to be since
  };
  struct Batch;
  static constexpr uint32_t notes_max = 4096;
  static constexpr uint32_t moves_per_round = 2048;

  void put_note(uint32_t range, uint32_t first, uint32_t count, uint32_t accesses, uint64_t when_ns);
  void take_note(const Note& note);
  bool may_move(Range& range);
  void give_up_lost(Range& range);
  void take_notes();
  void take_events();
  void tell_refused(layout::TierRange& page);
  void sample(Range& range, uint64_t now_ns);
  void plan_and_move(Range& range, uint64_t now_ns);
  void carry_out(Range& range, const Move* moves, uint32_t count, uint32_t* done, uint32_t* failed);
  uint32_t move_next(Range& range, Batch& batch, Residency to, uint32_t granules_max);
  uint32_t trade(Range& range, Batch& rising, Batch& sinking, uint32_t granules_max);
  void note_move(Range& range, const MoveReport& report, Residency to);
  // Not analysed: takes the locks of as many ranges as there are.
  void divide_ddr(uint64_t now_ns) TERRACE_NO_THREAD_SAFETY_ANALYSIS;

  // page.cc
  bool open_page();
  bool make_page();
  void forget_page_in_child();
  void close_page();
  void show_range(uint32_t index);
  void publish(Range& range, uint64_t now_ns);
  void obey(Range& range);

  MoveLock lock_;
  EngineOptions options_;
  Mover mover_;
  AccessEvents events_;
  int userfault_errno_ = 0, prove_errno_ = 0;
  CopyBudget budget_;
  Range ranges_[ranges_max];
  uint32_t range_count_ = 0;
  Move* moves_ = nullptr;
  Note* notes_ = nullptr;
  std::atomic<uint32_t> note_next_{0};
  uint32_t note_read_ = 0;
  std::atomic<uint64_t> notes_dropped_{0};
  uint64_t divided_ns_ = 0;
  std::atomic<uint32_t> wake_word_{0};
  std::atomic<bool> stopping_{false};
  bool abandoned_ = false;
  layout::TierPage* page_ = nullptr;
  size_t page_bytes_ = 0;
  char page_path_[96] = {};
};

}  // namespace terrace::tiering
