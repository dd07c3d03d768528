// SPDX-License-Identifier: Apache-2.0
// Small traces with answers that can be worked out by hand, in GiB and seconds.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "core/base/prng.h"
#include "core/base/units.h"
#include "daemon/plan/replay.h"
#include "daemon/plan/trace.h"

namespace terrace::plan {

struct Ask {
  uint64_t gib_asked, start_s, end_s;
};

inline Trace trace_of(const std::vector<Ask>& asks) {
  std::string text = "memory_mib,creation_time,deletion_time\n";
  for (const Ask& ask : asks)
    text += std::to_string(ask.gib_asked * 1024) + "," + std::to_string(ask.start_s) + "," +
            std::to_string(ask.end_s) + "\n";
  Result<Trace> trace = parse_trace(text, "made.csv");
  REQUIRE(trace.ok());
  return *trace;
}

inline Setup setup_of(uint64_t hosts, uint64_t local_gib, uint64_t pool_gib) {
  Setup setup;
  setup.hosts = hosts;
  setup.local_bytes = local_gib * gib;
  setup.pool_bytes = pool_gib * gib;
  setup.pool_devices = 1;
  setup.granule_bytes = 2 * mib;
  return setup;
}

// Two hosts whose peaks never meet: each always runs 4 GiB, and takes 8 GiB more in its own half of the time.
// Spread over the hosts (worst-fit) each needs 12 GiB alone, 24 in all; with the second part in a shared pool,
// 4 + 4 + 8 = 16 GiB serve the same.
inline Trace opposite_peaks() {
  return trace_of({{4, 0, 100}, {4, 0, 100}, {8, 10, 40}, {8, 50, 90}});
}

// Many requests of all sizes that come and go in no order; the same for the same seed.
inline Trace random_trace(uint64_t seed, uint64_t count) {
  Prng prng(seed);
  std::string text = "memory_mib,creation_time,deletion_time\n";
  for (uint64_t index = 0; index < count; ++index) {
    const uint64_t start_s = prng.below(20'000);
    const uint64_t memory_mib = prng.chance(1, 20) ? 0 : prng.between(1, 6000);
    text += std::to_string(memory_mib) + "," + std::to_string(start_s) + ",";
    if (!prng.chance(1, 50)) text += std::to_string(start_s + prng.below(400));
    text += "\n";
  }
  Result<Trace> trace = parse_trace(text, "random.csv");
  REQUIRE(trace.ok());
  return *trace;
}

}  // namespace terrace::plan
