// SPDX-License-Identifier: Apache-2.0
// The value of having bytes in DDR, computed from their use and from the speed of the tiers.
//
// Place     TensorPool asks where a new tensor goes, which granules make room, and whether a guard waits.
//           Pure.
// Threads   Plain values.
#pragma once

#include <cstdint>

#include "terrace/tensor.h"

namespace terrace::placement {

struct TierSpeed {
  double latency_ns = 0;
  double bytes_per_s = 0;
};

struct Costs {
  TierSpeed ddr{100, 80e9};
  TierSpeed cxl{250, 20e9};
  double copy_bytes_per_s = 2e9;
};

struct UseFacts {
  TensorHint hint = TensorHint::none;
  uint8_t flags = 0;
  double uses_per_step = -1;  // as observed; negative: not yet, the hint says what is usual
  double passes = 1;          // over the bytes in a use
};

// How often a step usually uses what has this hint.
double usual_uses_per_step(TensorHint hint);

// Saved in a step by a byte that lies in DDR and not in CXL, in ns.
double saved_ns_per_byte(const Costs& costs, const UseFacts& facts);

// Read once, in order: as fast from CXL as a copy of it is, so that copying it ahead is waste.
bool is_streamed(const UseFacts& facts);

// Whether a use should wait until the missing share of its bytes is in DDR rather than read it from CXL.
bool pays_to_wait(const Costs& costs, const UseFacts& facts);

// How much of DDR may be taken already when a new tensor of this use still begins there: 1 for what is used
// most, less for what is not, 0 for what is streamed. So the last free DDR is there for those that gain most by
// it.
double may_fill_ddr(const Costs& costs, const UseFacts& facts);

// Small tensors of one class share granules: 0 cold, to 3 hot.
constexpr uint32_t heat_classes = 4;
uint32_t heat_class(const Costs& costs, const UseFacts& facts);

}  // namespace terrace::placement
