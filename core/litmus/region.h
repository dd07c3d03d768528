// SPDX-License-Identifier: Apache-2.0
// The layout of a litmus run's scratch memory. Two processes, also of two hosts, run over the same region, so
// that the layout is fixed; `magic` changes with it.
//
// Coherence domain   none is assumed: each line has one writer at a time, and the other side reads it only
//                    after publish and refresh. Exception: x and y while a round runs, which is the test.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/litmus/shapes.h"

namespace terrace::litmus {

inline constexpr uint64_t magic = 0x3130'7375'6d74'696c;  // "litmus01", as bytes
inline constexpr uint64_t rounds_of_batch = 64;           // done without a meeting in between

struct alignas(64) Line {
  uint64_t words[8];
};

// Who a side is and where it stands; written by that side only.
struct alignas(64) SideLine {
  uint64_t magic;
  uint64_t nonce;    // drawn for this run; 0: nobody yet
  uint64_t echo;     // the other side's nonce, as this side sees it
  uint64_t batches;  // of each shape; that of the first side holds
  uint64_t phase;    // meetings that this side has come to
  uint64_t unused[3];
};
static_assert(sizeof(SideLine) == 64);

struct Region {
  SideLine sides[2];
  Seen seen[2][rounds_of_batch];
  Line x[rounds_of_batch];
  Line y[rounds_of_batch];
};
static_assert(sizeof(Region) == 64 * (2 + 4 * rounds_of_batch) && alignof(Region) == 64);

// How much memory a run overwrites, in bytes; begins on a 4 KiB boundary.
inline constexpr size_t region_bytes = 20 * 1024;
static_assert(sizeof(Region) <= region_bytes);

}  // namespace terrace::litmus
