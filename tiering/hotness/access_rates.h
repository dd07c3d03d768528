// SPDX-License-Identifier: Apache-2.0
// How often each granule is used, from single bits: it was touched during an exposure of a known length, or it
// was not.
//
// A touched bit says the less the longer the exposure was: of a granule that is used a thousand times in it as
// much as of one that is used three times. So each bit moves the estimate by what it tells under the present one
// (a step of scoring for the logarithm of the rate); bits of short exposures tell apart the much used ones, those
// of long exposures the others.
//
// Some hundred bits count. Where the last few speak against the estimate of all, it forgets faster, so that the next ones move it
// further. Where they could hardly be under it, the granule is used in another way than it was, and the estimate begins again from
// those few.
//
// Place     Sampler notes each granule's bit here; the engine asks for the share that DDR serves, policies see rates.
// Threads   The engine's.
// Memory    The caller's, so that libc alone does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiering/policy/policy.h"

namespace terrace::tiering {

class AccessRates {
 public:
  void open(std::span<RateEstimate> estimates) { estimates_ = estimates; }  // all zeros, one for each granule
  void note(uint32_t granule, bool touched, float exposed_s);
  // As note(), of an exposure by itself, which was chosen for what is known of the granule already.
  void sharpen(uint32_t granule, bool touched, float exposed_s);
  void forget(uint32_t granule) { estimates_[granule] = {}; }  // it has other bytes from now on
  std::span<const RateEstimate> estimates() const { return estimates_; }
  // Uses expected in an exposure.
  float expected(uint32_t granule, float exposed_s) const;
  // Of the uses of `granules`, the share that goes to DDR, 0..1; -1: nothing is known.
  double ddr_share(std::span<const Granule> granules) const;

 private:
  std::span<RateEstimate> estimates_;
};

}  // namespace terrace::tiering
