// SPDX-License-Identifier: Apache-2.0
// What programs say of their memory: bounds, refusals, and sums that never fall (RT1).
#include "daemon/runs/run_table.h"

#include <doctest/doctest.h>

using namespace terrace;
using namespace terrace::daemon;

namespace {

RunFigures figures(uint64_t promotions, uint64_t ddr_bytes = 0) {
  RunFigures made;
  made.program = "redis-server";
  made.processes = 1;
  made.ddr_bytes = ddr_bytes;
  made.counters.promotions = promotions;
  return made;
}

RunOwner owner(const std::string& tenant, uint32_t pid = 7) {
  return {.tenant = tenant, .host = "here", .agent = "", .pid = pid, .uid = 1000};
}

// Stand for connections and sessions: their addresses are all that counts.
char connections[4096], sessions[4096];

}  // namespace

TEST_CASE("RunTable: the last report of a connection counts, and rates are between two") {
  RunTable table;
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), figures(10, 100), ns_per_s).ok());
  RunFigures later = figures(40, 300);
  later.counters.promoted_bytes = 5000;
  later.counters.demoted_bytes = 1000;
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), later, 3 * ns_per_s).ok());
  REQUIRE(table.list().size() == 1);
  const Run& run = *table.list()[0];
  CHECK(run.figures.ddr_bytes == 300);
  CHECK(run.promotions_per_s == 15);
  CHECK(run.copy_bytes_per_s == 3000);
  const auto sums = table.sums(3 * ns_per_s);
  CHECK(sums.at("a").runs == 1);
  CHECK(sums.at("a").ddr_bytes == 300);
  CHECK(sums.at("a").counters.promotions == 40);
  CHECK(sums.at("a").reports == 2);
}

TEST_CASE("RunTable: what an ended run did stays in its tenant's sums, what it had does not") {
  RunTable table;
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), figures(10, 100), 1).ok());
  REQUIRE(table.report(&connections[1], &sessions[1], owner("a"), figures(5, 50), 1).ok());
  table.end(&connections[0], &sessions[0]);
  CHECK(table.size() == 1);
  auto sums = table.sums(1);
  CHECK(sums.at("a").runs == 1);
  CHECK(sums.at("a").ddr_bytes == 50);
  CHECK(sums.at("a").counters.promotions == 15);
  // The same address, as the allocator gives it to the next connection: nothing is known of it.
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), figures(1), 1).ok());
  CHECK(table.sums(1).at("a").counters.promotions == 16);
  table.end(&connections[0], &sessions[0]);
  table.end(&connections[1], &sessions[1]);
  table.end(&connections[1], &sessions[1]);  // the second time is none
  CHECK(table.list().empty());
  sums = table.sums(1);
  CHECK(sums.at("a").runs == 0);
  CHECK(sums.at("a").counters.promotions == 16);
}

TEST_CASE("RunTable: what was told over an earlier connection is not counted twice") {
  RunTable table;
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), figures(10), 1).ok());
  table.end(&connections[0], &sessions[0]);
  RunFigures again = figures(13);
  again.told_before.promotions = 10;
  REQUIRE(table.report(&connections[1], &sessions[1], owner("a"), again, 2).ok());
  CHECK(table.sums(2).at("a").counters.promotions == 13);
  CHECK(table.list()[0]->figures.counters.promotions == 13);  // of the run
}

TEST_CASE(
    "RunTable: another session of the same connection takes the place, and the first one's end ends nothing") {
  RunTable table;
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), figures(10, 100), 1).ok());
  REQUIRE(table.report(&connections[0], &sessions[1], owner("b"), figures(3, 30), 1).ok());
  CHECK(table.size() == 1);
  table.end(&connections[0], &sessions[0]);
  CHECK(table.size() == 1);
  const auto sums = table.sums(1);
  CHECK(sums.at("a").runs == 0);
  CHECK(sums.at("a").counters.promotions == 10);
  CHECK(sums.at("b").ddr_bytes == 30);
}

