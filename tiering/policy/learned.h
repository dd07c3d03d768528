// What benefit-density learns about one range: how often granules of a class are used again, by the time since
// their last use. A plain value of fixed size inside PolicyMemory; all zeros is "nothing learned".
//
// Place     note_access() counts uses here, each plan counts who was still waiting; tiering/policy/learned.cc.
// Threads   As PolicyMemory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::tiering {

struct LearnedRates {
  // A class is a history (how many uses, how quickly one after the other, in whose company); an age is a step
  // of time since the last use, two to an octave from about a millisecond to some hours.
  static constexpr size_t classes = 64;
  static constexpr size_t ages = 48;
  static constexpr size_t cells = classes * ages;

  float uses[cells] = {};     // uses of granules that were in this cell when the last plan looked; decays
  float waited[cells] = {};   // granule-seconds spent in this cell; decays with `uses`
  float waiting[cells] = {};  // granules in this cell at the last plan
  float value[cells] = {};    // expected uses per granule-second of keeping such a granule in DDR
  float doubt[cells] = {};    // standard error of `value`

  float noted = 0;       // uses counted since `value` was made
  float noted_kept = 0;  // uses in the tables
  float weight = 0;      // mean accesses that one note stands for
  // The last note: granules used in the same instant, one after the other, are company.
  uint64_t last_note_ns = 0;
  uint32_t last_note_uses = 0;

  // Born (first use) since the last plan, and smoothed: how much room new bytes will want until the next one.
  uint32_t born = 0;
  float born_per_plan = 0;

  // What became of moves: uses and granule-seconds of granules promoted, and demoted, a short time ago.
  float promoted_uses = 0, promoted_waited = 0;
  float demoted_uses = 0, demoted_waited = 0;
  float margin =
      0;  // by which a candidate must beat its victim beyond the hysteresis; grows when moves do not pay
};

}  // namespace terrace::tiering
