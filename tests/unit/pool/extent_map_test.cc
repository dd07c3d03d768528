// ExtentMap: the free granules of a device, alone and against a bitmap.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/base/prng.h"
#include "daemon/pool/extent_map.h"

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
  std::optional<GranuleRun> best_fit(uint64_t granules) const {
    std::optional<GranuleRun> best;
    uint64_t best_length = UINT64_MAX;
    for (const auto& [first, count] : runs()) {
      if (granules == 0 || count < granules || count >= best_length) continue;
      best = GranuleRun{first, granules};
      best_length = count;
    }
    return best;
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
  CHECK_FALSE(map.take_best_fit(1).has_value());
  CHECK_FALSE(map.take_longest(1).has_value());
  CHECK_FALSE(map.take_exact({0, 1}));
  CHECK_FALSE(map.give({0, 1}));
  CHECK(map.consistent());
}

TEST_CASE("ExtentMap: best fit takes the shortest run that is long enough, the lowest of equal ones") {
  ExtentMap map(20);
  REQUIRE(map.take_exact({4, 1}));   // 0-3 free
  REQUIRE(map.take_exact({8, 1}));   // 5-7 free
  REQUIRE(map.take_exact({12, 1}));  // 9-11 free, 13-19 free
  CHECK(*map.take_best_fit(3) == GranuleRun{5, 3});
  CHECK(*map.take_best_fit(2) == GranuleRun{9, 2});
  CHECK(*map.take_best_fit(5) == GranuleRun{13, 5});
  CHECK_FALSE(map.take_best_fit(5).has_value());
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
  CHECK_FALSE(map.take_best_fit(0).has_value());
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
          const auto expected = bitmap.best_fit(run.count);
          const auto taken = map.take_best_fit(run.count);
          REQUIRE(taken == expected);
          if (taken.has_value()) bitmap.set(*taken, false);
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
      const auto fit = bitmap.best_fit(run.count);
      const auto length = map.best_fit_length(run.count);
      REQUIRE(length.has_value() == fit.has_value());
      if (fit.has_value()) REQUIRE(*length == bitmap.runs().at(fit->first));
    }
  }
}
