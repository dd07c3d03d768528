// SPDX-License-Identifier: Apache-2.0
#include "daemon/runs/run_table.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace terrace::daemon {
namespace {

struct Counter {
  const char* name;
  uint64_t RunCounters::*value;
};
constexpr std::array<Counter, 7> counters = {{{"promotions", &RunCounters::promotions},
                                              {"demotions", &RunCounters::demotions},
                                              {"promotedBytes", &RunCounters::promoted_bytes},
                                              {"demotedBytes", &RunCounters::demoted_bytes},
                                              {"stalledNs", &RunCounters::stalled_ns},
                                              {"refused", &RunCounters::refused},
                                              {"fallbacks", &RunCounters::fallbacks}}};

struct Size {
  const char* name;
  uint64_t RunFigures::*value;
};
constexpr std::array<Size, 7> sizes = {{{"liveBytes", &RunFigures::live_bytes},
                                        {"ddrBytes", &RunFigures::ddr_bytes},
                                        {"cxlBytes", &RunFigures::cxl_bytes},
                                        {"plainBytes", &RunFigures::plain_bytes},
                                        {"ddrBytesMax", &RunFigures::ddr_bytes_max},
                                        {"leasedBytes", &RunFigures::leased_bytes},
                                        {"sampledBytes", &RunFigures::sampled_bytes}}};

uint64_t add(uint64_t one, uint64_t other) {
  const uint64_t sum = one + other;
  return sum < one ? UINT64_MAX : sum;
}

void add_to(RunCounters* sum, const RunCounters& of) {
  for (const Counter& counter : counters) sum->*counter.value = add(sum->*counter.value, of.*counter.value);
}

// What counts for this manager.
RunCounters counted(const RunFigures& figures) {
  RunCounters here;
  for (const Counter& counter : counters)
    here.*counter.value = figures.counters.*counter.value - figures.told_before.*counter.value;
  return here;
}

Error refusal(const std::string& what) {
  return Error{.code = ErrorCode::invalid_argument, .where = "reportRun", .detail = what};
}

std::string is_above(const char* name, uint64_t value, uint64_t most) {
  return std::string(name) + " of " + std::to_string(value) + " is more than there can be (" +
         std::to_string(most) + ")";
}

Status check_bands(const RunFigures& figures) {
  if (figures.bands.size() > run_bands_max)
    return refusal(is_above("heat: the number of bands", figures.bands.size(), run_bands_max));
  if (figures.bands.empty()) return {};
  const uint64_t most = run_bytes_max / run_bands_max;
  if (figures.band_bytes == 0 || figures.band_bytes > most)
    return refusal("heat: bandBytes of " + std::to_string(figures.band_bytes) + " is not from 1 to " +
                   std::to_string(most));
  for (const RunBand& band : figures.bands)
    if (const uint32_t all = uint32_t{band.ddr_percent} + band.cxl_percent; all > 100)
      return refusal(is_above("heat: ddrPercent with cxlPercent of a band", all, 100));
  return {};
}

Status check(const RunFigures& figures) {
  for (const Size& size : sizes)
    if (figures.*size.value > run_bytes_max)
      return refusal(is_above(size.name, figures.*size.value, run_bytes_max));
  if (figures.processes > run_processes_max)
    return refusal(is_above("processes", figures.processes, run_processes_max));
  if (figures.ddr_hit_permille > 1000)
    return refusal(is_above("ddrHitPermille", figures.ddr_hit_permille, 1000));
  for (const Counter& counter : counters) {
    const uint64_t all = figures.counters.*counter.value, before = figures.told_before.*counter.value;
    if (all > run_count_max) return refusal(is_above(counter.name, all, run_count_max));
    if (before > all)
      return refusal(std::string(counter.name) + ": " + std::to_string(before) + " told before, of " +
                     std::to_string(all) + " in all");
  }
  return check_bands(figures);
}

// RT1: what was counted stays counted.
Status check_after(const RunFigures& before, const RunFigures& now) {
  const RunCounters was = counted(before), is = counted(now);
  for (const Counter& counter : counters)
    if (is.*counter.value < was.*counter.value)
      return refusal(std::string(counter.name) + " fell from " + std::to_string(was.*counter.value) + " to " +
                     std::to_string(is.*counter.value) + " over this connection");
  return {};
}

uint64_t per_second(uint64_t before, uint64_t now, uint64_t interval_ns) {
  if (interval_ns == 0 || now <= before) return 0;
  const double rate =
      static_cast<double>(now - before) * static_cast<double>(ns_per_s) / static_cast<double>(interval_ns);
  return rate >= static_cast<double>(run_count_max) ? run_count_max : static_cast<uint64_t>(rate);
}

void set_rates(const Run& before, Run* now) {
  const uint64_t interval_ns = now->reported_ns - std::min(now->reported_ns, before.reported_ns);
  const RunCounters &was = before.figures.counters, &is = now->figures.counters;
  now->promotions_per_s = per_second(was.promotions, is.promotions, interval_ns);
  now->demotions_per_s = per_second(was.demotions, is.demotions, interval_ns);
  now->copy_bytes_per_s = per_second(add(was.promoted_bytes, was.demoted_bytes),
                                     add(is.promoted_bytes, is.demoted_bytes), interval_ns);
  now->stalled_ns_per_s = per_second(was.stalled_ns, is.stalled_ns, interval_ns);
}

void add_now(RunSums* sums, const RunFigures& figures) {
  ++sums->runs;
  sums->processes = add(sums->processes, figures.processes);
  sums->live_bytes = add(sums->live_bytes, figures.live_bytes);
  sums->ddr_bytes = add(sums->ddr_bytes, figures.ddr_bytes);
  sums->cxl_bytes = add(sums->cxl_bytes, figures.cxl_bytes);
  sums->plain_bytes = add(sums->plain_bytes, figures.plain_bytes);
  sums->leased_bytes = add(sums->leased_bytes, figures.leased_bytes);
  sums->sampled_bytes = add(sums->sampled_bytes, figures.sampled_bytes);
  // Weighed by size until all are added up.
  sums->ddr_hits += static_cast<double>(figures.sampled_bytes) * figures.ddr_hit_permille / 1000;
}

}  // namespace

