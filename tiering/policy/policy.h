// SPDX-License-Identifier: Apache-2.0
// Placement of granules: facts about a range in, a list of moves out. Nothing else is read or changed here: no
// clock, no kernel, no memory of its own. The engine runs this code on real memory, the simulator (tiering/sim)
// on traces in virtual time.
//
// Place     tiering/hotness and tensor guards note accesses, engine asks for a plan → tiering/migration moves.
// Threads   The owner of the Granules and the PolicyMemory, one at a time.
// Memory    The caller's. Nothing is allocated: the engine also lives inside unmodified programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tiering/policy/learned.h"

namespace terrace::tiering {

// Where a granule's bytes are now. none: no memory behind it, nothing to move.
enum class Residency : uint8_t { none = 0, ddr = 1, cxl = 2 };

// What is known about one granule. The owner keeps one array for a range and sets `residency` and `busy`;
// note_access() keeps the rest.
struct Granule {
  uint64_t last_access_ns = 0;  // 0: never seen
  uint64_t next_use_ns = 0;     // announced: when it will be used next; 0: nobody said
  float heat = 0;               // accesses a second as estimated at last_access_ns; heat_at() for another time
  uint32_t accesses = 0;        // noted since the granule got its bytes; saturates
  Residency residency = Residency::none;
  uint8_t busy = 0;       // not 0: held (pinned, registered for I/O); plans leave it out
  uint16_t policy_a = 0;  // the policy's own; 0 for a new granule
  uint32_t policy_b = 0;
};
static_assert(sizeof(Granule) == 32);

// What an access costs on each tier, and a move. Of the lease's attributes where they are known.
struct TierCosts {
  float ddr_latency_ns = 100;
  float cxl_latency_ns = 250;
  float cxl_bandwidth_bytes_per_s = 20e9f;
  float copy_bytes_per_s = 8e9f;    // of one move, as measured by the engine
  float move_overhead_ns = 20'000;  // beside the copy: system calls, lost translations, refaults
  float ddr_bandwidth_bytes_per_s = 80e9f;
  // What one noted access reads: a touch that the sampler sees stands for about a page's worth of loads, a
  // tensor's guard or a trace for the whole granule.
  float access_bytes = 4096;
};

struct PolicyOptions {
  uint64_t half_life_ns = 10'000'000'000;  // of heat
  uint64_t horizon_ns = 30'000'000'000;    // over which a move must pay
  float hysteresis = 0.25f;                // a candidate must beat its victim by this share
  float low_watermark = 0.90f;             // watermark-lru: share of DDR to which it demotes
  float high_watermark = 0.98f;            // and from which
};

struct PlanInput {
  uint64_t now_ns = 0;
  std::span<Granule> granules;
  uint64_t granule_bytes = 0;
  uint64_t ddr_granules = 0;       // resident in DDR now, busy ones included
  uint64_t ddr_granules_max = 0;   // what the range may have there
  uint64_t cxl_free_granules = 0;  // free there now; a promotion frees one more
  uint64_t moves_max = 0;          // copy budget of this plan, both directions together
  TierCosts costs;
  float cxl_bandwidth_use = 0;  // 0..1: how busy the CXL memory is, where that is known
};

// What a policy learns about one range between plans: a plain value of the owner's, zero-initialised at first.
struct PolicyMemory {
  PolicyOptions options;
  uint64_t last_plan_ns = 0;
  LearnedRates learned{};
  // Filled by report_outcome(): what became of the last plan.
  uint32_t moves_done = 0;
  uint32_t moves_failed = 0;
};

// Moves are carried out in order; one that cannot be (busy, no room) is left out, so later ones must not depend
// on it: a promotion into a full DDR comes right behind the demotion that makes its room.
struct Move {
  uint32_t granule = 0;
  Residency to = Residency::none;
};

// Notes that `granule` was accessed at `now_ns`, about `count` times since it was last looked at (an exact
// number from guards and traces, an estimate from the sampler; more than 0).
void note_access(Granule& granule, PolicyMemory& memory, uint64_t now_ns, float count);

// The granule's heat, decayed to `now_ns`.
float heat_at(const Granule& granule, const PolicyMemory& memory, uint64_t now_ns);

// Writes at most moves.size() moves and returns how many. `scratch`: at least granules.size() entries, contents
// before and after mean nothing.
using PlanFunction = size_t (*)(const PlanInput& input, PolicyMemory& memory, std::span<uint32_t> scratch,
                                std::span<Move> moves);

struct PolicyEntry {
  const char* name;
  const char* what;  // one line, for help texts
  PlanFunction plan;
};

// static, watermark-lru, benefit-density (the default, first).
std::span<const PolicyEntry> policies();
const PolicyEntry* find_policy(std::string_view name);  // nullptr: no such policy

// Tells the memory what became of a plan: `done` moves were carried out, `failed` were not.
void report_outcome(PolicyMemory& memory, uint32_t done, uint32_t failed);

// Divides DDR between the ranges of one engine: shares[i].ddr_granules_max is written so that they add up to at
// most `ddr_granules`. Each range gets what pays most there, and no range less than its fair part of it while
// it has use for it. Slow to change: called now and then, not every round.
struct RangeShare {
  std::span<const Granule> granules;
  const PolicyMemory* memory = nullptr;
  uint32_t weight = 1;            // of the fair part
  uint64_t ddr_granules_max = 0;  // in: what it had; out: what it gets
};
void share_ddr(std::span<RangeShare> shares, uint64_t ddr_granules, uint64_t now_ns);

}  // namespace terrace::tiering
