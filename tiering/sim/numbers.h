// SPDX-License-Identifier: Apache-2.0
// The figures that judge the policy, for benches: hits against Belady's on one trace, the time in memory with
// look-ahead, and the cost of a plan.
#pragma once

#include "tiering/sim/simulate.h"

namespace terrace::tiering {

struct TiersimNumbers {
  // Re-reference hits in DDR of 1, 5 and 10 % of all objects, over Belady's; history only.
  struct Hits {
    double at_1pct = 0, at_5pct = 0, at_10pct = 0;
  };
  Hits policy, prefix_order, arc, lru;
  Hits prefixes_over_arc;  // hits of prefix-order that are in a request's whole prefix, over those of ARC
  // All requests' time in memory at 5 % with look-ahead, over that of Belady's, whose copies cost nothing.
  double stall_over_belady_5pct = 0;
};

// Of benefit-density, with the given machine (its look_ahead counts for the last figure only).
Result<TiersimNumbers> measure_trace(const Trace& trace, const Machine& machine);

// The default policy beside all published caches, by history, at 1, 5 and 10 % of DDR: the worst of the three.
struct RivalNumbers {
  double over_best = 1;        // its hits over those of the best of them
  double copied_over_lru = 0;  // its copied bytes over LRU's, where it has as many hits or more
};
Result<RivalNumbers> measure_rivals(const Trace& trace, const Machine& machine);
RivalNumbers worse_of(const RivalNumbers& one, const RivalNumbers& other);

// Reads a file of the conversation trace, at most a GiB.
Result<Trace> read_trace(const std::string& path, TraceFormat format);

// What the figures are measured with where nothing else is said: granules of 2 MiB, the costs' defaults, eight
// requests in the queue.
Machine usual_machine();

// What a plan of benefit-density over `granules` granules takes in the midst of moving, per granule; the best
// of ten.
double plan_ns_per_granule(size_t granules);

}  // namespace terrace::tiering
