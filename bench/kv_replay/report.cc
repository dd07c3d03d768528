// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_replay/report.h"

#include <cstdio>
#include <string>

namespace terrace::bench {
namespace {

using Counter = std::atomic<uint64_t> WorkerCounts::*;

uint64_t sum(SharedRun& run, Counter counter) {
  uint64_t total = 0;
  for (uint32_t worker = 0; worker < run.settings().workers; ++worker)
    total += run.control().workers[worker].*counter;
  return total;
}

// In microseconds, over all workers; 0 when nothing was measured.
double percentile_us(SharedRun& run, Histogram WorkerCounts::*histogram, double share) {
  std::array<uint64_t, Histogram::steps> counts{};
  uint64_t total = 0;
  for (uint32_t worker = 0; worker < run.settings().workers; ++worker)
    for (size_t index = 0; index < counts.size(); ++index) {
      const uint64_t count = (run.control().workers[worker].*histogram).count(index);
      counts[index] += count;
      total += count;
    }
  uint64_t left = static_cast<uint64_t>(share * static_cast<double>(total));
  for (size_t index = 0; index < counts.size(); ++index) {
    if (counts[index] > left) return Histogram::middle_ns(index) / 1000;
    left -= counts[index];
  }
  return 0;
}

void add_latency(SharedRun& run, nlohmann::json& out, const std::string& name,
                 Histogram WorkerCounts::*histogram) {
  out[name + "_us_p50"] = percentile_us(run, histogram, 0.5);
  out[name + "_us_p99"] = percentile_us(run, histogram, 0.99);
}

}  // namespace

nlohmann::json figures_of(SharedRun& run, const RunFigures& figures) {
  const Settings& settings = run.settings();
  Control& control = run.control();
  nlohmann::json out;
  out["trace"] = figures.trace;
  out["requests"] = control.requests;
  out["block_uses"] = control.block_entries;
  out["distinct_blocks"] = figures.distinct_blocks;
  out["workers"] = settings.workers;
  out["block_bytes"] = settings.block_bytes;
  out["cxl_budget_bytes"] = figures.cxl_bytes;
  out["ddr_budget_bytes"] = settings.ddr_bytes * settings.workers;
  out["seconds"] = figures.seconds;
  out["requests_per_s"] = control.requests / figures.seconds;

  const uint64_t uses = sum(run, &WorkerCounts::uses);
  const auto rate = [&](uint64_t count) {
    return uses == 0 ? 0 : static_cast<double>(count) / static_cast<double>(uses);
  };
  const uint64_t hits_ddr = sum(run, &WorkerCounts::hits_ddr), hits_cxl = sum(run, &WorkerCounts::hits_cxl);
  out["hit_rate_ddr"] = rate(hits_ddr);
  out["hit_rate_ddr_ahead"] = rate(sum(run, &WorkerCounts::hits_ahead));  // of these: prefetched for this use
  out["hit_rate_cxl"] = rate(hits_cxl);
  // Each use is counted when it begins, and as one of these when it ends: a kill leaves one without an end.
  const uint64_t misses =
      sum(run, &WorkerCounts::stored) + sum(run, &WorkerCounts::pending) + sum(run, &WorkerCounts::not_stored);
  out["miss_rate"] = rate(misses);
  out["uses_cut_short"] =
      static_cast<int64_t>(uses) - static_cast<int64_t>(hits_ddr + hits_cxl) - static_cast<int64_t>(misses);
  out["reuse_in_trace"] = figures.reuse_in_trace;
  out["blocks_stored"] = sum(run, &WorkerCounts::stored);
  out["blocks_pending"] = sum(run, &WorkerCounts::pending);
  out["blocks_not_stored"] = sum(run, &WorkerCounts::not_stored);
  out["blocks_rewritten"] = sum(run, &WorkerCounts::rewritten);
  out["reads_in_place"] = sum(run, &WorkerCounts::in_place);
  out["evictions_cxl"] = sum(run, &WorkerCounts::evicted);
  out["evictions_cxl_busy"] = sum(run, &WorkerCounts::evicted_busy);
  out["evictions_ddr"] = sum(run, &WorkerCounts::ddr_evicted);
  out["prefetched"] = sum(run, &WorkerCounts::prefetched);
  out["prefetch_dropped"] = sum(run, &WorkerCounts::prefetch_dropped);

  add_latency(run, out, "lookup", &WorkerCounts::lookup);
  add_latency(run, out, "read_ddr", &WorkerCounts::read_ddr);
  add_latency(run, out, "read_cxl", &WorkerCounts::read_cxl);
  add_latency(run, out, "store", &WorkerCounts::store);
  add_latency(run, out, "request", &WorkerCounts::request);
  out["copy_us_p50"] = figures.copy_us_p50;
  out["read_cxl_p50_over_copy"] = out["read_cxl_us_p50"].get<double>() / figures.copy_us_p50;
  out["bytes_cxl_to_ddr"] = sum(run, &WorkerCounts::copied_bytes);
  out["bytes_ddr_to_cxl"] = sum(run, &WorkerCounts::stored_bytes);
  out["bytes_read_in_place"] = sum(run, &WorkerCounts::in_place_bytes);

  uint64_t longest_ns = 0;
  for (uint32_t worker = 0; worker < settings.workers; ++worker)
    longest_ns = std::max<uint64_t>(longest_ns, control.workers[worker].take_over_ns);
  out["kills"] = figures.kills;
  out["take_over_ms_max"] = static_cast<double>(longest_ns) / 1e6;
  out["blocks_taken_over"] = sum(run, &WorkerCounts::adopted);
  out["blocks_checked_at_end"] = figures.checked_at_end;
  out["lost_blocks"] = control.wrong[static_cast<size_t>(Wrong::lost)].load();
  out["torn_blocks"] = control.wrong[static_cast<size_t>(Wrong::torn)].load();
  out["stale_blocks"] = control.wrong[static_cast<size_t>(Wrong::stale)].load();
  return out;
}

void print(const nlohmann::json& figures) {
  const auto number = [&](const char* key) { return figures[key].get<double>(); };
  const auto percent = [&](const char* key) { return 100 * number(key); };
  const auto mib = [&](const char* key) { return number(key) / (1 << 20); };
  const auto latency = [&](const char* what, const std::string& key) {
    std::printf("  %-26s %9.2f us  %9.2f us (p99)\n", what, number((key + "_us_p50").c_str()),
                number((key + "_us_p99").c_str()));
  };
  std::printf("%s: %.0f requests, %.0f uses of %.0f blocks of %.0f KiB; %.0f workers\n",
              figures["trace"].get<std::string>().c_str(), number("requests"), number("block_uses"),
              number("distinct_blocks"), number("block_bytes") / 1024, number("workers"));
  std::printf("budgets: ddr %.0f MiB, cxl %.0f MiB\n", mib("ddr_budget_bytes"), mib("cxl_budget_bytes"));
  std::printf("%.1f s, %.0f requests/s, %.0f workers killed (the longest take-over: %.0f ms)\n",
              number("seconds"), number("requests_per_s"), number("kills"), number("take_over_ms_max"));
  std::printf("  found in ddr %24.1f %%   (%.1f %% of all: copied ahead for it)\n", percent("hit_rate_ddr"),
              percent("hit_rate_ddr_ahead"));
  std::printf("  found in cxl %24.1f %%\n", percent("hit_rate_cxl"));
  std::printf("  not there    %24.1f %%   (named before in the trace: %.1f %%)\n", percent("miss_rate"),
              percent("reuse_in_trace"));
  latency("look-up by name", "lookup");
  latency("read, found in ddr", "read_ddr");
  latency("read, found in cxl", "read_cxl");
  latency("made and published", "store");
  latency("a request", "request");
  std::printf("  a block copied and read: %.2f us; from cxl, through the protocol: %.2f times\n",
              number("copy_us_p50"), number("read_cxl_p50_over_copy"));
  std::printf("  moved: cxl to ddr %.0f MiB, ddr to cxl %.0f MiB, read in place %.0f MiB\n",
              mib("bytes_cxl_to_ddr"), mib("bytes_ddr_to_cxl"), mib("bytes_read_in_place"));
  std::printf("  evicted: %.0f blocks from cxl (%.0f times busy, another one taken), %.0f from ddr\n",
              number("evictions_cxl"), number("evictions_cxl_busy"), number("evictions_ddr"));
  std::printf("  blocks lost %.0f, torn %.0f, stale %.0f (%.0f left, all checked)\n", number("lost_blocks"),
              number("torn_blocks"), number("stale_blocks"), number("blocks_checked_at_end"));
}

}  // namespace terrace::bench