TEST_CASE("RunTable: numbers that cannot be are refused, and change nothing") {
  RunTable table;
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), figures(10, 100), 1).ok());
  const auto refuses = [&](RunFigures wrong, const char* word) {
    const Status status = table.report(&connections[0], &sessions[0], owner("a"), std::move(wrong), 2);
    REQUIRE(!status.ok());
    CHECK(status.error().code == ErrorCode::invalid_argument);
    CHECK_MESSAGE(status.error().detail.find(word) != std::string::npos, status.error().detail);
  };
  refuses(figures(9), "promotions fell from 10 to 9");
  refuses(figures(11, run_bytes_max + 1), "ddrBytes");
  refuses(figures(run_count_max + 1), "promotions");
  RunFigures wrong = figures(11);
  wrong.told_before.promotions = 12;
  refuses(wrong, "told before");
  wrong.told_before.promotions = 2;  // of 11: 9 are this manager's, which knows of 10
  refuses(wrong, "fell");
  wrong = figures(11);
  wrong.ddr_hit_permille = 1001;
  refuses(wrong, "ddrHitPermille");
  wrong = figures(11);
  wrong.processes = UINT32_MAX;
  refuses(wrong, "processes");
  wrong = figures(11);
  wrong.bands.resize(run_bands_max + 1);
  wrong.band_bytes = 2 * mib;
  refuses(wrong, "number of bands");
  wrong.bands.resize(run_bands_max);
  wrong.band_bytes = 0;
  refuses(wrong, "bandBytes");
  wrong.band_bytes = run_bytes_max;
  refuses(wrong, "bandBytes");
  wrong.band_bytes = 2 * mib;
  wrong.bands[7] = {.heat = 9, .ddr_percent = 60, .cxl_percent = 41};
  refuses(wrong, "cxlPercent");
  CHECK(table.refused() == 11);
  CHECK(table.sums(2).at("a").counters.promotions == 10);
  CHECK(table.sums(2).at("a").ddr_bytes == 100);
  CHECK(table.sums(2).at("a").reports == 1);
}

TEST_CASE("RunTable: bands of a heap are those of the last report") {
  RunTable table;
  RunFigures hot = figures(1);
  hot.band_bytes = 2 * mib;
  hot.bands = {{.heat = 40, .ddr_percent = 100}, {.heat = 0, .ddr_percent = 0, .cxl_percent = 100}};
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), hot, 1).ok());
  CHECK(table.list()[0]->figures.bands == hot.bands);
  CHECK(table.list()[0]->figures.band_bytes == 2 * mib);
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), figures(2), 2).ok());
  CHECK(table.list()[0]->figures.bands.empty());
}

TEST_CASE("RunTable: sums of wild programs stay at the greatest number") {
  RunTable table;
  for (int i = 0; i < 8; ++i) {
    RunFigures wild = figures(run_count_max);
    wild.cxl_bytes = run_bytes_max;
    REQUIRE(table.report(&connections[i], &sessions[i], owner("a"), wild, 1).ok());
    table.end(&connections[i], &sessions[i]);
  }
  CHECK(table.sums(1).at("a").counters.promotions == UINT64_MAX);
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), figures(1), 1).ok());
  CHECK(table.sums(1).at("a").counters.promotions == UINT64_MAX);
}

TEST_CASE("RunTable: tenants beyond the bound are summed together, and no sum moves from one to another") {
  RunTable table;
  const size_t beyond = 3;
  for (size_t i = 0; i < run_tenants_max + beyond; ++i)
    REQUIRE(table.report(&connections[i], &sessions[i], owner("t" + std::to_string(i)), figures(1), 1).ok());
  auto sums = table.sums(1);
  CHECK(sums.size() == run_tenants_max + 1);
  CHECK(sums.at("").runs == beyond);
  CHECK(sums.at("").counters.promotions == beyond);
  for (size_t i = 0; i < run_tenants_max + beyond; ++i) table.end(&connections[i], &sessions[i]);
  REQUIRE(
      table.report(&connections[0], &sessions[0], owner("t" + std::to_string(run_tenants_max)), figures(5), 1)
          .ok());
  sums = table.sums(1);
  CHECK(sums.size() == run_tenants_max + 1);
  CHECK(sums.at("").counters.promotions == beyond + 5);
  CHECK(sums.at("").runs == 1);
}

TEST_CASE("RunTable: a run that is silent is listed and counts in nothing of now") {
  RunTable table;
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), figures(10, 100), ns_per_s).ok());
  CHECK(table.sums(ns_per_s + run_silent_ns - 1).at("a").runs == 1);
  const auto sums = table.sums(ns_per_s + run_silent_ns);
  CHECK(sums.at("a").runs == 0);
  CHECK(sums.at("a").ddr_bytes == 0);
  CHECK(sums.at("a").counters.promotions == 10);
  CHECK(table.list().size() == 1);
}

TEST_CASE("RunTable: shares of hits are weighed by the memory they are of") {
  RunTable table;
  RunFigures large = figures(0), small = figures(0);
  large.sampled_bytes = 300;
  large.ddr_hit_permille = 900;
  small.sampled_bytes = 100;
  small.ddr_hit_permille = 100;
  REQUIRE(table.report(&connections[0], &sessions[0], owner("a"), large, 1).ok());
  REQUIRE(table.report(&connections[1], &sessions[1], owner("a"), small, 1).ok());
  CHECK(table.sums(1).at("a").ddr_hits == doctest::Approx(0.7));
}
