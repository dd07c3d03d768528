// SPDX-License-Identifier: Apache-2.0
// Verdicts from counts.
#include <doctest/doctest.h>

#include "core/litmus/report.h"

namespace terrace::litmus {
namespace {

Report report_of(uint64_t rounds, uint64_t met) {
  Report report;
  for (const Shape shape : all_shapes)
    report.shapes.push_back({.name = shape_name(shape), .rounds = rounds, .met = met, .example = {}});
  return report;
}

}  // namespace

TEST_CASE("litmus verdict: enough rounds of every shape without a forbidden outcome are coherent") {
  Report report = report_of(rounds_default, 3);
  conclude(report);
  CHECK(report.verdict == Verdict::coherent);
  CHECK(report.note.empty());
  for (const ShapeResult& shape : report.shapes) CHECK(shape.verdict == Verdict::coherent);
}

TEST_CASE("litmus verdict: one forbidden outcome is enough, whatever else was seen") {
  for (const uint64_t rounds : {uint64_t{1}, rounds_default}) {
    Report report = report_of(rounds, 0);
    count(report.shapes[2], 17, {.forbidden = true, .met = false, .what = "something odd"});
    conclude(report);
    CHECK(report.verdict == Verdict::not_coherent);
    CHECK(report.shapes[2].verdict == Verdict::not_coherent);
    CHECK(report.shapes[2].example == "round 17: something odd");
    CHECK(forbidden_outcomes(report) ==
          "load_buffering: 1 of " + std::to_string(rounds + 1) + " rounds (round 17: something odd)");
  }
}

TEST_CASE("litmus verdict: too few rounds, a shape that lacks, or sides that never met say nothing") {
  Report few = report_of(rounds_min - 1, 9);
  conclude(few);
  CHECK(few.verdict == Verdict::inconclusive);
  CHECK(few.note.find("fewer than 1000 rounds") != std::string::npos);

  Report part = report_of(rounds_default, 9);
  part.shapes.pop_back();
  conclude(part);
  CHECK(part.verdict == Verdict::inconclusive);

  Report apart = report_of(rounds_default, 0);
  conclude(apart);
  CHECK(apart.verdict == Verdict::inconclusive);
  CHECK(apart.note.find("never at it at once") != std::string::npos);
}

TEST_CASE("litmus verdict: the first forbidden outcome is the example") {
  ShapeResult result;
  count(result, 1, {.forbidden = false, .met = true, .what = {}});
  count(result, 2, {.forbidden = true, .met = false, .what = "a"});
  count(result, 3, {.forbidden = true, .met = false, .what = "b"});
  CHECK(result.rounds == 3);
  CHECK(result.met == 1);
  CHECK(result.forbidden == 2);
  CHECK(result.example == "round 2: a");
}

}  // namespace terrace::litmus
