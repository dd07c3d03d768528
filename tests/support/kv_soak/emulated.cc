// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kv_soak/emulated.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/kernel_clock.h"
#include "core/base/units.h"
#include "tests/coherence/kv_world.h"

namespace terrace::kv_soak {
namespace {

struct EmulatedRun {
  uint64_t first_seed = 1, worlds = 0;
  coherence::KvWorldCounts counts;
  std::string failure;
};

void print(const EmulatedRun& run, uint64_t begin_ns) {
  const nlohmann::json told = {{"memory", "emulated hosts without coherent caches"},
                               {"reads", run.counts.compared},
                               {"in_place", run.counts.compared_in_place},
                               {"puts", run.counts.puts},
                               {"removals", run.counts.removals},
                               {"kills", run.counts.deaths},
                               {"power_cuts", run.counts.power_cuts},
                               {"take_overs", run.counts.take_overs},
                               {"operations", run.counts.operations},
                               {"worlds", run.worlds},
                               {"first_seed", run.first_seed},
                               {"wrong", run.failure.empty() ? 0 : 1},
                               {"why", run.failure},
                               {"seconds", static_cast<double>(monotonic_ns() - begin_ns) / 1e9}};
  std::printf("%s\n", told.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

int run_emulated(uint64_t reads, uint64_t seed, bool plant, bool progress) {
  constexpr uint64_t operations_of_one = 5'000;
  const uint64_t begin_ns = monotonic_ns();
  uint64_t next_print_ns = begin_ns + ns_per_s;
  EmulatedRun run;
  run.first_seed = seed;
  for (; run.counts.compared < reads && run.failure.empty(); ++run.worlds) {
    coherence::KvWorld world(seed + run.worlds,
                             plant ? coherence::Step::data_before_flip : coherence::Step::none);
    world.run(operations_of_one);
    run.counts.add(world.counts());
    run.failure = world.failure();
    if (!progress || monotonic_ns() < next_print_ns) continue;
    next_print_ns = monotonic_ns() + ns_per_s;
    print(run, begin_ns);
  }
  print(run, begin_ns);
  return run.failure.empty() ? 0 : 1;
}

}  // namespace terrace::kv_soak
