// SPDX-License-Identifier: Apache-2.0
// Finds the granules in use without a performance counter: takes their translations away, and checks a little
// later which of them are back.
//
// One sweep is one madvise(MADV_DONTNEED) over the shared mapping (the contents stay: only page-table entries
// go), a wait, and one PAGEMAP_SCAN for the present pages. That sees reads and writes of any thread, and of
// system calls. Its cost for the program is a fault for each granule that it uses (about 1 us with huge
// pages).
//
// A sweep tells one bit a granule. So the wait adapts: it becomes shorter while most granules are touched,
// longer while few are (by bisection at first, then little by little), and the accesses noted for a touched
// granule are the sweep's period over the wait.
//
// Wait, exposure and period are time that the program ran (run_time.h). A look that comes while it has hardly run
// tells nothing about it: the wait goes on, and what has not been exposed long enough when patience ends is left
// out of the sweep.
//
// If the times of first touches are known as well (access_events.h), the mean time from zap to first touch
// replaces the exposure: then granules that every sweep finds touched can be ranked, too.
//
// Where memory has small pages a full zap would cost a fault for each page: then a random window of each
// granule is sampled.
//
// Place     engine → Sampler → policy's note_access().
// Threads   The engine's, with the range's lock held: never while a granule moves.
// Memory    libc only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiering/hotness/access_rates.h"
#include "tiering/hotness/run_time.h"
#include "tiering/migration/tiered_memory.h"
#include "tiering/policy/policy.h"

namespace terrace::tiering {

struct SweepResult {
  bool finished = true;      // false: the program has hardly run, finish() is due again in due_ns()
  uint32_t seen = 0;         // granules looked at
  uint32_t touched = 0;      // of those
  uint32_t cxl_touched = 0;  // and of those
  uint32_t dropped = 0;      // granules during whose exposure the program has hardly run
  uint64_t wait_ns = 0;      // between zap and look, of the time that passed
  uint64_t cost_ns = 0;      // CPU time of this thread
};

class Sampler {
 public:
  Sampler() = default;
  ~Sampler() { close(); }
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // 0 or an errno: ENOTTY, a kernel without PAGEMAP_SCAN (before 6.7). `run_time` outlives this; nullptr: the
  // program always runs.
  int open(TieredMemory* memory, RunTime* run_time = nullptr);
  void close();
  bool opened() const { return pagemap_fd_ >= 0; }

  // Takes the translations away. finish() is due in due_ns(); moves may happen in between. With a short wait
  // the whole sweep is done here, in some ms: group after group, since zapping a large range takes longer than
  // the wait.
  void begin(uint64_t now_ns);
  bool begun() const { return begun_; }
  uint64_t due_ns() const { return in_groups_ ? 0 : due_ns_; }
  uint64_t wait_ns() const { return wait_ns_; }
  // Where adapting goes on, little by little.
  void set_wait_ns(uint64_t ns) {
    wait_ns_ = ns;
    searching_ = false;
  }
  // The wait is still being looked for: sweeps should follow each other soon.
  bool searching() const { return searching_; }
  // How often each granule was seen, on average, by sweeps that told something.
  float times_seen() const;
  // Looks, and notes what was touched. `aim`: the share of granules that a sweep should find touched (0..1),
  // about the share that fits DDR: then the bit tells most.
  SweepResult finish(PolicyMemory& policy, uint64_t now_ns, float aim);
  // From now on note_first_touch() is called for what each sweep's faults tell, before its finish().
  void expect_first_touches() { timed_ = true; }
  // The granule was used at `offset` of it, when it had no translation. Times outside the sweep, and offsets
  // that were not looked at, are passed over.
  void note_first_touch(uint32_t granule, uint64_t offset, uint64_t when_ns);
  // When the next sweep may begin so that sweeps cost at most a hundredth of a processor, faults included.
  uint64_t gap_ns() const { return gap_ns_; }
  // The least time from one sweep to the next; at most two seconds. Before open().
  void set_gap_min(uint64_t ns) { gap_ns_min_ = ns; }
  const AccessRates& rates() const { return rates_; }

