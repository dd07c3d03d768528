// SPDX-License-Identifier: Apache-2.0
// How fast: malloc/free pairs by size and threads, objects that live longer, CPU time of large blocks.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "bench/malloc/in_turn.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

constexpr uint64_t plenty = 8 * gib;

struct Supplies {
  Supply ddr{plenty, 0};
  Supply tiered{gib, plenty, true};

  Outcome run(const std::string& part, const std::vector<uint64_t>& numbers, Heap heap) {
    Supply& supply = heap == Heap::tiered ? tiered : ddr;
    Outcome outcome = run_part(part, numbers, heap, &supply);
    supply.settle();
    return outcome;
  }
};

// The worse of one thread and two; both are details.
void worse_of(Report& report, const std::string& key, const std::optional<double> (&by_threads)[2],
              const std::string& why, Aim aim) {
  for (int threads = 1; threads <= 2; ++threads)
    if (by_threads[threads - 1])
      report.detail(key + "_threads_" + std::to_string(threads), *by_threads[threads - 1]);
  if (!by_threads[0] || !by_threads[1]) return report.missing(key, why, aim);
  double worse =
      aim.at_most ? std::max(*by_threads[0], *by_threads[1]) : std::min(*by_threads[0], *by_threads[1]);
  report.figure(key, worse, aim);
}

void compare_pairs(const Sizes& sizes, Supplies& supplies, Report& report, Peer& peer) {
  const uint64_t ms = sizes.smoke ? 20 : 70;
  const int rounds = sizes.smoke ? 1 : 3 * sizes.rounds;  // many short ones: see child/pairs.cc
  for (uint64_t bytes : {16ul, 256ul, 4096ul, 65536ul, 1048576ul, 33554432ul}) {
    const std::string key = "alloc_free_ns_over_jemalloc_" + std::to_string(bytes);
    std::optional<double> ratios[2];
    std::string why;
    for (uint64_t threads : {1, 2}) {
      InTurn runs(rounds, {Heap::jemalloc, Heap::whole, Heap::memtier}, [&](Heap heap) {
        return supplies.run("pairs", {bytes, threads, ms}, heap);
      });
      ratios[threads - 1] = runs.ratio(Heap::whole, Heap::jemalloc);
      if (!ratios[threads - 1]) why = runs.why(Heap::whole, Heap::jemalloc);
      compare_with_peer(runs, "alloc_free_" + std::to_string(bytes) + "_threads_" + std::to_string(threads),
                        true, peer);
      for (Heap heap : {Heap::jemalloc, Heap::whole, Heap::memtier})
        report.detail(
            "pair_ns_" + std::to_string(bytes) + "_" + name_of(heap) + "_threads_" + std::to_string(threads),
            runs.middle(heap));
    }
    worse_of(report, key, ratios, why, at_most(1.05));
  }
}

void compare_with_glibc(const Sizes& sizes, Supplies& supplies, Report& report, Peer& peer) {
  const uint64_t ms = sizes.smoke ? 20 : 200;
  InTurn small(sizes.rounds, {Heap::glibc, Heap::min_size}, [&](Heap heap) {
    return supplies.run("pairs", {64, 1, ms}, heap);
  });
  auto extra = small.difference(Heap::min_size, Heap::glibc);
  figure_or_missing(report, "small_pair_extra_ns_min_size", extra, small.why(Heap::min_size, Heap::glibc),
                    at_most(2));
  report.detail("small_pair_glibc_ns", small.middle(Heap::glibc));
  report.detail("small_pair_shim_ns", small.middle(Heap::min_size));
  if (extra) report.detail("small_pair_extra_ns", *extra);

  InTurn large(sizes.rounds, {Heap::glibc, Heap::min_size}, [&](Heap heap) {
    return supplies.run("pairs", {mib, 1, ms}, heap);
  });
  if (auto ratio = large.ratio(Heap::min_size, Heap::glibc)) report.detail("large_pair_over_glibc", *ratio);
  report.detail("large_pair_glibc_ns", large.middle(Heap::glibc));
  report.detail("large_pair_shim_ns", large.middle(Heap::min_size));

  Supply leases(0, 256 * mib);
  InTurn leased(sizes.rounds, {Heap::glibc, Heap::min_size}, [&](Heap heap) {
    return run_part("pairs", {mib, 1, ms}, heap, &leases);
  });
  if (auto ratio = leased.ratio(Heap::min_size, Heap::glibc)) report.detail("leased_pair_over_glibc", *ratio);
  report.detail("leased_pair_shim_ns", leased.middle(Heap::min_size));
  if (leases.stats().totals.allocations_cxl == 0 || supplies.ddr.stats().totals.allocations_ddr == 0)
    die("the measured program did not use the window: nothing was measured");

  const uint64_t operations = sizes.smoke ? 20 : 500;
  const std::vector<Heap> heaps = {Heap::glibc, Heap::whole, Heap::tiered, Heap::memtier};
  InTurn blocks(sizes.rounds, heaps, [&](Heap heap) { return supplies.run("large", {operations}, heap); });
  compare_with_peer(blocks, "large_cpu_s", true, peer);
  figure_or_missing(report, "large_cpu_s_over_glibc", blocks.ratio(Heap::whole, Heap::glibc),
                    blocks.why(Heap::whole, Heap::glibc), at_most(0.9));
  if (auto ratio = blocks.ratio(Heap::tiered, Heap::glibc))
    report.detail("large_cpu_s_over_glibc_tiered", *ratio);
  for (Heap heap : heaps) report.detail(std::string("large_cpu_s_") + name_of(heap), blocks.middle(heap));
}

