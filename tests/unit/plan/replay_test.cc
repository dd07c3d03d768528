// SPDX-License-Identifier: Apache-2.0
// Replays with answers worked out by hand, and random ones with every invariant checked all the time.
#include <numeric>

#include "daemon/plan/memory.h"
#include "tests/unit/plan/traces.h"

using namespace terrace;
using namespace terrace::plan;

namespace {

Outcome run(const Trace& trace, const Setup& setup) {
  Result<Outcome> outcome = replay(trace, setup, {.record = true, .check_every = 1});
  REQUIRE(outcome.ok());
  CHECK(outcome->problems == std::vector<std::string>{});
  CHECK(outcome->requests == trace.requests.size());
  CHECK(std::accumulate(outcome->refusals.begin(), outcome->refusals.end(), uint64_t{0}) == outcome->rejected);
  return *outcome;
}

uint64_t refused(const Outcome& outcome, Refusal why) {
  return outcome.refusals[static_cast<size_t>(why)];
}

}  // namespace

TEST_CASE("Replay: opposite peaks need 12 GiB on each of two hosts, or 4 GiB each and a pool of 8") {
  const Trace trace = opposite_peaks();
  CHECK(run(trace, setup_of(2, 12, 0)).rejected == 0);
  CHECK(run(trace, setup_of(2, 4, 0)).rejected == 2);
  Setup pooled = setup_of(2, 4, 8);
  const Outcome outcome = run(trace, pooled);
  CHECK(outcome.rejected == 0);
  CHECK(outcome.spilled == 2);
  CHECK(outcome.pool_peak_bytes == 8 * gib);
  CHECK(outcome.local_peak_bytes == 8 * gib);
  CHECK(outcome.used_peak_bytes == 16 * gib);

  pooled.pool_bytes -= 2 * mib;
  CHECK(refused(run(trace, pooled), Refusal::pool_full) == 2);
}

TEST_CASE("Replay: no more than its share of a request comes from the pool") {
  Setup setup = setup_of(1, 4, 100);
  setup.pool_fraction_max = 0.5;
  const Outcome outcome = run(trace_of({{8, 0, 10}, {9, 20, 30}}), setup);
  CHECK(outcome.rejected == 1);
  CHECK(refused(outcome, Refusal::local_full) == 1);
  CHECK(outcome.pool_peak_bytes == 4 * gib);
  CHECK(outcome.rejected_bytes == 9 * gib);
  CHECK(outcome.free_at_refusal_bytes == 4.0 * gib);
}

TEST_CASE("Replay: best-fit keeps a host whole for the large request, worst-fit does not") {
  const Trace trace = trace_of({{1, 0, 10}, {1, 1, 10}, {4, 2, 10}});
  Setup setup = setup_of(2, 4, 0);
  setup.placement = Placement::best_fit;
  CHECK(run(trace, setup).rejected == 0);
  setup.placement = Placement::worst_fit;
  CHECK(run(trace, setup).rejected == 1);
}

TEST_CASE("Replay: what ends at a second is free for what starts then; no request is forgotten") {
  const Trace trace = trace_of({{4, 0, 10}, {4, 10, 20}, {4, 20, 20}, {4, 20, 30}, {0, 25, 30}, {5, 26, 27}});
  const Outcome outcome = run(trace, setup_of(1, 4, 0));
  CHECK(outcome.rejected == 1);  // only the 5 GiB, that no host can ever take
  CHECK(outcome.samples.back().local_used_bytes == 0);
  CHECK(outcome.samples.back().alive == 0);
}

TEST_CASE("Replay: a host without cores or GPUs left takes nobody, and its free memory is stranded") {
  const auto parsed = parse_trace(
      "memory_mib,creation_time,deletion_time,cpu_milli,num_gpu,gpu_milli\n"
      "1024,0,100,1000,1,1000\n1024,50,60,1000,1,1000\n",
      "t");
  REQUIRE(parsed.ok());
  Setup setup = setup_of(1, 11, 0);
  setup.host_gpu_milli = 1000;
  const Outcome outcome = run(*parsed, setup);
  CHECK(refused(outcome, Refusal::cpu_or_gpu) == 1);
  CHECK(outcome.stranded_peak_bytes == 10 * gib);
  CHECK(outcome.stranded_mean_bytes == doctest::Approx(10.0 * gib));
  setup.host_gpu_milli = 0;
  setup.host_cpu_milli = 1999;
  CHECK(refused(run(*parsed, setup), Refusal::cpu_or_gpu) == 1);
  setup.host_cpu_milli = 2000;
  CHECK(run(*parsed, setup).rejected == 0);
}

