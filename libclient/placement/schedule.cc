// SPDX-License-Identifier: Apache-2.0
#include "libclient/placement/schedule.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace terrace::placement {
namespace {

constexpr uint64_t entries_max = 1 << 24;
constexpr uint32_t never = UINT32_MAX;
constexpr double like_length = 1.25;  // intervals whose lengths differ by less are alike

// Room left at each position: the least over a stretch, and taking one from a stretch.
class Room {
 public:
  explicit Room(const std::vector<int64_t>& at) : count_(static_cast<uint32_t>(at.size())) {
    while (leaves_ < count_) leaves_ *= 2;
    least_.assign(2 * leaves_, INT64_MAX / 2);
    taken_.assign(2 * leaves_, 0);
    for (uint32_t i = 0; i < count_; ++i) least_[leaves_ + i] = at[i];
    for (uint32_t i = leaves_ - 1; i > 0; --i) least_[i] = std::min(least_[2 * i], least_[2 * i + 1]);
  }
  // Positions [first, first + length) around the cycle. Returns whether there was room everywhere.
  bool take(uint32_t first, uint32_t length) {
    const uint32_t end = std::min(count_, first + length);
    const uint32_t wrapped = first + length > count_ ? first + length - count_ : 0;
    if (least(1, 0, leaves_, first, end) < 1) return false;
    if (wrapped > 0 && least(1, 0, leaves_, 0, wrapped) < 1) return false;
    add(1, 0, leaves_, first, end);
    if (wrapped > 0) add(1, 0, leaves_, 0, wrapped);
    return true;
  }

 private:
  int64_t least(uint32_t node, uint32_t low, uint32_t high, uint32_t first, uint32_t end) const {
    if (first >= high || end <= low) return INT64_MAX / 2;
    if (first <= low && high <= end) return least_[node];
    const uint32_t middle = (low + high) / 2;
    return std::min(least(2 * node, low, middle, first, end), least(2 * node + 1, middle, high, first, end)) -
           taken_[node];
  }
  void add(uint32_t node, uint32_t low, uint32_t high, uint32_t first, uint32_t end) {
    if (first >= high || end <= low) return;
    if (first <= low && high <= end) {
      ++taken_[node];
      --least_[node];
      return;
    }
    const uint32_t middle = (low + high) / 2;
    add(2 * node, low, middle, first, end);
    add(2 * node + 1, middle, high, first, end);
    least_[node] = std::min(least_[2 * node], least_[2 * node + 1]) - taken_[node];
  }

  uint32_t count_, leaves_ = 1;
  std::vector<int64_t> least_, taken_;
};

// Of one granule, from the end of its use to the next one.
struct Interval {
  uint32_t entry = 0;     // of the use at its end
  uint32_t first = 0;     // the first position at which it is not in use itself
  uint32_t length = 0;    // positions; 0: it is in use all the time
  uint32_t likeness = 0;  // of lengths
  uint32_t part = 0;      // how far into its use the granule lies
  uint32_t spread = 0;    // scatters positions that are next to each other
};

std::vector<Interval> intervals_of(std::span<const Use> uses, std::span<const uint32_t> begin,
                                   std::span<const uint8_t> pinned, uint32_t granules) {
  const auto count = static_cast<uint32_t>(uses.size());
  std::vector<Interval> intervals;
  intervals.reserve(begin.back());
  std::vector<uint32_t> last(granules, never);  // position of the use before, of the lap before at first
  for (uint32_t lap = 0; lap < 2; ++lap)
    for (uint32_t at = 0; at < count; ++at)
      for (uint32_t i = 0; i < uses[at].count; ++i) {
        uint32_t& before = last[uses[at].first + i];
        if (lap == 1 && pinned[uses[at].first + i] == 0) {
          const uint32_t between = before < at ? at - before : at + count - before;
          const uint32_t busy = std::min(uses[before].positions, between);
          intervals.push_back(
              {.entry = begin[at] + i,
               .first = (before + busy) % count,
               .length = between - busy,
               .likeness = static_cast<uint32_t>(std::log(double{1} + between) / std::log(like_length)),
               .part = static_cast<uint32_t>((uint64_t{i} + 1) * 65536 / uses[at].count),
               .spread = at * 2654435769u});
        }
        before = at;
      }
  return intervals;
}

}  // namespace

