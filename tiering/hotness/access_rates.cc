// SPDX-License-Identifier: Apache-2.0
#include "tiering/hotness/access_rates.h"

#include <algorithm>
#include <bit>

#include "tiering/policy/numbers.h"

namespace terrace::tiering {
namespace {

constexpr float ln2 = 0.6931472f;
constexpr float known_keeps = 0.99f;  // of what was known, from one bit to the next: a hundred bits count
constexpr float late_keeps = 0.85f;   // and some six are those of late
constexpr float longest_of_means = 64;
constexpr float known_least = 0.5f;  // what the first guess counts
constexpr float step_max = 2;        // of the logarithm of base 2, by one bit
constexpr float evidence_of_change = 4.5f;
constexpr float evidence_of_doubt = 2;  // of one rate in forty by chance
constexpr float doubted_keeps = 0.7f;   // of what was known, while in doubt

}  // namespace

// With x uses expected in the exposure: touched has the chance 1 - e^-x.
void AccessRates::sharpen(uint32_t granule, bool touched, float exposed_s) {
  RateEstimate& rate = estimates_[granule];
  const float x = std::clamp(exp2_of(rate.log2_rate) * exposed_s, 1e-6f, 40.0f);
  const float missed = decayed_to(x), found = x < 1e-3f ? x : 1 - missed;
  rate.known = std::max(rate.known * known_keeps, known_least) + x * x * missed / found;
  const float slope = touched ? x * missed / found : -x;
  rate.log2_rate += std::clamp(slope / rate.known / ln2, -step_max, step_max);
}

void AccessRates::note(uint32_t granule, bool touched, float exposed_s) {
  if (!(exposed_s > 0)) return;
  RateEstimate& rate = estimates_[granule];
  // One very long look (migration was paused meanwhile) must not be the mean of the next hundred.
  if (rate.looks > 2) exposed_s = std::min(exposed_s, longest_of_means * rate.exposed_s / rate.looks);
  rate.looks = rate.looks * late_keeps + 1;
  rate.touched = rate.touched * late_keeps + (touched ? 1.0f : 0.0f);
  rate.exposed_s = rate.exposed_s * late_keeps + exposed_s;
  if (rate.known == 0) {
    // Two uses if it was touched, an eighth of one if not: the next bits correct it.
    rate.log2_rate = (touched ? 1.0f : -3.0f) - log2_of(exposed_s);
    rate.known = known_least;
    return;
  }
  sharpen(granule, touched, exposed_s);
  const float bar = evidence_of_change + ln2 * static_cast<float>(std::bit_width(estimates_.size()));
  const float against = evidence_against(rate, rate.log2_rate);
  if (against > evidence_of_doubt) rate.known = std::max(rate.known * doubted_keeps, known_least);
  if (against < bar) return;
  const float least = 0.5f / (rate.looks + 1);
  const float found = std::clamp(rate.touched / rate.looks, least, 1 - least);
  rate.log2_rate = log2_of(-log2_of(1 - found) * ln2 * rate.looks / rate.exposed_s);
  rate.known = known_least;
}

float AccessRates::expected(uint32_t granule, float exposed_s) const {
  return estimates_[granule].known == 0 ? 0 : exp2_of(estimates_[granule].log2_rate) * exposed_s;
}

double AccessRates::ddr_share(std::span<const Granule> granules) const {
  double ddr = 0, all = 0;
  for (uint32_t granule = 0; granule < granules.size(); ++granule) {
    if (granules[granule].residency == Residency::none) continue;
    const auto here = static_cast<double>(expected(granule, 1));
    all += here;
    if (granules[granule].residency == Residency::ddr) ddr += here;
  }
  return all > 0 ? ddr / all : -1;
}

}  // namespace terrace::tiering
