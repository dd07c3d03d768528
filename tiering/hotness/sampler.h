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
// longer while few are, and the accesses noted for a touched granule are the sweep's period over the wait.
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

#include "tiering/migration/tiered_memory.h"
#include "tiering/policy/policy.h"

namespace terrace::tiering {

struct SweepResult {
  uint32_t seen = 0;                          // granules looked at
  uint32_t touched = 0;                       // of those
  uint64_t wait_ns = 0;                       // between zap and look
  uint64_t cost_ns = 0;                       // of this thread
  double ddr_accesses = 0, cxl_accesses = 0;  // estimated, over the time since the last sweep
};

class Sampler {
 public:
  Sampler() = default;
  ~Sampler() { close(); }
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // 0 or an errno: ENOTTY, a kernel without PAGEMAP_SCAN (before 6.7).
  int open(TieredMemory* memory);
  void close();
  bool opened() const { return pagemap_fd_ >= 0; }

  // Takes the translations away. finish() is due in due_ns(); moves may happen in between. With a short wait
  // the whole sweep is done here, in some ms: group after group, since zapping a large range takes longer than
  // the wait.
  void begin(uint64_t now_ns);
  bool begun() const { return begun_; }
  uint64_t due_ns() const { return in_groups_ ? 0 : wait_ns_; }
  uint64_t wait_ns() const { return wait_ns_; }
  void set_wait_ns(uint64_t ns) { wait_ns_ = ns; }  // where adapting begins
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

 private:
  bool is_sampled(uint32_t granule) const;
  void zap(uint32_t first, uint32_t last);
  bool scan(char* from, char* to, uint64_t* present_bytes, uint64_t* huge_bytes);
  void look(uint32_t first, uint32_t last);
  void sweep_groups();
  void expose(uint32_t first, uint32_t last, uint64_t zap_ns, uint64_t wait_ns, uint64_t look_ns);
  void note_zap(uint32_t first, uint32_t last, uint64_t begin_ns, uint64_t end_ns);
  float watched(uint32_t granule);
  void choose_window();
  void adapt(const SweepResult& result, float aim);

  TieredMemory* memory_ = nullptr;
  int pagemap_fd_ = -1;
  uint8_t* touched_ = nullptr;
  void* regions_ = nullptr;
  size_t table_bytes_ = 0;
  uint64_t wait_ns_ = 1'000'000;
  uint64_t gap_ns_ = 100'000'000;
  uint64_t gap_ns_min_ = 50'000'000;
  uint64_t begun_ns_ = 0, last_begun_ns_ = 0;
  uint64_t zapped_ns_ = 0, work_ns_ = 0;
  uint64_t present_bytes_ = 0, huge_bytes_ = 0;
  float* exposed_ns_ = nullptr;
  // Only where first touches are noted. Since begun_ns_; since the zap, -1: none; of 1, decayed: the part of
  // its exposure that the granule was not waited for.
  float *zapped_after_ns_ = nullptr, *first_touch_ns_ = nullptr, *unwatched_ = nullptr;
  uint64_t window_offset_ = 0;
  uint64_t random_ = 0x9e3779b97f4a7c15u;
  bool begun_ = false;
  bool timed_ = false;
  bool in_groups_ = false;  // the sweep was done in begin()
  bool whole_ = true;       // granules are zapped whole; else a window of each
};

}  // namespace terrace::tiering
