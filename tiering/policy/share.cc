// SPDX-License-Identifier: Apache-2.0
// DDR between ranges: half of its fair part is a range's own while it has use for it; the rest goes where a
// granule saves most, whoever's it is. What nobody has use for yet is spread by weight.
#include <algorithm>
#include <bit>

#include "tiering/policy/learning.h"

namespace terrace::tiering {
namespace {

constexpr uint32_t steps = 512;  // of worth, eight to an octave; step 0 has no use for DDR

uint32_t step_of(float worth) {
  const uint32_t bits = std::bit_cast<uint32_t>(worth) >> 20;
  constexpr uint32_t lowest = (127u - 24u) << 3;  // 2^-24 accesses a second: two a year
  if (bits <= lowest) return 0;
  return std::min(bits - lowest, steps - 1);
}

// Expected accesses a second: learned where the range's policy learns, else its heat.
float worth_of(const Granule& granule, const PolicyMemory& memory, uint64_t now_ns) {
  if (granule.residency == Residency::none || granule.last_access_ns == 0) return 0;
  if (!memory.learned.valued) return heat_at(granule, memory, now_ns);
  return memory.learned.value[cell_of(granule, now_ns)] * std::max(memory.learned.weight, 1.0f);
}

uint64_t weight_of(const RangeShare& share) {
  return std::max(share.weight, 1u);
}

// One division. What each range gets is kept in its ddr_granules_max only at the end: until then that is what
// it had.
class Division {
 public:
  Division(std::span<const RangeShare> shares, uint64_t total, uint64_t now_ns)
      : shares_(shares), total_(total), now_ns_(now_ns) {
    for (const RangeShare& share : shares) weights_ += weight_of(share);
    // The lowest level from which on everything fits, own parts included.
    uint32_t too_much = 0;
    while (fits_ - too_much > 1) {
      const uint32_t middle = too_much + (fits_ - too_much) / 2;
      uint64_t sum = 0;
      for (const RangeShare& share : shares) sum += part(share, middle);
      (sum <= total ? fits_ : too_much) = middle;
    }
    left_ = total;
    for (const RangeShare& share : shares) left_ -= part(share, fits_);
  }

  // Calls give(index, granules) for each range, in order.
  template <typename Give>
  void each(Give give) const {
    uint64_t left = left_;
    uint64_t wanted = 0;  // of the level just below the line, which does not fit as a whole
    for (const RangeShare& share : shares_) wanted += part(share, fits_ - 1) - part(share, fits_);
    const bool nobody_wants = fits_ == 1;
    for (size_t index = 0; index < shares_.size(); ++index) {
      const RangeShare& share = shares_[index];
      const uint64_t has = part(share, fits_);
      uint64_t more = left_ * weight_of(share) / weights_;
      if (!nobody_wants && wanted > 0) {
        more = (part(share, fits_ - 1) - has) * left_ / wanted;
      }
      more = std::min(more, left);
      left -= more;
      give(index, has + more);
    }
  }

 private:
  uint64_t part(const RangeShare& share, uint32_t level) const {
    uint64_t useful = 0, above = 0;
    for (const Granule& granule : share.granules) {
      const uint32_t at = step_of(worth_of(granule, *share.memory, now_ns_));
      useful += at >= 1 ? 1 : 0;
      above += at >= level ? 1 : 0;
    }
    const uint64_t own = total_ * weight_of(share) / weights_ / 2;
    return std::max(std::min(own, useful), above);
  }

  std::span<const RangeShare> shares_;
  uint64_t total_;
  uint64_t now_ns_;
  uint64_t weights_ = 0;
  uint32_t fits_ = steps;
  uint64_t left_ = 0;
};

}  // namespace

void share_ddr(std::span<RangeShare> shares, uint64_t ddr_granules, uint64_t now_ns) {
  if (shares.empty()) return;
  const Division division(shares, ddr_granules, now_ns);
  // Small changes are not worth the moves that follow from them.
  uint64_t had = 0, farthest = 0;
  division.each([&](size_t index, uint64_t gets) {
    const uint64_t before = shares[index].ddr_granules_max;
    had += before;
    farthest = std::max(farthest, std::max(before, gets) - std::min(before, gets));
  });
  if (had <= ddr_granules && farthest * 32 <= ddr_granules) return;
  // each() reads granules, not what it gives, so that it can be written as it comes.
  division.each([&](size_t index, uint64_t gets) { shares[index].ddr_granules_max = gets; });
}

}  // namespace terrace::tiering
