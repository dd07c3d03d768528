// SPDX-License-Identifier: Apache-2.0
// The result of a litmus run: counts for each shape, and the verdict over all of them.
//
// Place     core/litmus, pure. The CLI and the manager show it.
// Threads   Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/litmus/shapes.h"

namespace terrace::litmus {

// inconclusive: nothing forbidden was seen, and too little was tried to say more.
enum class Verdict : uint8_t { inconclusive = 0, coherent = 1, not_coherent = 2 };
const char* verdict_name(Verdict verdict);  // "not_coherent"

inline constexpr uint64_t rounds_default = 1280;
inline constexpr uint64_t rounds_min = 1000;     // of a shape, for a verdict of coherent
inline constexpr uint64_t rounds_max = 1000000;  // tags have room for that many of every shape

struct ShapeResult {
  std::string name;
  uint64_t rounds = 0;
  uint64_t met = 0;        // rounds that show that both sides were at it at once
  uint64_t forbidden = 0;  // rounds with an outcome that coherent memory cannot have
  std::string example;     // the first of those, in words
  Verdict verdict = Verdict::inconclusive;

  bool operator==(const ShapeResult&) const = default;
};

struct Report {
  std::vector<ShapeResult> shapes;
  Verdict verdict = Verdict::inconclusive;
  std::string note;      // why it is inconclusive; empty otherwise
  uint64_t took_ns = 0;  // whoever ran it fills this in

  bool operator==(const Report&) const = default;
};

// Counts one judged round into `result`.
void count(ShapeResult& result, uint64_t round, Judgement judgement);

// Sets the verdicts of all shapes, the whole one, and the note, from the counts:
// one forbidden outcome is enough for not_coherent; coherent takes rounds_min rounds of every shape without
// one, and at least one round somewhere in which both sides met.
void conclude(Report& report);

// "message_passing: 12 of 1280 rounds (the flag is new and the message behind it is the old value); ..."
std::string forbidden_outcomes(const Report& report);

}  // namespace terrace::litmus
