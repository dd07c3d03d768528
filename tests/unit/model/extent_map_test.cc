// SPDX-License-Identifier: Apache-2.0
// ExtentMap: the free granules of a device, alone and against a bitmap.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/base/prng.h"
#include "daemon/model/extent_map.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

using Runs = std::map<uint64_t, uint64_t>;

// One bool a granule; every answer by a walk over all of them.
class Bitmap {
 public:
  explicit Bitmap(uint64_t granules) : free_(granules, true) {}

  Runs runs() const {
    Runs found;
    for (uint64_t i = 0; i < free_.size(); ++i) {
      if (!free_[i]) continue;
      uint64_t end = i;
      while (end < free_.size() && free_[end]) ++end;
      found[i] = end - i;
      i = end;
    }
    return found;
  }
  uint64_t count() const { return static_cast<uint64_t>(std::count(free_.begin(), free_.end(), true)); }
  bool all(GranuleRun run, bool value) const {
    if (run.count == 0 || run.first >= free_.size() || run.count > free_.size() - run.first) return false;
    for (uint64_t i = run.first; i < run.first + run.count; ++i) {
      if (free_[i] != value) return false;
    }
    return true;
  }
  void set(GranuleRun run, bool value) {
    for (uint64_t i = run.first; i < run.first + run.count; ++i) free_[i] = value;
  }
  // The lowest run shorter than twice `granules`, else the lowest that holds them.
  std::optional<GranuleRun> fit(uint64_t granules) const {
    std::optional<GranuleRun> any;
    for (const auto& [first, count] : runs()) {
      if (granules == 0 || count < granules) continue;
      if (count < 2 * granules) return GranuleRun{first, count};
      if (!any.has_value()) any = GranuleRun{first, count};
    }
    return any;
  }
  uint64_t longest() const {
    uint64_t length = 0;
    for (const auto& [first, count] : runs()) length = std::max(length, count);
    return length;
  }

 private:
  std::vector<bool> free_;
};

}  // namespace

TEST_CASE("ExtentMap: all of a new device is one free run") {
  const ExtentMap map(10);
  CHECK(map.free_granules() == 10);
  CHECK(map.total_granules() == 10);
  CHECK(map.largest_run() == 10);
  CHECK(map.runs() == Runs{{0, 10}});
  CHECK(map.consistent());
}

TEST_CASE("ExtentMap: a device without granules gives nothing and takes nothing") {
  ExtentMap map(0);
  CHECK(map.largest_run() == 0);
  CHECK_FALSE(map.take_fit(1).has_value());
  CHECK_FALSE(map.take_longest(1).has_value());
  CHECK_FALSE(map.take_exact({0, 1}));
  CHECK_FALSE(map.give({0, 1}));
  CHECK(map.consistent());
}

TEST_CASE("ExtentMap: the lowest run shorter than twice as long is cut, else the lowest that fits") {
  ExtentMap map(30);
  REQUIRE(map.take_exact({9, 1}));   // 0-8 free
  REQUIRE(map.take_exact({14, 1}));  // 10-13 free
  REQUIRE(map.take_exact({18, 1}));  // 15-17 free, 19-29 free
  CHECK(*map.find_fit(3) == GranuleRun{10, 4});
  CHECK(*map.take_fit(3) == GranuleRun{10, 3});
  CHECK(*map.take_fit(3) == GranuleRun{15, 3});
  CHECK(*map.take_fit(3) == GranuleRun{0, 3});  // nothing close is left: 13, 3-8, 19-29
  CHECK(*map.take_fit(10) == GranuleRun{19, 10});
  CHECK_FALSE(map.take_fit(7).has_value());
  CHECK(map.consistent());
}

TEST_CASE("ExtentMap: free runs are counted by powers of two, and found within a window") {
  ExtentMap map(32);
  for (const uint64_t taken : {1, 3, 7, 15}) REQUIRE(map.take_exact({taken, 1}));  // 0, 2, 4-6, 8-14, 16-31
  CHECK(map.size_classes() == std::vector<SizeClass>{{1, 2, 2}, {2, 1, 3}, {4, 1, 7}, {16, 1, 16}});
  CHECK(map.runs_within({2, 8}) == std::vector<GranuleRun>{{2, 1}, {4, 3}, {8, 2}});
  CHECK(map.runs_within({7, 1}).empty());
  CHECK(map.all_free({9, 4}));
  CHECK_FALSE(map.all_free({6, 3}));
  CHECK_FALSE(map.all_free({30, 3}));
  CHECK(ExtentMap(0).size_classes().empty());
}

