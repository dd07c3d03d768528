// SPDX-License-Identifier: Apache-2.0
// The plan's own answers on traces whose best arrangement is known.
#include "daemon/plan/sizing.h"

#include "tests/unit/plan/traces.h"

using namespace terrace;
using namespace terrace::plan;

namespace {

Question question_of(uint64_t hosts, uint64_t host_gib) {
  Question question;
  question.setup = setup_of(1, 1, 0);
  question.setup.placement = Placement::worst_fit;
  question.hosts = hosts;
  question.host_memory_bytes = host_gib * gib;
  question.rejection_rate = 0;
  return question;
}

Plan plan_of(const Trace& trace, const Question& question) {
  Result<Plan> plan = make_plan(trace, question);
  REQUIRE(plan.ok());
  CHECK(plan->problems() == std::vector<std::string>{});
  return *plan;
}

}  // namespace

TEST_CASE("Plan: two hosts with opposite peaks save exactly one third by pooling") {
  Question question = question_of(2, 12);
  question.local_fractions = {1.0 / 3};
  const Plan plan = plan_of(opposite_peaks(), question);
  CHECK(plan.baseline.rejected == 0);
  CHECK(plan.baseline_bytes == 24 * gib);
  REQUIRE(plan.best() != nullptr);
  CHECK(plan.best()->setup.local_bytes == 4 * gib);
  CHECK(plan.best()->outcome.rejected == 0);
  // 24 -> 16 GiB, to within the search's thousandth of the baseline.
  CHECK(plan.best()->total_bytes >= 16 * gib);
  CHECK(plan.best()->total_bytes <= 16 * gib + 24 * mib);
  CHECK(plan.best()->saving == doctest::Approx(1.0 / 3).epsilon(0.005));
  // A smaller host alone saves nothing: an 8 GiB request beside a 4 GiB one needs all 12.
  REQUIRE(plan.without_pool.has_value());
  CHECK(plan.without_pool->setup.local_bytes == 12 * gib);
  CHECK(plan.saving_beyond_right_sizing(*plan.best()) == doctest::Approx(1.0 / 3).epsilon(0.005));
}

TEST_CASE("Plan: what smaller hosts would save alone is not credited to the pool") {
  // The same, on hosts with twice the memory they need.
  Question question = question_of(2, 24);
  question.local_fractions = {1.0 / 6};
  const Plan plan = plan_of(opposite_peaks(), question);
  REQUIRE(plan.best() != nullptr);
  CHECK(plan.best()->saving == doctest::Approx(2.0 / 3).epsilon(0.005));
  CHECK(plan.without_pool->saving == doctest::Approx(0.5).epsilon(0.01));
  CHECK(plan.saving_beyond_right_sizing(*plan.best()) == doctest::Approx(1.0 / 3).epsilon(0.02));
}

TEST_CASE("Plan: requests that fill their hosts at one time leave nothing to save") {
  const Plan plan = plan_of(trace_of({{8, 0, 10}, {8, 0, 10}}), question_of(2, 8));
  CHECK(plan.best() == nullptr);
  for (const Row& row : plan.rows) {
    REQUIRE(row.point.has_value());
    CHECK(row.point->total_bytes >= plan.baseline_bytes);
  }
}

TEST_CASE("Plan: a row says so when no pool is large enough") {
  Question question = question_of(1, 8);
  question.setup.pool_fraction_max = 0.25;
  question.local_fractions = {0.9, 0.5};
  const Plan plan = plan_of(trace_of({{8, 0, 10}}), question);
  CHECK(plan.rows[0].point.has_value());
  CHECK_FALSE(plan.rows[1].point.has_value());
  CHECK(plan.rows[1].least_rejected == 1);
}

TEST_CASE("Plan: hosts and their memory are chosen from the trace") {
  Question question;
  question.setup = setup_of(1, 1, 0);
  question.setup.placement = Placement::worst_fit;
  question.rejection_rate = 0;
  // Nine at once of 20 GiB: one on each host of 24 GiB.
  std::vector<Ask> asks;
  for (uint64_t index = 0; index < 9; ++index) asks.push_back({20, index, 100});
  const Plan plan = plan_of(trace_of(asks), question);
  CHECK(plan.hosts_chosen);
  CHECK(plan.host_memory_chosen);
  CHECK(plan.baseline_setup.local_bytes == 24 * gib);
  CHECK(plan.baseline_setup.hosts == 9);
  CHECK(plan.baseline.rejected == 0);

  question.rejection_rate = 0.12;  // one of nine may go
  CHECK(plan_of(trace_of(asks), question).baseline_setup.hosts == 8);
}

TEST_CASE("Plan: when requests fit on no host the wanted rate is missed, and the plan says so") {
  Question question;
  question.setup = setup_of(1, 1, 0);
  question.host_memory_bytes = 4 * gib;
  question.rejection_rate = 0;
  const Plan plan = plan_of(trace_of({{2, 0, 10}, {2, 0, 10}, {6, 0, 10}}), question);
  CHECK_FALSE(plan.rate_reached);
  CHECK(plan.baseline.rejected == 1);
  CHECK(plan.rejected_max == 1);
  CHECK(plan.baseline_setup.hosts == 1);
}

TEST_CASE("Plan: given pool sizes are replayed as they are, one row for each pair") {
  Question question = question_of(2, 12);
  question.local_fractions = {0.5, 1.0 / 3};
  question.pool_bytes = {4 * gib, 8 * gib};
  const Plan plan = plan_of(opposite_peaks(), question);
  REQUIRE(plan.rows.size() == 4);
  CHECK_FALSE(plan.searched);
  CHECK(plan.rows[2].point->setup.pool_bytes == 4 * gib);
  CHECK_FALSE(plan.rows[2].point->acceptable);
  CHECK(plan.rows[3].point->acceptable);
  CHECK(plan.rows[3].point->total_bytes == 16 * gib);
}

TEST_CASE("Plan: questions that cannot be answered name the option") {
  const Trace trace = opposite_peaks();
  Question question = question_of(2, 12);
  question.local_fractions = {1.5};
  CHECK(make_plan(trace, question).error().detail.find("--local-fractions") != std::string::npos);
  question = question_of(2, 12);
  question.rejection_rate = -1;
  CHECK(make_plan(trace, question).error().detail.find("--rejection-rate") != std::string::npos);
  question = question_of(2, 12);
  question.setup.pool_fraction_max = 2;
  CHECK(make_plan(trace, question).error().detail.find("--pool-fraction-max") != std::string::npos);
  question = question_of(2, 12);
  question.setup.granule_bytes = 3 * mib;
  CHECK(make_plan(trace, question).error().detail.find("--granule") != std::string::npos);
  question = question_of(2, 12);
  question.host_memory_bytes = 1 * mib;
  CHECK(make_plan(trace, question).error().detail.find("--host-memory") != std::string::npos);
}
