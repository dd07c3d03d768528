// SPDX-License-Identifier: Apache-2.0
// A whole program, in a process of its own, whose accesses have a distribution that it knows: what migration does
// for it is told by that distribution and by what its addresses are backed by, never by the engine.
//
// Place     busy_part.cc starts it with other work beside it; `terrace run -- bench_tiering --part program --heap` has it by hand.
// Threads   One, as the program; the engine's own beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::bench {

struct BusyOptions {
  uint64_t granules = 256;  // of 2 MiB
  uint64_t ddr_granules = 38;
  double hot_share = 0.9;        // of the accesses go
  double hot_granules = 0.1;     // to so many of the granules; 0: by Zipf's law, exponent 0.99
  double begin_cpu_s = 10;       // of the program's CPU time until it is judged
  double judge_cpu_s = 2;        // over which
  double jump_cpu_s = 0;         // after that the hot set is another one for so long; 0: no jump
  double stationary_wall_s = 0;  // then swaps are counted for so long, the distribution being as it was
  int processor = -1;            // -1: any
  bool heap = false;             // memory of malloc, for `terrace run`; else a TieredRange of its own
};

// Runs it, and prints one line of JSON. An exit status.
int run_busy_program(const BusyOptions& options);

}  // namespace terrace::bench
