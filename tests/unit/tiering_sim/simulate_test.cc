// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/unit/tiering_sim/traces.h"
#include "tiering/sim/generators.h"
#include "tiering/sim/numbers.h"
#include "tiering/sim/simulate.h"

namespace terrace::tiering {
namespace {

// A machine of round figures: DDR 1 ms, CXL 4 ms, a move 10 ms a granule.
Machine round_machine() {
  Machine machine{.granule_bytes = 1'000'000, .costs = {}};
  machine.costs = {.ddr_latency_ns = 0,
                   .cxl_latency_ns = 0,
                   .cxl_bandwidth_bytes_per_s = 250e6f,
                   .copy_bytes_per_s = 100e6f,
                   .move_overhead_ns = 0,
                   .ddr_bandwidth_bytes_per_s = 1e9f};
  return machine;
}

TEST_CASE("simulate: static keeps in DDR what came first, and the time in memory adds up") {
  const auto outcome = simulate(trace_of("abcabc"), "static", 2, round_machine());
  REQUIRE(outcome.ok());
  CHECK(outcome->hits == 2);
  CHECK(outcome->re_references == 3);
  CHECK(outcome->new_in_cxl == 1);
  CHECK(outcome->memory_s == doctest::Approx(0.012));  // a, b: twice 1 ms; c: twice 4 ms
  CHECK(outcome->stall_s == doctest::Approx(0.006));
  CHECK(outcome->promotions + outcome->demotions == 0);
}

TEST_CASE("simulate: caches bring in what is missed; their waits are the missed re-references") {
  const auto outcome = simulate(trace_of("abab"), "lru", 1, round_machine());
  REQUIRE(outcome.ok());
  CHECK(outcome->hits == 0);
  CHECK(outcome->promotions == 2);
  CHECK(outcome->demotions == 3);
  CHECK(outcome->bytes_copied == 5'000'000);
  CHECK(outcome->memory_s == doctest::Approx(0.010));  // two new ones at 1 ms, two missed ones at 4 ms
}

TEST_CASE("simulate: hits behind an object that is not there are no prefix") {
  TraceBuilder builder("requests");
  uint64_t time_ns = 0;
  for (const std::string_view request : {"abc", "abc", "cab", "acb"}) {
    builder.begin_request(time_ns += 1'000'000'000);
    for (const char object : request) builder.use(static_cast<uint64_t>(object));
  }
  const Trace trace = builder.finish();
  const auto kept = simulate(trace, "static", 2, round_machine());  // a and b
  REQUIRE(kept.ok());
  CHECK(kept->hits == 6);
  CHECK(kept->prefix_hits == 2 + 0 + 1);
  const auto all = simulate(trace, "lru", 3, round_machine());
  REQUIRE(all.ok());
  CHECK(all->hits == 9);
  CHECK(all->prefix_hits == 9);
  const auto two = simulate(trace, "lru", 2, round_machine());  // ... ... h.. h..
  REQUIRE(two.ok());
  CHECK(two->hits == 2);
  CHECK(two->prefix_hits == 2);
  TraceBuilder other("a miss first");
  for (const std::string_view request : {"ab", "cb"}) {
    other.begin_request(time_ns += 1'000'000'000);
    for (const char object : request) other.use(static_cast<uint64_t>(object));
  }
  const auto behind = simulate(other.finish(), "lru", 3, round_machine());
  REQUIRE(behind.ok());
  CHECK(behind->hits == 1);
  CHECK(behind->prefix_hits == 0);
}

TEST_CASE("simulate: what is announced is in DDR when its turn comes, if there is time to copy") {
  // Eight objects go round; DDR has room for four. By history nothing can be better than another.
  std::string letters;
  for (int round = 0; round < 30; ++round) letters += "abcdefgh";
  const Trace trace = trace_of(letters);
  Machine machine = round_machine();
  const auto history = simulate(trace, "static", 4, machine);
  machine.look_ahead = 2;
  const auto ahead = simulate(trace, "benefit-density", 4, machine);
  REQUIRE(ahead.ok());
  CHECK(ahead->ddr_hit_share() > 0.97);
  CHECK(history->ddr_hit_share() < 0.51);
  // A move that takes longer than there is until the next request: it is waited for, or not begun.
  machine.costs.copy_bytes_per_s = 0.5e6f;
  const auto slow = simulate(trace, "benefit-density", 4, machine);
  CHECK(slow->ddr_hit_share() < 0.9);
}

TEST_CASE("simulate: the copy budget bounds what is moved") {
  const Trace trace = *generate_trace("shift", 0.05);
  Machine machine;
  machine.copy_budget_bytes_per_s = machine.granule_bytes;  // one granule a second, of an hour
  for (const char* policy : {"benefit-density", "watermark-lru"}) {
    const auto outcome = simulate(trace, policy, 50, machine);
    REQUIRE(outcome.ok());
    CHECK(outcome->promotions + outcome->demotions <= 3602);
    CHECK(outcome->promotions > 0);
  }
}

TEST_CASE("simulate: the same trace gives the same outcome, and DDR for everything means no stall") {
  const Trace trace = *generate_trace("conversation", 0.02);
  for (const std::string_view name : simulated_names()) {
    CAPTURE(name);
    const auto one = simulate(trace, name, 60, Machine{}), same = simulate(trace, name, 60, Machine{});
    CHECK(one->hits == same->hits);
    CHECK(one->promotions == same->promotions);
    const auto roomy = simulate(trace, name, trace.objects + 1000, Machine{});
    CHECK(roomy->hits == trace.re_references());
    CHECK(roomy->stall_s == doctest::Approx(0));
  }
}

TEST_CASE("simulate: no such policy and no room are refused") {
  CHECK(!simulate(trace_of("ab"), "best", 1, Machine{}).ok());
  CHECK(!simulate(trace_of("ab"), "lru", 0, Machine{}).ok());
}

TEST_CASE("benefit-density: on traces it was not tuned to it is never far below the better of LRU and ARC") {
  for (const GeneratorEntry& entry : generators()) {
    const Trace trace = *generate_trace(entry.name, entry.name == "conversation" ? 0.3 : 0.03, 3);
    // Short traces hold little to learn from. Of conversations nothing but the last use tells, and part of DDR
    // is kept free for what they add.
    const double least = entry.name == "conversation" ? 0.8 : 0.9;
    for (const uint64_t percent : {10, 25}) {
      const uint64_t room = trace.objects * percent / 100;
      const uint64_t lru = simulate(trace, "lru", room, Machine{})->hits;
      const uint64_t arc = simulate(trace, "arc", room, Machine{})->hits;
      const uint64_t ours = simulate(trace, "benefit-density", room, Machine{})->hits;
      CAPTURE(entry.name);
      CAPTURE(percent);
      CHECK(static_cast<double>(ours) >= least * static_cast<double>(std::max(lru, arc)));
    }
  }
}

TEST_CASE("prefix-order: never far below the best of LRU, ARC and S3-FIFO") {
  for (const GeneratorEntry& entry : generators()) {
    const Trace trace = *generate_trace(entry.name, 0.3, 3);
    for (const uint64_t percent : {2, 5, 10, 25}) {
      const uint64_t room = trace.objects * percent / 100;
      uint64_t best = 0;
      for (const char* other : {"lru", "arc", "s3-fifo"})
        best = std::max(best, simulate(trace, other, room, Machine{})->hits);
      CAPTURE(entry.name);
      CAPTURE(percent);
      const uint64_t ours = simulate(trace, "prefix-order", room, Machine{})->hits;
      CHECK(static_cast<double>(ours) >= 0.9 * static_cast<double>(best));
    }
  }
}

TEST_CASE("numbers: all of them are made, with look-ahead hardly slower than the optimum") {
  const Trace trace = *generate_trace("conversation", 0.1);
  const auto numbers = measure_trace(trace, usual_machine());
  REQUIRE(numbers.ok());
  CHECK(numbers->stall_over_belady_5pct < 1.3);
  CHECK(numbers->stall_over_belady_5pct >= 1);
  for (const TiersimNumbers::Hits& hits :
       {numbers->policy, numbers->prefix_order, numbers->arc, numbers->lru}) {
    CHECK(hits.at_1pct > 0);
    CHECK(hits.at_1pct < hits.at_10pct);
  }
  CHECK(numbers->prefixes_over_arc.at_5pct > 1);  // a conversation's blocks are a prefix
  CHECK(plan_ns_per_granule(4096) > 0);
}

}  // namespace
}  // namespace terrace::tiering
