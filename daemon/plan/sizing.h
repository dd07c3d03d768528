// SPDX-License-Identifier: Apache-2.0
// The questions of `terrace plan`: how many hosts does the trace need without a pool, and how small a pool is
// enough when they have less memory of their own.
//
// Place     replay.h -> here -> report.h, figure.h. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/plan/replay.h"
#include "daemon/plan/trace.h"

namespace terrace::plan {

struct Question {
  std::optional<uint64_t> hosts;              // else the fewest that keep rejections within the rate
  std::optional<uint64_t> host_memory_bytes;  // else the smallest usual size that 99.9 % of requests fit in
  double rejection_rate = 0.01;               // of requests; for the choice of hosts and for each pool alike
  std::vector<double> local_fractions{0.9, 0.8, 0.7, 0.6, 0.5};  // of host memory that stays local
  std::vector<uint64_t> pool_bytes;                              // empty: search the smallest
  Setup setup;  // granule, devices, policies; hosts and sizes are set by the plan
};

// One arrangement of memory that was replayed.
struct Point {
  double local_fraction = 1;
  Setup setup;
  Outcome outcome;
  uint64_t total_bytes = 0;  // all hosts and the pool
  double saving = 0;         // 1 - total / the baseline's total
  bool acceptable = false;   // rejects no more than Plan::rejected_max
};

// What one local fraction leads to.
struct Row {
  double local_fraction = 1;
  std::optional<Point> point;   // with samples; not there: no pool, however large, is enough
  std::vector<Point> sweep;     // other pool sizes, without samples, by size
  uint64_t least_rejected = 0;  // with a pool that never runs out
};

struct Plan {
  Setup baseline_setup;
  Outcome baseline;  // with samples
  uint64_t baseline_bytes = 0;
  bool hosts_chosen = false;
  bool host_memory_chosen = false;
  bool searched = false;  // pool sizes were searched, not given
  uint64_t rejected_max =
      0;                     // to be acceptable: the rate's share, or what the baseline rejects if that is more
  bool rate_reached = true;  // false: the baseline rejects more than the rate
  // The least memory per host that is acceptable with no pool at all (with samples). What pooling saves is to
  // be measured against this too: a baseline with memory to spare would flatter it.
  std::optional<Point> without_pool;
  std::vector<Row> rows;  // one a local fraction; with sizes given one for each pair
  uint64_t replays = 0;

  // The acceptable row that saves most; nullptr when none saves anything.
  const Point* best() const;
  // What a plot or a time series is about: the best row, else the first that was replayed; nullptr without any.
  const Point* shown() const;
  // How much less memory `point` has than the least without a pool; negative: more.
  double saving_beyond_right_sizing(const Point& point) const;
  std::vector<std::string> problems() const;  // broken invariants of any replay shown
};

// Called before each replay with how many there were.
using PlanTick = std::function<void(uint64_t replays)>;

// Errors    invalid_argument   the question contradicts itself or the trace; says which option to change
Result<Plan> make_plan(const Trace& trace, const Question& question, const PlanTick& tick = {});

}  // namespace terrace::plan