Schedule::Schedule(std::span<const Use> cycle, uint32_t granules, uint32_t ddr_granules,
                   std::span<const uint8_t> pinned)
    : granules_(granules) {
  uint64_t entries = 0;
  for (const Use& use : cycle) {
    entries += use.count;
    if (use.count == 0 || use.count > granules || use.first > granules - use.count) return;
  }
  if (entries == 0 || entries > entries_max) return;
  uses_.assign(cycle.begin(), cycle.end());
  begin_.reserve(cycle.size() + 1);
  begin_.push_back(0);
  for (const Use& use : cycle) begin_.push_back(begin_.back() + use.count);
  kept_.assign(entries, 0);
  const std::vector<uint8_t> none(pinned.empty() ? granules : 0, 0);
  choose_kept(ddr_granules, pinned.empty() ? none : pinned);
}

void Schedule::choose_kept(uint32_t ddr_granules, std::span<const uint8_t> pinned) {
  const uint32_t count = positions();
  std::vector<int64_t> in_use(count, 0);
  std::vector<uint8_t> used(granules_, 0);
  int64_t distinct = 0;
  for (uint32_t at = 0; at < count; ++at) {
    uint32_t planned = 0;
    for (uint32_t granule = uses_[at].first; granule < uses_[at].first + uses_[at].count; ++granule) {
      if (pinned[granule] != 0) continue;
      ++planned;
      distinct += std::exchange(used[granule], 1) == 0;
    }
    for (uint32_t i = 0; i < std::min(uses_[at].positions, count); ++i) in_use[(at + i) % count] += planned;
  }
  if (distinct == 0) return;
  const int64_t busiest = *std::max_element(in_use.begin(), in_use.end());
  // What of the next uses must be fetched while these go on; nothing where all of it fits.
  const double missing = std::max(0.0, 1.0 - static_cast<double>(ddr_granules) / static_cast<double>(distinct));
  reserve_ = static_cast<uint32_t>(std::ceil(static_cast<double>(busiest) * missing));
  std::vector<int64_t> room(count);
  for (uint32_t at = 0; at < count; ++at) room[at] = int64_t{ddr_granules} - reserve_ - in_use[at];
  std::vector<Interval> intervals = intervals_of(uses_, begin_, pinned, granules_);
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    if (a.likeness != b.likeness) return a.likeness < b.likeness;
    if (a.part != b.part) return a.part < b.part;
    if (a.spread != b.spread) return a.spread < b.spread;
    return a.entry < b.entry;
  });
  Room left(room);
  for (const Interval& interval : intervals) {
    const bool kept = interval.length == 0 || left.take(interval.first, interval.length);
    kept_[interval.entry] = kept ? 1 : 0;
    fetches_ += kept ? 0 : 1;
  }
}

