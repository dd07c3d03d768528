// SPDX-License-Identifier: Apache-2.0
// Replays a trace on hosts with local memory and, if asked, a shared pool; says what was refused and how full,
// stranded and fragmented the memory was. Pure: virtual time, no randomness, the same answer every time.
//
// Place     trace.h -> here -> sizing.h. Memory is taken from real state machines (memory.h): one for each
//           host's own memory, one for the pool.
//
// What happens to a request at its start, after everything that ends by then was given back:
//   1. It needs whole granules on one host, and that host's cores and GPUs where those are limited.
//   2. If some host has room for all of it, it goes there (best_fit: the fullest such host; worst_fit: the
//   emptiest).
//   3. Else the host with most free memory gives what it has and the pool the rest, if that is no more than
//      pool_fraction_max of the request.
//   4. Else, or if the pool refuses, it is rejected: it is counted, and does not come again.
// Spill::even asks for the pool's share of all memory from the pool first, and falls back to the above.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/plan/trace.h"

namespace terrace::plan {

enum class Placement : uint8_t { best_fit, worst_fit };
enum class Spill : uint8_t { when_full, even };

struct Setup {
  uint64_t hosts = 1;
  uint64_t local_bytes = 0;  // each host's own memory
  uint64_t pool_bytes = 0;   // shared by all hosts; 0: none
  uint64_t pool_devices = 4;
  uint64_t granule_bytes = 0;
  double pool_fraction_max = 1.0;  // of one request
  Placement placement = Placement::best_fit;
  Spill spill = Spill::when_full;
  uint64_t host_cpu_milli = 0;  // 0: as many as are asked for
  uint64_t host_gpu_milli = 0;
};

// Why a request was rejected. The first that applies.
enum class Refusal : uint8_t {
  cpu_or_gpu = 0,       // no host had the cores or GPUs
  local_full = 1,       // no host had the part that must be local
  pool_full = 2,        // the pool had too little free
  pool_fragmented = 3,  // it had enough, in more pieces than a lease may have
};
inline constexpr size_t refusal_kinds = 4;

// The state after everything of one second happened.
struct Sample {
  uint64_t time_s = 0;
  uint64_t local_used_bytes = 0;
  uint64_t pool_used_bytes = 0;
  uint64_t pool_largest_free_bytes = 0;
  uint64_t stranded_bytes = 0;  // see Outcome
  double fragmentation = 0;     // of the pool, 0 to 1, as memory.h defines it
  uint64_t alive = 0;
  uint64_t rejected = 0;  // so far
};

// Means and percentiles are weighted by how long a state lasted.
struct Outcome {
  uint64_t requests = 0;
  uint64_t rejected = 0;
  std::array<uint64_t, refusal_kinds> refusals{};
  uint64_t rejected_bytes = 0;
  uint64_t spilled = 0;  // requests that were given some pool memory
  uint64_t local_peak_bytes = 0;
  uint64_t pool_peak_bytes = 0;
  uint64_t used_peak_bytes = 0;  // local and pool at one time
  uint64_t pool_extents_max = 0;

  // Only with record:
  // Stranded: local memory that is free on hosts which could not take one more request of the median size
  // (with the pool's help where there is one). Free, paid for, and of no use to most who would ask.
  double stranded_mean_bytes = 0;
  uint64_t stranded_peak_bytes = 0;
  // Local memory that was free somewhere when a request was rejected, on average over the rejections.
  double free_at_refusal_bytes = 0;
  double fragmentation_p50 = 0;  // over the time in which somebody had pool memory
  double fragmentation_p99 = 0;
  std::vector<Sample> samples;

  // Broken invariants of the state machines after the last request; empty when all hold.
  std::vector<std::string> problems;

  double rejected_share() const { return requests == 0 ? 0 : double(rejected) / double(requests); }
};

struct ReplayOptions {
  bool record = false;                 // samples and what is derived from them
  uint64_t check_every = 0;            // requests between two looks at all invariants; 0: only at the end
  uint64_t rejected_max = UINT64_MAX;  // stops early once passed; `rejected` is then one more than this
};

// Errors    invalid_argument   a setup that no state machine accepts (a granule that is no power of two, more
//                              devices than a manager adopts, no hosts)
Result<Outcome> replay(const Trace& trace, const Setup& setup, const ReplayOptions& options);

}  // namespace terrace::plan
