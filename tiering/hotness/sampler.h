// Which granules are in use, without a performance counter: take their translations away, look a little later
// which of them came back.
//
// One sweep is one madvise(MADV_DONTNEED) over the shared mapping (the contents stay: only page-table entries
// go), a wait, and one PAGEMAP_SCAN for what is present again. That sees reads and writes of any thread, and of
// system calls. What it costs the program is a fault for each granule that it uses (about 1 us with huge
// pages).
//
// A sweep tells one bit a granule. So the wait adapts: it becomes shorter while most granules are touched,
// longer while few are, and the accesses noted for a touched granule are the sweep's period over the wait.
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
  double ddr_accesses = 0, cxl_accesses = 0;  // estimated, over the sweep's period
};

class Sampler {
 public:
  Sampler() = default;
  ~Sampler() { close(); }

  // 0 or an errno: ENOTTY or EINVAL, a kernel without PAGEMAP_SCAN (before 6.7).
  int open(TieredMemory* memory);
  void close();
  bool opened() const { return pagemap_fd_ >= 0; }

  // Zaps, waits, looks, and notes what was touched. `period_ns`: since the last sweep.
  SweepResult sweep(PolicyMemory& policy, uint64_t period_ns);

 private:
  bool zap(uint64_t window_offset);
  uint32_t look(uint64_t window_offset, uint8_t* touched);
  bool huge_mapped();
  void adapt(const SweepResult& result);

  TieredMemory* memory_ = nullptr;
  int pagemap_fd_ = -1;
  uint8_t* touched_ = nullptr;
  void* regions_ = nullptr;
  size_t table_bytes_ = 0;
  uint64_t wait_ns_ = 1'000'000;
  uint64_t random_ = 0x9e3779b97f4a7c15u;
  uint64_t sweeps_ = 0;
  bool whole_granules_ = true;
};

}  // namespace terrace::tiering