std::vector<PlannedMove> next_moves(const Schedule& schedule, const PlanView& view) {
  const uint32_t count = schedule.positions();
  std::vector<PlannedMove> moves;
  struct Wanted {
    uint32_t granule, distance;
  };
  std::vector<Wanted> wanted;
  // Of each granule: how many positions from now its next use is, and whether it is kept for it.
  std::vector<uint32_t> distance(view.granules.size(), never);
  std::vector<uint8_t> kept(view.granules.size(), 0);
  for (const Run& run : view.demanded)
    for (uint32_t granule = run.first; granule < run.first + run.count; ++granule) {
      if ((view.granules[granule] & (GranuleState::in_ddr | GranuleState::immovable)) == 0 &&
          distance[granule] != 0)
        wanted.push_back({granule, 0});
      distance[granule] = 0;
    }
  const size_t demanded = wanted.size();
  for (uint32_t ahead = 0; ahead < count; ++ahead) {
    const uint32_t at = (view.position + ahead) % count;
    const Use& use = schedule.use(at);
    for (uint32_t i = 0; i < use.count; ++i) {
      const uint32_t granule = use.first + i;
      if (distance[granule] != never) continue;
      distance[granule] = ahead + 1;
      kept[granule] = schedule.kept_before(at, i) ? 1 : 0;
      if ((view.granules[granule] & (GranuleState::in_ddr | GranuleState::fixed)) == 0 &&
          wanted.size() < demanded + view.moves_max)
        wanted.push_back({granule, ahead + 1});
    }
  }
  if (wanted.empty()) return moves;
  struct Victim {
    uint32_t granule, distance;
    bool kept;
  };
  std::vector<Victim> victims;
  for (uint32_t granule = 0; granule < view.granules.size(); ++granule)
    if (view.granules[granule] == GranuleState::in_ddr && distance[granule] != 0)
      victims.push_back({granule, distance[granule], kept[granule] != 0});
  // The best last: not kept, farthest; of one distance from the use's end on, so that runs stay whole.
  const auto worse = [](const Victim& a, const Victim& b) {
    if (a.kept != b.kept) return a.kept;
    return a.distance != b.distance ? a.distance < b.distance : a.granule < b.granule;
  };
  const size_t of_use = std::min<size_t>(victims.size(), wanted.size());
  std::partial_sort(victims.begin(), victims.begin() + static_cast<ptrdiff_t>(of_use), victims.end(),
                    [&](const Victim& a, const Victim& b) { return worse(b, a); });
  size_t next_victim = 0;
  uint32_t room = view.room;
  for (const Wanted& one : wanted) {
    if (moves.size() >= view.moves_max) break;
    if (room > 0) {
      --room;
    } else {
      if (next_victim == of_use) break;
      const Victim& victim = victims[next_victim];
      if (one.distance > 0 && (victim.kept || victim.distance <= one.distance)) break;
      moves.push_back({.granule = victim.granule, .to_ddr = false});
      ++next_victim;
    }
    moves.push_back({.granule = one.granule, .to_ddr = true});
  }
  return moves;
}

uint64_t belady_fetches(std::span<const Use> cycle, uint32_t granules, uint32_t ddr_granules) {
  constexpr uint64_t laps = 6;
  const uint64_t count = cycle.size();
  // The next use of each entry, as an absolute position; laps beyond the last are looked at too.
  std::vector<std::vector<uint64_t>> next(laps * count);
  std::vector<uint64_t> seen(granules, UINT64_MAX);
  for (uint64_t at = (laps + 1) * count; at-- > 0;) {
    const Use& use = cycle[at % count];
    for (uint32_t i = 0; i < use.count; ++i) {
      if (at < laps * count) next[at].push_back(seen[use.first + i]);
      seen[use.first + i] = at;
    }
  }
  std::vector<uint64_t> key(granules, 0);  // in DDR: its place in `cache`; next uses are at least 1
  std::set<std::pair<uint64_t, uint32_t>> cache;
  uint64_t fetches = 0;
  for (uint64_t at = 0; at < laps * count; ++at) {
    const Use& use = cycle[at % count];
    for (uint32_t i = 0; i < use.count; ++i) {
      const uint32_t granule = use.first + i;
      if (key[granule] != 0) {
        cache.erase({key[granule], granule});
      } else {
        fetches += at >= (laps - 1) * count ? 1 : 0;
        if (cache.size() >= ddr_granules && !cache.empty()) {
          const auto farthest = std::prev(cache.end());
          key[farthest->second] = 0;
          cache.erase(farthest);
        }
      }
      key[granule] = next[at][i];
      cache.insert({next[at][i], granule});
    }
  }
  return fetches;
}

}  // namespace terrace::placement
