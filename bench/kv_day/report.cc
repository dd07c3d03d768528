// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_day/report.h"

#include <algorithm>
#include <vector>

namespace terrace::bench::day {
namespace {

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Of one pass of the trace, by hours: uses, and those that a cache without end would find as a prefix; in the second
// place one that lost all its blocks at noon.
struct Bound {
  std::array<uint64_t, hours> uses{}, found{}, found_if_emptied{};
};

Bound bound_of(const Shared& shared, uint64_t noon) {
  Bound bound;
  std::vector<uint64_t> seen(shared.control().block_count, UINT64_MAX);  // by which request last
  for (uint64_t request = 0; request < shared.control().requests; ++request) {
    const uint32_t hour = shared.hour_of(request);
    bool prefix = true, prefix_if_emptied = true;
    for (const uint32_t block : shared.blocks_of(request)) {
      prefix = prefix && seen[block] != UINT64_MAX;
      prefix_if_emptied = prefix && prefix_if_emptied && (request < noon || seen[block] >= noon);
      ++bound.uses[hour];
      bound.found[hour] += prefix ? 1 : 0;
      bound.found_if_emptied[hour] += prefix_if_emptied ? 1 : 0;
    }
    for (const uint32_t block : shared.blocks_of(request)) seen[block] = request;
  }
  return bound;
}

template <typename Counts>
double rate(const Counts& hits, const Counts& uses, uint32_t from, uint32_t to) {
  uint64_t hit = 0, used = 0;
  for (uint32_t hour = from; hour < to; ++hour) {
    hit += hits[hour];
    used += uses[hour];
  }
  return share(hit, used);
}

struct Sums {
  std::array<uint64_t, hours> uses{}, hits{};
  uint64_t copied = 0, in_place = 0, read_bytes = 0, put = 0, put_bytes = 0, there_already = 0, refused = 0,
           evicted = 0;
  uint64_t start_ns = 0;
};

Sums sums_of(const Control& control) {
  Sums sums;
  for (const EngineCounts& engine : control.engines) {
    for (uint32_t hour = 0; hour < hours; ++hour) {
      sums.uses[hour] += engine.uses[hour];
      sums.hits[hour] += engine.hits[hour];
    }
    sums.copied += engine.copied;
    sums.in_place += engine.in_place;
    sums.read_bytes += engine.read_bytes;
    sums.put += engine.put;
    sums.put_bytes += engine.put_bytes;
    sums.there_already += engine.there_already;
    sums.refused += engine.refused;
    sums.evicted += engine.evicted;
    sums.start_ns = std::max<uint64_t>(sums.start_ns, engine.start_ns);
  }
  return sums;
}

double read_us(const Control& control, double share_below) {
  std::vector<double> of_engines;  // the middle one: their histograms are of memory that several share
  for (const EngineCounts& engine : control.engines)
    if (engine.requests != 0) of_engines.push_back(kv::percentile_us(engine.read, share_below));
  return kv::median(of_engines);
}

void report_hit_rates(const Shared& shared, const DayFigures& day, const Sums& sums, kv::Figures& figures) {
  const Bound bound = bound_of(shared, day.upgrade_at);
  const auto both = [&](const std::string& key, uint32_t from, uint32_t to) {
    figures.detail("kv_day_hit_rate" + key, rate(sums.hits, sums.uses, from, to));
    figures.detail("kv_day_hit_rate_bound" + key, rate(bound.found, bound.uses, from, to));
  };
  both("", 0, hours);
  if (day.upgrade_at == 0) return;
  const uint32_t noon = shared.hour_of(day.upgrade_at);
  both("_before_upgrade", 0, noon);
  both("_after_upgrade", noon, hours);
  both("_hour_before", noon - 1, noon);
  both("_hour_after", noon, noon + 1);
  figures.detail("kv_day_hit_rate_bound_hour_after_if_emptied",
                 rate(bound.found_if_emptied, bound.uses, noon, noon + 1));
  const EngineCounts& upgraded = shared.control().engines[0];
  figures.detail("kv_day_hit_rate_of_upgraded_engine",
                 share(upgraded.hits_of_successor, upgraded.uses_of_successor));
}

}  // namespace

void report(const Shared& shared, const DayFigures& day, kv::Figures& figures) {
  const Control& control = shared.control();
  const Sums sums = sums_of(control);
  const auto number = [&](const char* key, uint64_t value) { figures.detail(key, static_cast<double>(value)); };
  std::printf("  trace: %s\n", day.trace.c_str());
  number("kv_day_processes", shared.settings().engines);
  number("kv_day_hosts", shared.settings().hosts);
  number("kv_day_processes_started", control.processes);
  number("kv_day_kills", day.happened.kills);
  number("kv_day_upgrades", day.happened.upgraded ? 1 : 0);
  number("kv_day_requests", control.done_requests);
  number("kv_day_distinct_blocks", day.distinct_blocks);
  number("kv_day_block_bytes", shared.settings().block_bytes);
  number("kv_day_lease_bytes", day.lease_bytes);
  number("kv_day_data_bytes", day.data_bytes);
  figures.detail("kv_day_cache_over_trace", day.cache_over_trace);
  report_hit_rates(shared, day, sums, figures);
  const uint64_t reads = sums.copied + sums.in_place;
  number("kv_day_reads_checked", reads + day.checked_at_end);
  number("kv_day_reads_in_place", sums.in_place);
  number("kv_day_reads_at_end", day.checked_at_end);
  number("kv_day_read_bytes", sums.read_bytes);
  number("kv_day_puts", sums.put);
  number("kv_day_put_bytes", sums.put_bytes);
  number("kv_day_puts_there_already", sums.there_already);
  number("kv_day_refused", sums.refused);
  number("kv_day_evicted", sums.evicted);
  figures.detail("kv_day_seconds", day.happened.seconds);
  figures.detail("kv_day_reads_per_s", static_cast<double>(reads) / day.happened.seconds);
  figures.detail("kv_day_seconds_for_1e8_reads",
                 reads == 0 ? 0 : 1e8 * day.happened.seconds / static_cast<double>(reads));
  figures.detail("kv_day_read_us_p50", read_us(control, 0.5));
  figures.detail("kv_day_read_us_p99", read_us(control, 0.99));
  figures.detail("kv_day_start_ms_max", static_cast<double>(sums.start_ns) / 1e6);
  figures.at_most("kv_day_wrong_blocks", static_cast<double>(control.wrong), 0);
}

}  // namespace terrace::bench::day
