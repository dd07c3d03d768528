// SPDX-License-Identifier: Apache-2.0
// The little arithmetic that policies need beyond the language's own: libm is out of bounds here.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>

namespace terrace::tiering {

// 2^x within a few millionths; 0 far below, and the largest power far above.
inline float exp2_of(float x) {
  if (!(x > -126)) return 0;
  if (x > 126) x = 126;
  const auto whole = static_cast<int32_t>(x) - (x < 0 ? 1 : 0);
  const float part = x - static_cast<float>(whole);  // [0, 1]
  float power = 0.00187757f;
  for (const float factor : {0.00898934f, 0.05582631f, 0.24015361f, 0.69315308f, 0.99999994f})
    power = power * part + factor;
  return power * std::bit_cast<float>(static_cast<uint32_t>(whole + 127) << 23);
}

// e^-x for x >= 0.
inline float decayed_to(float x) {
  return exp2_of(-x * 1.4426950f);
}

inline float root_of(float x) {
  if (!(x > 0)) return 0;
  float root = std::bit_cast<float>((std::bit_cast<uint32_t>(x) >> 1) + 0x1fbb4000u);
  for (int step = 0; step < 3; ++step) root = 0.5f * (root + x / root);
  return root;
}

inline float seconds(uint64_t ns) {
  return static_cast<float>(ns) * 1e-9f;
}

inline uint64_t since(uint64_t now_ns, uint64_t then_ns) {
  return now_ns > then_ns ? now_ns - then_ns : 0;
}

}  // namespace terrace::tiering