struct Throughput {
  const char* part;
  const char* key;
};

void compare_throughput(const Sizes& sizes, Supplies& supplies, Report& report, Peer& peer) {
  const uint64_t ms = sizes.smoke ? 100 : 350;
  const int rounds = sizes.smoke ? 1 : 3 * sizes.rounds;
  const std::vector<Heap> heaps = {Heap::jemalloc, Heap::whole, Heap::tiered, Heap::memtier};
  for (Throughput one :
       {Throughput{"larson", "larson_over_jemalloc"}, Throughput{"xmalloc", "xmalloc_over_jemalloc"},
        Throughput{"random", "alloc_random_over_jemalloc"}}) {
    std::optional<double> ratios[2];
    std::string why;
    for (uint64_t threads : {1, 2}) {
      InTurn runs(rounds, heaps, [&](Heap heap) { return supplies.run(one.part, {threads, ms}, heap); });
      ratios[threads - 1] = runs.ratio(Heap::whole, Heap::jemalloc);
      if (!ratios[threads - 1]) why = runs.why(Heap::whole, Heap::jemalloc);
      if (auto ratio = runs.ratio_by_cpu(Heap::whole, Heap::jemalloc))
        report.detail(std::string(one.key) + "_by_cpu_threads_" + std::to_string(threads), *ratio);
      compare_with_peer(runs, std::string(one.part) + "_threads_" + std::to_string(threads), false, peer);
      if (auto ratio = runs.ratio(Heap::tiered, Heap::jemalloc))
        report.detail(std::string(one.key) + "_tiered_threads_" + std::to_string(threads), *ratio);
      for (Heap heap : heaps)
        report.detail(std::string(one.part) + "_per_s_" + name_of(heap) + "_threads_" + std::to_string(threads),
                      runs.middle(heap));
    }
    worse_of(report, one.key, ratios, why, at_least(0.95));
  }
}

// From one thread to many more than there are processors: the worst of them is the figure. Beyond two threads a
// heap that makes them wait for each other falls behind by the clock, one that has them spin by CPU time too.
void compare_curve(const Sizes& sizes, Supplies& supplies, Report& report) {
  const uint64_t ms = sizes.smoke ? 40 : 250;
  for (uint64_t bytes : {256ul, 4096ul, 65536ul, 1048576ul}) {
    const std::string key = "thread_curve_over_jemalloc_" + std::to_string(bytes);
    std::optional<double> worst;
    std::string why;
    for (uint64_t threads : {1, 2, 8, 64}) {
      InTurn runs(sizes.rounds, {Heap::jemalloc, Heap::whole}, [&](Heap heap) {
        return supplies.run("sets", {bytes, threads, ms}, heap);
      });
      const std::string at = "_threads_" + std::to_string(threads);
      const auto ratio = runs.ratio(Heap::whole, Heap::jemalloc);
      if (!ratio) {
        why = runs.why(Heap::whole, Heap::jemalloc);
        break;
      }
      worst = std::min(worst.value_or(*ratio), *ratio);
      report.detail(key + at, *ratio);
      if (auto by_cpu = runs.ratio_by_cpu(Heap::whole, Heap::jemalloc))
        report.detail(key + "_by_cpu" + at, *by_cpu);
      for (Heap heap : {Heap::jemalloc, Heap::whole})
        report.detail("sets_per_s_" + std::to_string(bytes) + "_" + name_of(heap) + at, runs.middle(heap));
    }
    figure_or_missing(report, key, why.empty() ? worst : std::nullopt, why, at_least(0.95));
  }
}

}  // namespace

void measure_curve(const Sizes& sizes, Report& report, Peer&) {
  Supplies supplies;
  compare_curve(sizes, supplies, report);
}

void measure_pairs(const Sizes& sizes, Report& report, Peer& peer) {
  Supplies supplies;
  compare_pairs(sizes, supplies, report, peer);
}

void measure_beside_glibc(const Sizes& sizes, Report& report, Peer& peer) {
  Supplies supplies;
  compare_with_glibc(sizes, supplies, report, peer);
}

void measure_throughput(const Sizes& sizes, Report& report, Peer& peer) {
  Supplies supplies;
  compare_throughput(sizes, supplies, report, peer);
}

}  // namespace terrace::bench
