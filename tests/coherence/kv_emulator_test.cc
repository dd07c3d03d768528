// SPDX-License-Identifier: Apache-2.0
// The protocol of KV spaces on emulated hosts without coherent caches (kv_world.h).
//
//   TERRACE_COHERENCE_OPERATIONS=10000000   how many (default 400,000)
//   TERRACE_COHERENCE_SEED=N                the first seed; a failure prints its own
//   TERRACE_COHERENCE_STEP=NAME             of the steps that are left out this one alone, from that seed on
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "tests/coherence/kv_world.h"

using namespace terrace;
using namespace terrace::coherence;

namespace {

uint64_t kv_number(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string run_kv_worlds(uint64_t seed, uint64_t operations, Step left_out, KvWorldCounts* counts) {
  constexpr uint64_t of_one = 5'000;
  for (uint64_t done = 0; done < operations; ++seed) {
    KvWorld world(seed, left_out);
    world.run(std::min(of_one, operations - done));
    done += world.counts().operations;
    counts->add(world.counts());
    if (!world.failure().empty()) return world.failure();
  }
  return {};
}

struct KvStep {
  Step step;
  const char* name;
  uint64_t seed = 1;  // of a world near one that shows it
};
#define KV_STEP(name) \
  { Step::name, #name, 1 }
constexpr KvStep kv_steps[] = {
    KV_STEP(pins_invalidated),    KV_STEP(data_written_back),
    KV_STEP(data_before_flip),    KV_STEP(flip_written_back),
    KV_STEP(flip_before_return),  KV_STEP(record_invalidated),
    KV_STEP(record_before_look),  KV_STEP(data_invalidated),
    KV_STEP(data_before_read),    {Step::read_before_recheck, "read_before_recheck", 1930},
    KV_STEP(recheck_invalidated), KV_STEP(recheck),
    KV_STEP(pin_written_back),    KV_STEP(pin_before_recheck),
    KV_STEP(pin_recheck),         KV_STEP(copy_invalidated),
    KV_STEP(copy_before_look),    KV_STEP(copy_look),
    KV_STEP(claim_written_back),  KV_STEP(claim_look),
    KV_STEP(claims_invalidated),  KV_STEP(retire_before_pins),
    KV_STEP(retire_pin_check),    KV_STEP(gone_written_back),
    KV_STEP(gone_before_reuse),   KV_STEP(take_over_invalidated),
    KV_STEP(dead_written_back),
};

}  // namespace

TEST_CASE("no block is torn, stale, lost or moved, whatever caches and deaths do") {
  KvWorldCounts counts;
  const std::string failure =
      run_kv_worlds(kv_number("TERRACE_COHERENCE_SEED", 1), kv_number("TERRACE_COHERENCE_OPERATIONS", 400'000),
                    Step::none, &counts);
  CHECK_MESSAGE(failure.empty(), failure);
  MESSAGE(counts.reads, " reads, ", counts.puts, " puts, ", counts.pins, " pins, ", counts.removals,
          " removals, ", counts.deaths, " deaths, ", counts.take_overs, " take-overs, ", counts.without_room,
          " without room, ", counts.copies, " reads of copies");
  CHECK(counts.pins > 1000);
  CHECK(counts.deaths > 200);
  CHECK(counts.removals > 1000);
  CHECK(counts.copies > 1000);
}

TEST_CASE("each step that is left out does damage") {
  const char* const only = std::getenv("TERRACE_COHERENCE_STEP");
  for (const KvStep& step : kv_steps) {
    if (only != nullptr && std::string(only) != step.name) continue;
    KvWorldCounts counts;
    const std::string failure =
        run_kv_worlds(only == nullptr ? step.seed : kv_number("TERRACE_COHERENCE_SEED", 1),
                      kv_number("TERRACE_COHERENCE_OPERATIONS", 1'500'000), step.step, &counts);
    CHECK_MESSAGE(!failure.empty(), std::string(step.name), " was left out, and nothing was wrong");
    MESSAGE(std::string(step.name), ": ", failure);
  }
}
