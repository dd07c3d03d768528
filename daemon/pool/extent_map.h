// Free granules of one device: runs by position, and by length for best fit.
//
// Place     daemon/state keeps one per device; pure.
// Threads   One.
// Invariant Runs are disjoint, not adjacent (neighbours are merged), and both indexes hold the same runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace terrace::daemon {

struct GranuleRun {
  uint64_t first = 0;
  uint64_t count = 0;

  bool operator==(const GranuleRun&) const = default;
};

class ExtentMap {
 public:
  explicit ExtentMap(uint64_t granules);  // all free

  uint64_t free_granules() const { return free_; }
  uint64_t total_granules() const { return total_; }
  uint64_t largest_run() const;

  // Length of the run that take_best_fit would cut from.
  std::optional<uint64_t> best_fit_length(uint64_t granules) const;

  // The shortest run that holds `granules`, the lowest of equal ones, so that long runs stay whole; taken
  // from its low end. nullopt: no single run is long enough.
  std::optional<GranuleRun> take_best_fit(uint64_t granules);

  // The longest run, at most `granules` of it. nullopt: nothing is free.
  std::optional<GranuleRun> take_longest(uint64_t granules);

  // Takes exactly `run`; false (and no change) unless all of it is free.
  bool take_exact(GranuleRun run);

  // Gives `run` back; false (and no change) if any of it is free already or lies outside the device.
  bool give(GranuleRun run);

  // Free runs by position.
  const std::map<uint64_t, uint64_t>& runs() const { return by_first_; }
  bool consistent() const;

 private:
  void insert(uint64_t first, uint64_t count);
  void erase(std::map<uint64_t, uint64_t>::iterator at);

  uint64_t total_ = 0;
  uint64_t free_ = 0;
  std::map<uint64_t, uint64_t> by_first_;             // first -> count
  std::set<std::pair<uint64_t, uint64_t>> by_count_;  // count, first
};

}  // namespace terrace::daemon
