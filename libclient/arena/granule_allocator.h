// SPDX-License-Identifier: Apache-2.0
// Keeps track of the taken units of one contiguous stretch: best fit, and freed neighbours are merged. The
// caller chooses the unit (pages of an arena's segment, granules of its address range).
//
// Place     libclient/arena; pure: numbers only, it never sees an address or a byte.
// Threads   One at a time; Arena holds its mutex.
// Invariants
//   A1  Free and taken runs partition [0, units): no overlap, no gap.
//   A2  No two free runs touch.
//   A3  The index by length holds exactly the free runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace terrace::client {

class GranuleAllocator {
 public:
  // `base_units` is where the stretch begins in the caller's numbering; alignment is counted there.
  explicit GranuleAllocator(uint64_t units, uint64_t base_units = 0);

  // The smallest free run that fits, the lowest of several: `units` in a row (at least one), at a multiple of
  // `alignment_units` (a power of two) counted from base_units.
  // Returns   the first unit from the stretch's start; nullopt when no run fits, and nothing changed.
  std::optional<uint64_t> take(uint64_t units, uint64_t alignment_units = 1);

  // Gives back the run that take() returned `start` for.
  // Returns   its length; nullopt when no taken run begins there, and nothing changed.
  std::optional<uint64_t> give(uint64_t start);

  // The length of the taken run that begins at `start`; nullopt when none does.
  std::optional<uint64_t> length_at(uint64_t start) const;

  uint64_t units() const { return units_; }
  uint64_t free_units() const { return free_units_; }
  uint64_t largest_free_units() const { return by_length_.empty() ? 0 : by_length_.rbegin()->first; }
  uint64_t taken_runs() const { return taken_.size(); }

  // Re-derives A1 to A3; empty when all hold, else a sentence on the first breach.
  std::string check() const;

 private:
  using Runs = std::map<uint64_t, uint64_t>;  // start -> length

  void insert_free(uint64_t start, uint64_t length);
  void erase_free(Runs::iterator run);

  uint64_t units_;
  uint64_t base_units_;
  uint64_t free_units_ = 0;
  Runs free_;
  Runs taken_;
  std::set<std::pair<uint64_t, uint64_t>> by_length_;  // length, start
};

}  // namespace terrace::client
