// SPDX-License-Identifier: Apache-2.0
// Runs one policy, or one of the published caches, over a trace in virtual time.
//
// Place     Trace → simulate() → Outcome; cli/tools/tiersim.cc and the bench print it. Pure; minutes of trace in
// milliseconds.
//
// The machine: objects are granules of one size. A new object is written to DDR while the range has room there,
// else to CXL. A request uses its objects one after the other, each read whole from where it is. After each
// request the policy plans; its moves are carried out one after the other, at the copy's speed and within the
// budget, until the next request; moves not begun by then are dropped. An object that moves up can be read when
// its copy is done; one that moves down at any time. With look-ahead the objects of the next requests in the
// queue are announced. The caches do not model a machine: they copy at once and without cost, and put new
// objects into DDR.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tiering/policy/policy.h"
#include "tiering/sim/trace.h"

namespace terrace::tiering {

struct Machine {
  uint64_t granule_bytes = uint64_t{2} << 20;
  TierCosts costs;                       // access_bytes is set to granule_bytes
  uint64_t copy_budget_bytes_per_s = 0;  // 0: only the copy's own speed
  uint32_t look_ahead = 0;               // requests whose objects are known ahead of their turn
};

struct Outcome {
  std::string policy;
  uint64_t ddr_granules = 0;
  uint64_t uses = 0;
  uint64_t hits = 0;           // uses of objects that were in DDR, first ones left out
  uint64_t prefix_hits = 0;    // of the hits: those before the first object of their request that was not there
  uint64_t re_references = 0;  // uses of objects that had been used before
  uint64_t promotions = 0;
  uint64_t demotions = 0;
  uint64_t bytes_copied = 0;
  uint64_t new_in_cxl = 0;  // objects whose first bytes found no room in DDR
  double memory_s = 0;      // all requests' time in memory: reading or first writing, and waiting for copies
  double stall_s = 0;       // the part of it that would not have been, had everything been in DDR
  double ddr_hit_share() const {
    return re_references == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(re_references);
  }
};

// Errors    invalid_argument  no such policy, or no room at all in DDR
using Tick = std::function<void(uint64_t requests_done)>;
Result<Outcome> simulate(const Trace& trace, std::string_view policy, uint64_t ddr_granules,
                         const Machine& machine, const PolicyOptions& options = {}, const Tick& tick = {});

// All names that simulate() takes: policies first.
std::vector<std::string_view> simulated_names();

}  // namespace terrace::tiering
