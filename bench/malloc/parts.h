// SPDX-License-Identifier: Apache-2.0
// The parts of bench_malloc, each its own question and its own figures.
#pragma once

#include <map>
#include <string>

#include "bench/malloc/heaps.h"
#include "bench/malloc/report.h"

namespace terrace::bench {

struct Sizes {
  bool smoke = false;
  int rounds = 5;
};

// Memtier's cost over Terrace's, by what was measured; > 1: Terrace is ahead.
struct Peer {
  std::map<std::string, double> ratios;
  std::map<std::string, std::string> failures;
};

void measure_pairs(const Sizes& sizes, Report& report, Peer& peer);  // over jemalloc, by size and threads
void measure_curve(const Sizes& sizes, Report& report, Peer& peer);  // over jemalloc, from 1 thread to 64
void measure_beside_glibc(const Sizes& sizes, Report& report, Peer& peer);  // pairs, CPU time of large blocks
void measure_throughput(const Sizes& sizes, Report& report, Peer& peer);    // objects that live longer
void measure_memory(const Sizes& sizes, Report& report, Peer& peer);        // resident bytes, use of a window
void measure_startup(const Sizes& sizes, Report& report, Peer& peer);
void measure_redis(const Sizes& sizes, Report& report, Peer& peer);   // operations
void measure_bgsave(const Sizes& sizes, Report& report, Peer& peer);  // what a snapshot is, and the pause
void report_peer(const Peer& peer, Report& report);

}  // namespace terrace::bench
