// SPDX-License-Identifier: Apache-2.0
// Accesses as they are noted: heat that decays, and what the learning policy remembers of each.
#include <algorithm>

#include "tiering/policy/learning.h"

namespace terrace::tiering {
namespace {

constexpr float ln2 = 0.6931472f;

float decay(uint64_t passed_ns, uint64_t half_life_ns) {
  if (half_life_ns == 0) return passed_ns == 0 ? 1.0f : 0.0f;
  return exp2_of(-static_cast<float>(passed_ns) / static_cast<float>(half_life_ns));
}

void note_outcome(const Granule& granule, LearnedRates& learned) {
  if ((granule.policy_a & promoted_flag) != 0 && granule.residency == Residency::ddr)
    learned.promoted_uses += 1;
  if ((granule.policy_a & demoted_flag) != 0 && granule.residency == Residency::cxl) learned.demoted_uses += 1;
}

}  // namespace

void note_access(Granule& granule, PolicyMemory& memory, uint64_t now_ns, float count) {
  LearnedRates& learned = memory.learned;
  if (!(count > 0)) count = 1;
  if (learned.last_note_ns != now_ns) learned.company = 0;
  learned.last_note_ns = now_ns;
  learned.weight = learned.weight == 0 ? count : learned.weight + (count - learned.weight) * (1.0f / 256);
  learn_use(granule, memory);
  note_outcome(granule, learned);
  const uint16_t history = history_after_use(granule, memory, now_ns, learned.company);
  // A row of first uses keeps the company of what came before it: what a conversation adds goes by its past.
  learned.company = granule.accesses == 0 ? learned.company : std::min(granule.accesses + 1, 255u);

  const float half_life_s = seconds(memory.options.half_life_ns);
  granule.heat = heat_at(granule, memory, now_ns) + (half_life_s > 0 ? count * ln2 / half_life_s : 0);
  granule.last_access_ns = std::max<uint64_t>({now_ns, granule.last_access_ns, 1});
  granule.policy_a = static_cast<uint16_t>((granule.policy_a & moved_flags) | history);
  if (granule.accesses != UINT32_MAX) ++granule.accesses;
  if (granule.next_use_ns <= now_ns) granule.next_use_ns = 0;
}

float heat_at(const Granule& granule, const PolicyMemory& memory, uint64_t now_ns) {
  return granule.heat * decay(since(now_ns, granule.last_access_ns), memory.options.half_life_ns);
}

void report_outcome(PolicyMemory& memory, uint32_t done, uint32_t failed) {
  memory.moves_done = done;
  memory.moves_failed = failed;
}

}  // namespace terrace::tiering