 private:
  // The program, during an exposure.
  enum class Ran : uint8_t { too_short, enough, too_long };
  static constexpr uint64_t enough_of_wait = 2;  // exposed for half of the wait: that tells something

  bool is_sampled(uint32_t granule) const;
  void zap(uint32_t first, uint32_t last);
  bool scan(char* from, char* to, uint64_t* present_bytes, uint64_t* huge_bytes);
  void look(uint32_t first, uint32_t last);
  bool sweep_groups();
  bool wait_for_turn(RunTime::Reading* now, uint64_t* ran_ns);
  uint64_t ran_since_zap(RunTime::Reading* now);
  void zap_all();
  // sweep_groups.cc
  Ran sweep_group(uint32_t first, uint32_t last, uint64_t patience_ns);
  RunTime::Reading wait_until_ran(const RunTime::Reading& from, uint64_t patience_ns);
  void look_sharper();
  bool look_sharper_at(uint32_t granule);
  RunTime::Reading read_exactly() const;

  RunTime::Reading read();
  uint64_t program_now_ns(uint64_t now_ns);
  void expose(uint32_t first, uint32_t last, uint64_t zap_ns, uint64_t wait_ns, uint64_t look_ns);
  void note_zap(uint32_t first, uint32_t last, uint64_t begin_ns, uint64_t end_ns);
  void leave_out(uint32_t first, uint32_t last);
  bool look_at_all(uint64_t* waited_ns);
  SweepResult count();
  void note(uint32_t granule, PolicyMemory& policy, uint64_t now_ns);
  float watched(uint32_t granule);
  void choose_window();
  void adapt(const SweepResult& result, float aim);
  void bisect(float share, float aim);

  TieredMemory* memory_ = nullptr;
  RunTime* run_time_ = nullptr;
  int pagemap_fd_ = -1;
  uint8_t* touched_ = nullptr;
  void* regions_ = nullptr;
  size_t table_bytes_ = 0;
  uint64_t wait_ns_ = 1'000'000;
  uint64_t short_wait_ns_ = 0, long_wait_ns_ = 0;  // between which the wait is looked for
  uint64_t due_ns_ = 0;
  uint64_t gap_ns_ = 100'000'000;
  uint64_t gap_ns_min_ = 50'000'000;
  uint64_t begun_ns_ = 0;
  uint64_t zapped_ns_ = 0, work_ns_ = 0;
  RunTime::Reading zapped_;         // where the sweep is not done in groups: exact, for a short wait
  RunTime::Reading zapped_by_all_;  // the same by all threads
  uint32_t zapped_watch_ = 0;
  uint32_t turns_ = 0;  // for which the program was waited in vain
  uint32_t zaps_ = 0;   // of all granules, in this sweep
  uint64_t present_bytes_ = 0, huge_bytes_ = 0;
  float* exposed_ns_ = nullptr;  // in this sweep, of the time that the program ran; -1: not long enough to tell
  uint64_t* seen_ns_ = nullptr;  // when a sweep has told something of it last, by the clock of policies
  // Only where first touches are noted. Since begun_ns_; since the zap, -1: none; how much of that time the
  // program did not run; of 1, decayed: the part of its exposure that the granule was not waited for.
  float *zapped_after_ns_ = nullptr, *first_touch_ns_ = nullptr, *stood_ns_ = nullptr, *unwatched_ = nullptr;
  AccessRates rates_;
  uint64_t seen_ = 0;        // granules, ever
  uint32_t next_sharp_ = 0;  // with which sharper looks go on
  uint64_t window_offset_ = 0;
  uint64_t random_ = 0x9e3779b97f4a7c15u;
  bool begun_ = false;
  bool timed_ = false;
  bool searching_ = true;
  bool beside_ = true;      // the program runs while this thread does: on another processor
  bool in_groups_ = false;  // the sweep was done in begin()
  bool short_ = false;      // its wait is
  bool idle_ = false;       // nobody waited for a processor at the last look
  bool whole_ = true;       // granules are zapped whole; else a window of each
};

}  // namespace terrace::tiering
