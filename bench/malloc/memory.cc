// SPDX-License-Identifier: Apache-2.0
// How much: resident bytes after a long trace, what a window of 1 GiB hands out, and what fails in one that is
// 85 % full.
#include <algorithm>
#include <string>

#include "bench/malloc/in_turn.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

constexpr uint64_t window_bytes = gib;

// A window of its own, so that nothing is left of the program before.
Outcome in_fresh_window(const std::string& part, const std::vector<uint64_t>& numbers, Heap heap) {
  Supply supply(window_bytes, 0);
  return run_part(part, numbers, heap, &supply);
}

void measure_usable(const Sizes& sizes, Heap heap, const std::string& key, bool aimed, Report& report) {
  double worst = 100;
  std::string why;
  nlohmann::json by_size = nlohmann::json::object();
  for (uint64_t bytes = 64 * 1024; bytes <= 512 * mib && why.empty(); bytes *= 2) {
    if (sizes.smoke && bytes != 64 * 1024 && bytes != 8 * mib && bytes != 512 * mib) continue;
    Outcome outcome = in_fresh_window("fill", {bytes}, heap);
    why = outcome.why;
    const double pct = 100.0 * outcome.figure / static_cast<double>(window_bytes);
    by_size[std::to_string(bytes)] = pct;
    worst = std::min(worst, pct);
  }
  report.detail(key + "_by_size", by_size);
  if (!aimed)
    report.detail(key, why.empty() ? nlohmann::json(worst) : nlohmann::json(why));
  else if (why.empty())
    report.figure(key, worst, at_least(99.8));
  else
    report.missing(key, why, at_least(99.8));
}

void measure_churn(const Sizes& sizes, Heap heap, const std::string& key, bool aimed, Report& report) {
  std::vector<double> failed;
  for (int round = 0; round < sizes.rounds; ++round) {
    Outcome outcome = in_fresh_window(
        "churn", {window_bytes, sizes.smoke ? 1000u : 20000u, static_cast<uint64_t>(round)}, heap);
    if (!outcome.why.empty()) {
      if (aimed) report.missing(key, outcome.why, at_most(1));
      return;
    }
    failed.push_back(outcome.figure);
  }
  if (aimed)
    report.figure(key, median(failed), at_most(1));
  else
    report.detail(key, median(failed));
}

}  // namespace

void measure_memory(const Sizes& sizes, Report& report, Peer& peer) {
  const uint64_t live_mib = sizes.smoke ? 64 : 1024;
  {
    Supply supply(3 * gib, 0);
    InTurn runs(sizes.smoke ? 1 : std::min(sizes.rounds, 5), {Heap::jemalloc, Heap::whole, Heap::memtier},
                [&](Heap heap) {
                  Outcome outcome = run_part("resident", {live_mib}, heap, &supply);
                  supply.settle();
                  return outcome;
                });
    compare_with_peer(runs, "rss", true, peer);
    figure_or_missing(report, "rss_over_jemalloc", runs.ratio(Heap::whole, Heap::jemalloc),
                      runs.why(Heap::whole, Heap::jemalloc), at_most(1.10));
    for (Heap heap : {Heap::jemalloc, Heap::whole, Heap::memtier})
      report.detail(std::string("rss_over_live_") + name_of(heap), runs.middle(heap));
  }
  measure_usable(sizes, Heap::whole, "window_usable_pct", true, report);
  measure_usable(sizes, Heap::min_size, "window_usable_pct_min_size", false, report);
  measure_churn(sizes, Heap::whole, "churn_failed_pct_at_85", true, report);
  measure_churn(sizes, Heap::min_size, "churn_failed_pct_at_85_min_size", false, report);
}

}  // namespace terrace::bench