RunTable::Ended& RunTable::ended_of(const std::string& tenant, std::string* sums_of) {
  const auto at = tenants_.find(tenant);
  const bool own = at != tenants_.end() || tenants_.size() < run_tenants_max;
  *sums_of = own ? tenant : std::string();
  return tenants_[*sums_of];
}

Status RunTable::report(const void* connection, const void* reporter, RunOwner owner, RunFigures figures,
                        uint64_t now_ns) {
  const auto at = runs_.find(connection);
  const bool again =
      at != runs_.end() && at->second.reporter == reporter && at->second.run.owner.tenant == owner.tenant;
  Status status = check(figures);
  if (status.ok() && again) status = check_after(at->second.run.figures, figures);
  if (!status.ok()) {
    ++refused_;
    return status;
  }
  Entry entry;
  entry.run = {.owner = std::move(owner), .figures = std::move(figures), .reported_ns = now_ns};
  entry.reporter = reporter;
  if (again) set_rates(at->second.run, &entry.run);
  if (at != runs_.end() && !again) fold(at->second);
  Ended& tenant = ended_of(entry.run.owner.tenant, &entry.sums_of);
  ++tenant.reports;
  runs_[connection] = std::move(entry);
  return {};
}

void RunTable::fold(const Entry& entry) {
  add_to(&tenants_[entry.sums_of].counters, counted(entry.run.figures));
}

void RunTable::end(const void* connection, const void* reporter) {
  const auto at = runs_.find(connection);
  if (at == runs_.end() || at->second.reporter != reporter) return;
  fold(at->second);
  runs_.erase(at);
}

std::vector<const Run*> RunTable::list() const {
  std::vector<const Run*> runs;
  runs.reserve(runs_.size());
  for (const auto& [connection, entry] : runs_) runs.push_back(&entry.run);
  std::sort(runs.begin(), runs.end(), [](const Run* one, const Run* other) {
    return std::tie(one->owner.tenant, one->owner.host, one->owner.pid, one->figures.program) <
           std::tie(other->owner.tenant, other->owner.host, other->owner.pid, other->figures.program);
  });
  return runs;
}

std::map<std::string, RunSums> RunTable::sums(uint64_t now_ns) const {
  std::map<std::string, RunSums> sums;
  for (const auto& [tenant, ended] : tenants_) {
    sums[tenant].counters = ended.counters;
    sums[tenant].reports = ended.reports;
  }
  for (const auto& [connection, entry] : runs_) {
    RunSums& of = sums[entry.sums_of];
    add_to(&of.counters, counted(entry.run.figures));
    if (now_ns - std::min(now_ns, entry.run.reported_ns) < run_silent_ns) add_now(&of, entry.run.figures);
  }
  for (auto& [tenant, of] : sums)
    of.ddr_hits = of.sampled_bytes == 0 ? 0 : of.ddr_hits / static_cast<double>(of.sampled_bytes);
  return sums;
}

}  // namespace terrace::daemon
