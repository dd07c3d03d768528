// SPDX-License-Identifier: Apache-2.0
// watermark-lru: what was used since the last plan goes up, most recent first; when DDR is filled beyond the
// high watermark, what was unused longest goes down until the low one. What operating systems do, for
// comparison and for those who want just that.
#include <algorithm>

#include "tiering/policy/plans.h"

namespace terrace::tiering {
namespace {

uint64_t share_of(uint64_t granules, float share) {
  return static_cast<uint64_t>(static_cast<double>(granules) *
                               static_cast<double>(std::clamp(share, 0.0f, 1.0f)));
}

}  // namespace

size_t plan_watermark_lru(const PlanInput& input, PolicyMemory& memory, std::span<uint32_t> scratch,
                          std::span<Move> moves) {
  const std::span<Granule> granules = input.granules;
  const auto last_used = [&](uint32_t index) { return granules[index].last_access_ns; };
  MoveList list(input, moves);
  // Candidates from the front of scratch, victims from its back.
  size_t candidates = 0, victims = 0;
  for (uint32_t index = 0; index < granules.size(); ++index) {
    const Granule& granule = granules[index];
    if (granule.busy != 0) continue;
    if (granule.residency == Residency::ddr) {
      scratch[scratch.size() - ++victims] = index;
    } else if (granule.residency == Residency::cxl && granule.last_access_ns > memory.last_plan_ns) {
      scratch[candidates++] = index;
    }
  }
  memory.last_plan_ns = input.now_ns;

  const uint64_t low = share_of(input.ddr_granules_max, memory.options.low_watermark);
  const uint64_t high = share_of(input.ddr_granules_max, memory.options.high_watermark);
  const uint64_t wanted = input.ddr_granules + candidates;
  uint64_t excess = wanted > high ? std::min<uint64_t>(wanted - low, victims) : 0;
  excess = std::min<uint64_t>(excess, input.moves_max);
  const auto oldest = scratch.last(victims);
  if (excess > 0) {
    const auto cut = oldest.begin() + static_cast<ptrdiff_t>(excess);
    const auto older = [&](uint32_t a, uint32_t b) { return last_used(a) < last_used(b); };
    if (cut != oldest.end()) std::nth_element(oldest.begin(), cut, oldest.end(), older);
    std::sort(oldest.begin(), cut, older);
  }
  const auto newest = scratch.first(candidates);
  const size_t taken = std::min<uint64_t>(candidates, input.moves_max);
  const auto newer = [&](uint32_t a, uint32_t b) { return last_used(a) > last_used(b); };
  if (taken < candidates)
    std::nth_element(newest.begin(), newest.begin() + static_cast<ptrdiff_t>(taken), newest.end(), newer);
  std::sort(newest.begin(), newest.begin() + static_cast<ptrdiff_t>(taken), newer);

  uint64_t next_victim = 0;
  for (size_t at = 0; at < taken; ++at) {
    const bool room = list.ddr_free() > input.ddr_granules_max - high;
    if (room) {
      if (!list.promote(newest[at])) break;
      continue;
    }
    if (next_victim == excess || last_used(oldest[next_victim]) >= last_used(newest[at])) break;
    if (!list.swap(oldest[next_victim], newest[at])) break;
    ++next_victim;
  }
  while (next_victim < excess && list.ddr_free() < input.ddr_granules_max - low) {
    if (!list.demote(oldest[next_victim++])) break;
  }
  return list.size();
}

}  // namespace terrace::tiering
