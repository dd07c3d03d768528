// SPDX-License-Identifier: Apache-2.0
#include "daemon/model/extent_map.h"

#include <algorithm>
#include <bit>

#include "core/base/check.h"

namespace terrace::daemon {

ExtentMap::ExtentMap(uint64_t granules) : total_(granules) {
  if (granules > 0) insert(0, granules);
}

void ExtentMap::insert(uint64_t first, uint64_t count) {
  by_first_.emplace(first, count);
  by_count_.emplace(count, first);
  free_ += count;
}

void ExtentMap::erase(std::map<uint64_t, uint64_t>::iterator at) {
  free_ -= at->second;
  by_count_.erase({at->second, at->first});
  by_first_.erase(at);
}

uint64_t ExtentMap::largest_run() const {
  return by_count_.empty() ? 0 : by_count_.rbegin()->first;
}

std::optional<GranuleRun> ExtentMap::find_fit(uint64_t granules) const {
  constexpr int lengths_max = 64;
  if (granules == 0) return std::nullopt;
  std::optional<GranuleRun> lowest;
  auto at = by_count_.lower_bound({granules, 0});
  for (int lengths = 0; at != by_count_.end() && lengths < lengths_max; ++lengths) {
    const auto [count, first] = *at;  // the lowest run of this length
    if (lowest.has_value() && lowest->count / 2 < granules && count / 2 >= granules) break;
    if (!lowest.has_value() || first < lowest->first) lowest = GranuleRun{first, count};
    at = by_count_.lower_bound({count + 1, 0});
  }
  return lowest;
}

std::optional<GranuleRun> ExtentMap::take_fit(uint64_t granules) {
  const auto fit = find_fit(granules);
  if (!fit.has_value()) return std::nullopt;
  const GranuleRun run{fit->first, granules};
  TERRACE_CHECK(take_exact(run), "the indexes of an ExtentMap hold the same runs");
  return run;
}

std::optional<GranuleRun> ExtentMap::take_longest(uint64_t granules) {
  if (granules == 0 || by_count_.empty()) return std::nullopt;
  const auto [count, first] = *by_count_.rbegin();
  const GranuleRun run{first, std::min(count, granules)};
  TERRACE_CHECK(take_exact(run), "the indexes of an ExtentMap hold the same runs");
  return run;
}

bool ExtentMap::take_exact(GranuleRun run) {
  if (run.count == 0 || run.first >= total_ || run.count > total_ - run.first) return false;
  auto at = by_first_.upper_bound(run.first);
  if (at == by_first_.begin()) return false;
  --at;
  const auto [first, count] = *at;
  const uint64_t end = first + count;
  if (run.first + run.count > end) return false;
  erase(at);
  if (first < run.first) insert(first, run.first - first);
  if (run.first + run.count < end) insert(run.first + run.count, end - run.first - run.count);
  return true;
}

bool ExtentMap::give(GranuleRun run) {
  if (run.count == 0 || run.first >= total_ || run.count > total_ - run.first) return false;
  const uint64_t run_end = run.first + run.count;
  auto next = by_first_.lower_bound(run.first);
  if (next != by_first_.end() && next->first < run_end) return false;
  if (next != by_first_.begin()) {
    const auto previous = std::prev(next);
    const uint64_t previous_end = previous->first + previous->second;
    if (previous_end > run.first) return false;
    if (previous_end == run.first) {
      run = {previous->first, previous->second + run.count};
      erase(previous);
    }
  }
  if (next != by_first_.end() && next->first == run_end) {
    run.count += next->second;
    erase(next);
  }
  insert(run.first, run.count);
  return true;
}

std::vector<GranuleRun> ExtentMap::runs_within(GranuleRun run) const {
  const uint64_t end = run.first + std::min(run.count, UINT64_MAX - run.first);
  std::vector<GranuleRun> within;
  auto at = by_first_.upper_bound(run.first);
  if (at != by_first_.begin()) --at;
  for (; at != by_first_.end() && at->first < end; ++at) {
    const uint64_t from = std::max(at->first, run.first);
    const uint64_t to = std::min(at->first + at->second, end);
    if (to > from) within.push_back({from, to - from});
  }
  return within;
}

bool ExtentMap::all_free(GranuleRun run) const {
  const std::vector<GranuleRun> within = runs_within(run);
  return within.size() == 1 && within.front() == run;
}

std::vector<SizeClass> ExtentMap::size_classes() const {
  std::vector<SizeClass> classes;
  for (const auto& [count, first] : by_count_) {  // ascending by count
    const uint64_t granules_min = std::bit_floor(count);
    if (classes.empty() || classes.back().granules_min != granules_min) classes.push_back({granules_min, 0, 0});
    ++classes.back().runs;
    classes.back().granules += count;
  }
  return classes;
}

void ExtentMap::grow(uint64_t granules) {
  if (granules == 0) return;
  const uint64_t first = total_;
  total_ += granules;
  TERRACE_CHECK(give({first, granules}), "granules beyond a device's end were free");
}

bool ExtentMap::consistent() const {
  if (by_first_.size() != by_count_.size()) return false;
  uint64_t sum = 0;
  uint64_t previous_end = 0;
  bool first_run = true;
  for (const auto& [first, count] : by_first_) {
    if (count == 0 || first + count > total_) return false;
    if (!first_run && first <= previous_end) return false;  // overlapping, or neighbours left unmerged
    if (!by_count_.contains({count, first})) return false;
    previous_end = first + count;
    first_run = false;
    sum += count;
  }
  return sum == free_;
}

}  // namespace terrace::daemon
