#include "daemon/pool/extent_map.h"

#include <algorithm>

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

std::optional<uint64_t> ExtentMap::best_fit_length(uint64_t granules) const {
  const auto fit = by_count_.lower_bound({granules, 0});
  if (granules == 0 || fit == by_count_.end()) return std::nullopt;
  return fit->first;
}

std::optional<GranuleRun> ExtentMap::take_best_fit(uint64_t granules) {
  if (granules == 0) return std::nullopt;
  const auto fit = by_count_.lower_bound({granules, 0});
  if (fit == by_count_.end()) return std::nullopt;
  const GranuleRun run{fit->second, granules};
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
