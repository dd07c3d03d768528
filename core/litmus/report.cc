// SPDX-License-Identifier: Apache-2.0
#include "core/litmus/report.h"

#include <algorithm>

namespace terrace::litmus {

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::coherent: return "coherent";
    case Verdict::not_coherent: return "not_coherent";
    case Verdict::inconclusive: break;
  }
  return "inconclusive";
}

void count(ShapeResult& result, uint64_t round, Judgement judgement) {
  ++result.rounds;
  if (judgement.met) ++result.met;
  if (!judgement.forbidden) return;
  if (result.forbidden++ == 0)
    result.example = "round " + std::to_string(round) + ": " + std::move(judgement.what);
}

void conclude(Report& report) {
  uint64_t met = 0;
  bool enough = report.shapes.size() == all_shapes.size();
  bool seen = false;
  for (ShapeResult& shape : report.shapes) {
    met += shape.met;
    seen = seen || shape.forbidden > 0;
    enough = enough && shape.rounds >= rounds_min;
    shape.verdict = shape.forbidden > 0          ? Verdict::not_coherent
                    : shape.rounds >= rounds_min ? Verdict::coherent
                                                 : Verdict::inconclusive;
  }
  report.note.clear();
  report.verdict = Verdict::inconclusive;
  if (seen) {
    report.verdict = Verdict::not_coherent;
  } else if (!enough) {
    report.note = "fewer than " + std::to_string(rounds_min) + " rounds of every shape were done";
  } else if (met == 0) {
    report.note = "both sides were never at it at once: give it more rounds, or two CPUs that are less busy";
  } else {
    report.verdict = Verdict::coherent;
  }
}

std::string forbidden_outcomes(const Report& report) {
  std::string text;
  for (const ShapeResult& shape : report.shapes) {
    if (shape.forbidden == 0) continue;
    text += (text.empty() ? "" : "; ") + shape.name + ": " + std::to_string(shape.forbidden) + " of " +
            std::to_string(shape.rounds) + " rounds (" + shape.example + ")";
  }
  return text.empty() ? "nothing forbidden" : text;
}

}  // namespace terrace::litmus