TEST_CASE("Replay: stranded is what is free where a request of the median size has no room, weighted by time") {
  // Median 4 GiB; after 3 of 5 GiB are taken for half of the time, 2 free GiB are of no use to it.
  const Trace trace = trace_of({{4, 0, 0}, {3, 0, 50}, {4, 100, 100}});
  const Outcome alone = run(trace, setup_of(1, 5, 0));
  CHECK(alone.stranded_peak_bytes == 2 * gib);
  CHECK(alone.stranded_mean_bytes == doctest::Approx(1.0 * gib));
  CHECK(run(trace, setup_of(1, 5, 2)).stranded_peak_bytes == 0);  // the pool adds what lacks
}

TEST_CASE("Replay: a pool with holes counts as fragmented, and serves a lease in pieces") {
  // Hosts of one granule: nearly all is in the pool. Of four 2 GiB leases in 8 GiB the first and third end,
  // then 4 GiB fit into the two holes only.
  Setup setup = setup_of(8, 0, 8);
  setup.local_bytes = 0;
  const Trace trace = trace_of({{2, 0, 100}, {2, 1, 10}, {2, 2, 100}, {2, 3, 10}, {4, 20, 100}});
  const Outcome outcome = run(trace, setup);
  CHECK(outcome.rejected == 0);
  CHECK(outcome.pool_extents_max == 2);
  const auto holes = std::find_if(outcome.samples.begin(), outcome.samples.end(),
                                  [](const Sample& sample) { return sample.time_s == 10; });
  REQUIRE(holes != outcome.samples.end());
  CHECK(holes->fragmentation == doctest::Approx(0.5));
  CHECK(holes->pool_largest_free_bytes == 2 * gib);
  CHECK(outcome.fragmentation_p50 == 0);
  CHECK(outcome.fragmentation_p99 == doctest::Approx(0.5));

  // A long time in which nobody has pool memory dilutes neither.
  Trace idle_first = trace;
  for (Request& request : idle_first.requests) {
    request.start_s += 1'000'000;
    request.end_s += 1'000'000;
  }
  idle_first.end_s += 1'000'000;
  idle_first.requests.insert(idle_first.requests.begin(), Request{.bytes = 0, .start_s = 0, .end_s = 1});
  CHECK(run(idle_first, setup).fragmentation_p99 == doctest::Approx(0.5));
}

TEST_CASE("Replay: an even spill takes the pool's share of every request") {
  Setup setup = setup_of(1, 6, 2);
  setup.spill = Spill::even;
  const Outcome outcome = run(trace_of({{4, 0, 10}}), setup);
  CHECK(outcome.pool_peak_bytes == 1 * gib);
  CHECK(outcome.local_peak_bytes == 3 * gib);
}

TEST_CASE("Replay: random traces keep every invariant, use the whole accounting, and repeat exactly") {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    const Trace trace = random_trace(seed, 400);
    Setup setup = setup_of(3, 8, 6);
    setup.pool_devices = 3;
    setup.placement = seed % 2 == 0 ? Placement::best_fit : Placement::worst_fit;
    setup.spill = seed % 3 == 0 ? Spill::even : Spill::when_full;
    const Outcome first = run(trace, setup);
    CHECK(first.rejected > 0);
    CHECK(first.spilled > 0);
    CHECK(first.local_peak_bytes <= 24 * gib);
    CHECK(first.pool_peak_bytes <= 6 * gib);
    CHECK(first.samples.back().local_used_bytes == 0);
    CHECK(first.samples.back().pool_used_bytes == 0);
    const Outcome second = run(trace, setup);
    CHECK(second.rejected == first.rejected);
    CHECK(second.stranded_mean_bytes == first.stranded_mean_bytes);
  }
}

TEST_CASE("Replay: it ends early once too many were rejected, and refuses setups that cannot be") {
  const Trace trace = trace_of({{9, 0, 1}, {9, 0, 1}, {9, 0, 1}, {9, 0, 1}});
  const auto early = replay(trace, setup_of(1, 1, 0), {.rejected_max = 1});
  REQUIRE(early.ok());
  CHECK(early->rejected == 2);
  CHECK(replay(trace, setup_of(0, 1, 0), {}).error().code == ErrorCode::invalid_argument);
  Setup odd = setup_of(1, 1, 0);
  odd.granule_bytes = 3 * mib;
  CHECK(replay(trace, odd, {}).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("Memory: takes, refuses and gives back through the state machine") {
  auto memory =
      Memory::create({.name = "pool", .capacity_bytes = 8 * mib, .granule_bytes = 2 * mib, .devices = 2});
  REQUIRE(memory.ok());
  CHECK(memory->capacity_granules() == 4);
  CHECK(memory->largest_free_run() == 2);
  CHECK(memory->fragmentation() == 0);
  const auto lease = memory->take(3, 5);
  REQUIRE(lease.ok());
  CHECK(memory->extents_max() == 2);
  const auto refused_lease = memory->take(2, 6);
  REQUIRE_FALSE(refused_lease.ok());
  CHECK(refused_lease.error().code == ErrorCode::capacity_exhausted);
  CHECK(memory->free_granules() == 1);
  memory->give(*lease, 7);
  CHECK(memory->free_granules() == 4);
  CHECK(memory->check() == std::vector<std::string>{});
}
