// SPDX-License-Identifier: Apache-2.0
// How much of a certificate's life is left, and what that asks for. Times are seconds of CLOCK_REALTIME.
//
// Place     daemon/tls for managers and agents, cli/client for clients: one rule for all.
// Threads   Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace terrace {

inline constexpr int64_t certificate_day_s = 86'400;

// Whole days until `ends_s`; 0 when that has passed.
inline int64_t days_left(int64_t ends_s, int64_t now_s) {
  return std::max<int64_t>(ends_s - now_s, 0) / certificate_day_s;
}

// Whether it is time to say that it ends: 30 days before, or a quarter of its life where that is less. Thirty days are
// enough to do something by hand; a certificate that something renews at a third of its life is told of only when that
// has not happened.
inline bool ends_soon(int64_t begins_s, int64_t ends_s, int64_t now_s) {
  constexpr int64_t soon_s = 30 * certificate_day_s;
  const int64_t life_s = std::max<int64_t>(ends_s - begins_s, 0);
  return ends_s - now_s < std::min(soon_s, life_s / 4);
}

// Whether it is time to get another one, where something can be asked for it: at a third of its life, well before
// ends_soon() is.
inline bool renewal_is_due(int64_t begins_s, int64_t ends_s, int64_t now_s) {
  return ends_s - now_s < std::max<int64_t>(ends_s - begins_s, 0) / 3;
}

}  // namespace terrace
