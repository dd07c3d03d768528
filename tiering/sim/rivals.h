// SPDX-License-Identifier: Apache-2.0
// Published caches beyond LRU, ARC and S3-FIFO, each written from its paper. `objects`: of the trace, numbered from
// 0; `room`: of the cache, more than 0.
//
// Place     make_cache() (caches.cc) makes them by name; tests/unit/tiering_sim/rivals_test.cc holds each to a naive
//           model of its paper and to a sequence worked by hand.
#pragma once

#include <memory>

#include "tiering/sim/caches.h"

namespace terrace::tiering {

// LIRS: Jiang and Zhang, SIGMETRICS 2002. A hundredth of the room, at least one, for blocks of long reuse distance.
std::unique_ptr<Cache> make_lirs(uint32_t objects, uint64_t room);

// W-TinyLFU: Einziger, Friedman and Manes, ACM Transactions on Storage 2017. A window of a hundredth, four fifths of
// the rest protected, counts halved after ten uses for each object of room. The counts are exact, each up to 15: what
// the paper's sketch estimates.
std::unique_ptr<Cache> make_tiny_lfu(uint32_t objects, uint64_t room);

// SIEVE: Zhang et al., NSDI 2024.
std::unique_ptr<Cache> make_sieve(uint32_t objects, uint64_t room);

// 2Q, the full version: Johnson and Shasha, VLDB 1994. Kin a quarter of the room, Kout half of it, as the paper
// advises.
std::unique_ptr<Cache> make_two_queues(uint32_t objects, uint64_t room);

// Decayed LFU: the combined recency and frequency of LRFU, Lee et al., IEEE Transactions on Computers 2001. A use
// counts half after eight uses for each object of room; counts of what was put out are kept.
std::unique_ptr<Cache> make_decayed_lfu(uint32_t objects, uint64_t room);

}  // namespace terrace::tiering
