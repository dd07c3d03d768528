// SPDX-License-Identifier: Apache-2.0
#include "tiering/policy/learning.h"

#include <algorithm>

namespace terrace::tiering {
namespace {

// Counts are halved when there are so many to a granule: what is known is of the last rounds, not of last week.
constexpr float uses_kept_per_granule = 16;
constexpr float uses_kept_min = 4096;
constexpr float prior_uses = 4;  // what is believed of a cell before anything was seen, in uses

float step_begin_s(size_t step) {
  if (step == 0) return 0;
  const unsigned bit = first_age_bit + static_cast<unsigned>((step - 1) / 2);
  const uint64_t begin = (uint64_t{1} << bit) + ((step - 1) % 2 != 0 ? uint64_t{1} << (bit - 1) : 0);
  return seconds(begin);
}

float step_width_s(size_t step) {
  if (step + 1 == LearnedRates::ages) return step_begin_s(step);
  return step_begin_s(step + 1) - step_begin_s(step);
}

// Before anything is known, and for ages at which no plan ever saw one (between plans, say): in inverse
// proportion to the age, from what the ages below were seen to be.
constexpr float first_believed = 0.7f;  // uses by the time that has been waited already

float believed_age_s(size_t step) {
  // Plans are a second apart or so: below that, age says little.
  return 1 + step_begin_s(step) + 0.5f * step_width_s(step);
}

void fade(LearnedRates& learned) {
  for (size_t cell = 0; cell < LearnedRates::cells; ++cell) {
    learned.uses[cell] *= 0.5f;
    learned.waited[cell] *= 0.5f;
  }
  learned.uses_kept *= 0.5f;
}

// Uses at each age, of all classes together.
void hazards_of_all(const LearnedRates& learned, float (&hazard)[LearnedRates::ages]) {
  float believed = first_believed / believed_age_s(0);
  for (size_t step = 0; step < LearnedRates::ages; ++step) {
    if (step > 0) believed = hazard[step - 1] * believed_age_s(step - 1) / believed_age_s(step);
    float uses = prior_uses, waited = prior_uses / believed;
    for (size_t of = 1; of < LearnedRates::classes; ++of) {  // class 0 was never used: it has no age
      uses += learned.uses[of * LearnedRates::ages + step];
      waited += learned.waited[of * LearnedRates::ages + step];
    }
    hazard[step] = uses / waited;
  }
}

struct Stretch {
  float chance = 0;   // to be used in it, when its begin is reached
  float time_s = 0;   // expected in it
  float passing = 1;  // to reach its end unused
  float uses = 0;     // that this rests on
};

// Values of one class, from the oldest age down: a step is joined with the stretches behind it as long as
// waiting for them pays better than giving up.
void value_class(LearnedRates& learned, size_t of, const float (&hazard_of_all)[LearnedRates::ages]) {
  const size_t first = of * LearnedRates::ages;
  float class_uses = prior_uses, class_expected = prior_uses, class_waited = 0;
  for (size_t step = 0; step < LearnedRates::ages; ++step) {
    class_uses += learned.uses[first + step];
    class_waited += learned.waited[first + step];
    class_expected += learned.waited[first + step] * hazard_of_all[step];
  }
  // Two beliefs about an age of which little is known: that the class is to all classes there as it is
  // elsewhere, and that its hazard does not change with age at all (accesses at random).
  const float keenness = class_uses / class_expected;
  const float steady = (class_uses - prior_uses) / class_waited;
  Stretch behind[LearnedRates::ages];
  size_t depth = 0;
  float used_before_out = 0;
  for (size_t step = LearnedRates::ages; step-- > 0;) {
    const size_t cell = first + step;
    const float alike = hazard_of_all[step] * keenness;
    const float believed = class_waited > 0 ? root_of(alike * std::max(steady, 1e-9f)) : alike;
    const float hazard = (learned.uses[cell] + prior_uses) / (learned.waited[cell] + prior_uses / believed);
    Stretch at;
    at.passing = decayed_to(hazard * step_width_s(step));
    at.chance = 1 - at.passing;
    at.time_s = at.chance / hazard;
    at.uses = learned.uses[cell];
    const float own_chance = at.chance, own_passing = at.passing;
    while (depth > 0 && behind[depth - 1].chance * at.time_s > at.chance * behind[depth - 1].time_s) {
      const Stretch& next = behind[--depth];
      at.chance += at.passing * next.chance;
      at.time_s += at.passing * next.time_s;
      at.passing *= next.passing;
      at.uses += next.uses;
    }
    behind[depth++] = at;
    learned.value[cell] = at.chance / at.time_s;
    used_before_out =
        learned.value[cell] < learned.least_worth ? 0 : own_chance + own_passing * used_before_out;
    learned.chance[cell] = used_before_out;
    learned.doubt[cell] = learned.value[cell] / root_of(prior_uses + at.uses);
  }
}

// Granules never seen: one class without ages.
void value_never_seen(LearnedRates& learned) {
  const float hazard = (learned.uses[0] + 0.01f) / (learned.waited[0] + 100.0f);
  for (size_t step = 0; step < LearnedRates::ages; ++step) {
    learned.value[step] = hazard;
    learned.chance[step] = 0;
    learned.doubt[step] = root_of(learned.uses[0] + 0.01f) / (learned.waited[0] + 100.0f);
  }
}

void make_values(LearnedRates& learned) {
  float hazard_of_all[LearnedRates::ages];
  hazards_of_all(learned, hazard_of_all);
  value_never_seen(learned);
  for (size_t of = 1; of < LearnedRates::classes; ++of) value_class(learned, of, hazard_of_all);
  for (size_t cell = 0; cell < LearnedRates::cells; ++cell)
    learned.level[cell] = static_cast<uint16_t>(level_of(learned.value[cell]));
  learned.valued = true;
  learned.uses_unvalued = 0;
}

// Plans without a gap between in which the granule was used, this time included: 1, 2, 3 and more.
unsigned streak_after_use(const Granule& before, const PolicyMemory& memory) {
  const unsigned streak = (before.policy_a & streak_mask) >> streak_shift;
  if (before.accesses == 0 || before.last_access_ns <= memory.learned.plan_before_ns) return 1;
  if (before.last_access_ns > memory.last_plan_ns) return std::max(streak, 1u);
  return std::min(streak + 1, 3u);
}

constexpr size_t kinds = 4;

size_t class_after_use(const Granule& before, const PolicyMemory& memory, uint64_t now_ns, uint32_t company,
                       unsigned streak) {
  const uint32_t uses = before.accesses == UINT32_MAX ? before.accesses : before.accesses + 1;
  // A first use says nothing of itself, but much is said by what it came with: 1 to 9.
  if (uses == 1) return 1 + std::min<size_t>(std::bit_width(company), 8);
  const uint64_t gap_s = since(now_ns, before.last_access_ns) / 1'000'000'000;
  // Few uses: how many, and how far apart the last two were. 10 to 25.
  if (uses <= 8) {
    const size_t many = uses == 2 ? 0 : uses == 3 ? 1 : uses <= 5 ? 2 : 3;
    const size_t gap = gap_s < 4 ? 0 : gap_s < 30 ? 1 : gap_s < 150 ? 2 : 3;
    return 10 + many * kinds + gap;
  }
  // Many: how many of late, and whether without a break. 28 to 59.
  const float half_lives = seconds(memory.options.half_life_ns) * 1.4426950f;
  const float weight = memory.learned.weight > 0 ? memory.learned.weight : 1;
  const float lately = heat_at(before, memory, now_ns) * half_lives / weight + 1;
  size_t often = 0;
  for (float bound = 1.5f; often < 7 && lately >= bound; bound *= 2) ++often;
  const size_t kind = streak >= 2 ? streak - 2 : gap_s < 60 ? 2 : 3;
  return 28 + often * kinds + kind;
}

}  // namespace

uint16_t history_after_use(const Granule& before, const PolicyMemory& memory, uint64_t now_ns,
                           uint32_t company) {
  const unsigned streak = streak_after_use(before, memory);
  return static_cast<uint16_t>(class_after_use(before, memory, now_ns, company, streak) |
                               (streak << streak_shift));
}

void learn_use(const Granule& granule, PolicyMemory& memory) {
  LearnedRates& learned = memory.learned;
  if (memory.last_plan_ns == 0 || granule.last_access_ns > memory.last_plan_ns)
    return;  // no plan has seen it wait
  learned.uses[cell_of(granule, memory.last_plan_ns)] += 1;
  learned.uses_kept += 1;
  learned.uses_unvalued += 1;
}

void learn_waiting(PolicyMemory& memory, uint64_t now_ns) {
  LearnedRates& learned = memory.learned;
  const float passed_s = memory.last_plan_ns == 0 ? 0 : seconds(since(now_ns, memory.last_plan_ns));
  for (size_t cell = 0; cell < LearnedRates::cells; ++cell) {
    learned.waited[cell] += learned.waiting[cell] * passed_s;
    learned.waiting[cell] = 0;
  }
  const float kept_max = std::max(uses_kept_per_granule * static_cast<float>(learned.alive), uses_kept_min);
  if (learned.uses_kept > kept_max) fade(learned);
  // What changes little is not made anew each time: a hundredth of all that is known, or a few uses.
  if (!learned.valued || learned.uses_unvalued * 100 >= learned.uses_kept || learned.uses_unvalued >= 256)
    make_values(learned);
}

}  // namespace terrace::tiering