TEST_CASE("ExtentMap: a device that grew has its new granules free, merged with those before") {
  ExtentMap map(4);
  map.grow(3);
  CHECK(map.runs() == Runs{{0, 7}});
  REQUIRE(map.take_exact({5, 2}));
  map.grow(2);
  CHECK(map.runs() == Runs{{0, 5}, {7, 2}});
  CHECK(map.total_granules() == 9);
  CHECK(map.consistent());
}

TEST_CASE("ExtentMap: the longest run is taken up to what is asked for") {
  ExtentMap map(10);
  REQUIRE(map.take_exact({3, 1}));
  CHECK(*map.take_longest(4) == GranuleRun{4, 4});
  CHECK(*map.take_longest(100) == GranuleRun{0, 3});
  CHECK(*map.take_longest(100) == GranuleRun{8, 2});
  CHECK_FALSE(map.take_longest(1).has_value());
  CHECK(map.free_granules() == 0);
}

TEST_CASE("ExtentMap: zero granules are never taken or given") {
  ExtentMap map(10);
  CHECK_FALSE(map.take_fit(0).has_value());
  CHECK_FALSE(map.take_longest(0).has_value());
  CHECK_FALSE(map.take_exact({3, 0}));
  CHECK_FALSE(map.give({3, 0}));
  CHECK(map.runs() == Runs{{0, 10}});
}

TEST_CASE("ExtentMap: a run that is taken in part, or outside the device, is refused without a change") {
  ExtentMap map(10);
  REQUIRE(map.take_exact({4, 2}));
  for (const GranuleRun run :
       {GranuleRun{3, 2}, {5, 2}, {4, 2}, {0, 10}, {9, 2}, {10, 1}, {UINT64_MAX, 2}, {1, UINT64_MAX}}) {
    CHECK_FALSE(map.take_exact(run));
  }
  CHECK(map.runs() == Runs{{0, 4}, {6, 4}});
  for (const GranuleRun run :
       {GranuleRun{3, 2}, {5, 2}, {0, 10}, {9, 2}, {10, 1}, {UINT64_MAX, 2}, {4, UINT64_MAX}}) {
    CHECK_FALSE(map.give(run));
  }
  CHECK(map.runs() == Runs{{0, 4}, {6, 4}});
  CHECK(map.consistent());
}

TEST_CASE("ExtentMap: a run that is given back merges with its neighbours on both sides") {
  ExtentMap map(9);
  REQUIRE(map.take_exact({0, 9}));
  CHECK(map.give({0, 3}));
  CHECK(map.give({6, 3}));
  CHECK(map.runs() == Runs{{0, 3}, {6, 3}});
  CHECK(map.give({3, 3}));
  CHECK(map.runs() == Runs{{0, 9}});
  CHECK_FALSE(map.give({3, 3}));  // twice
  CHECK(map.consistent());
}

TEST_CASE("ExtentMap: agrees with a bitmap over random takes and gives") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const uint64_t total = prng.between(1, 120);
    ExtentMap map(total);
    Bitmap bitmap(total);
    for (int i = 0; i < 3000; ++i) {
      // Now and then a run that reaches beyond the device.
      const GranuleRun run{prng.below(total + 2), prng.below(total / 4 + 3)};
      switch (prng.below(5)) {
        case 0: {
          const auto expected = bitmap.fit(run.count);
          const auto taken = map.take_fit(run.count);
          REQUIRE(taken.has_value() == expected.has_value());
          if (!taken.has_value()) break;
          REQUIRE(*taken == GranuleRun{expected->first, run.count});
          bitmap.set(*taken, false);
          break;
        }
        case 1: {
          const uint64_t longest = bitmap.longest();
          const auto taken = map.take_longest(run.count);
          REQUIRE(taken.has_value() == (longest > 0 && run.count > 0));
          if (!taken.has_value()) break;
          REQUIRE(taken->count == std::min(longest, run.count));
          REQUIRE(bitmap.all(*taken, true));
          bitmap.set(*taken, false);
          break;
        }
        case 2: {
          const bool expected = bitmap.all(run, true);
          REQUIRE(map.take_exact(run) == expected);
          if (expected) bitmap.set(run, false);
          break;
        }
        default: {
          const bool expected = bitmap.all(run, false);
          REQUIRE(map.give(run) == expected);
          if (expected) bitmap.set(run, true);
          break;
        }
      }
      REQUIRE(map.consistent());
      REQUIRE(map.runs() == bitmap.runs());
      REQUIRE(map.free_granules() == bitmap.count());
      REQUIRE(map.largest_run() == bitmap.longest());
      REQUIRE(map.find_fit(run.count) == bitmap.fit(run.count));
    }
  }
}
