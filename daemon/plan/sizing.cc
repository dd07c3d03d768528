// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/sizing.h"

#include <algorithm>

#include "core/base/limits.h"
#include "core/base/units.h"

namespace terrace::plan {
namespace {

Error bad(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "make_plan", .detail = std::move(detail)};
}

uint64_t down_to(uint64_t bytes, uint64_t unit) {
  return bytes / unit * unit;
}
uint64_t up_to(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Sizes that servers are sold with: powers of two and one and a half times these, from 16 GiB on.
uint64_t usual_host_memory(uint64_t bytes) {
  uint64_t size = 16 * gib;
  while (size < bytes) size += is_power_of_two(size) ? size / 2 : size / 3;
  return size;
}

class Planner {
 public:
  Planner(const Trace& trace, const Question& question, const PlanTick& tick)
      : trace_(trace), question_(question), tick_(tick) {}
  Result<Plan> make();

 private:
  Status check_question() const;
  uint64_t rejections_allowed() const {
    return static_cast<uint64_t>(question_.rejection_rate * static_cast<double>(trace_.requests.size()) + 1e-9);
  }
  Result<Outcome> run(const Setup& setup, const ReplayOptions& options);
  Result<bool> enough(const Setup& setup, uint64_t rejected_max);
  Status choose_hosts();
  Result<Point> look_at(double local_fraction, uint64_t pool_bytes, bool record);
  Status search_without_pool();
  Result<Row> search_row(double local_fraction);
  Status add_sweeps();

  const Trace& trace_;
  const Question& question_;
  const PlanTick& tick_;
  Plan plan_;
};

Status Planner::check_question() const {
  if (trace_.requests.empty()) return bad("the trace has no requests");
  for (const double fraction : question_.local_fractions) {
    if (!(fraction >= 0 && fraction <= 1))
      return bad("a local fraction is between 0 and 1, such as 0.75; --local-fractions names one that is not");
  }
  if (question_.local_fractions.empty())
    return bad("--local-fractions names none; give at least one, such as 0.75");
  if (!(question_.rejection_rate >= 0 && question_.rejection_rate <= 1))
    return bad("--rejection-rate is a share between 0 and 1 (0.01 is one of a hundred requests)");
  if (!(question_.setup.pool_fraction_max >= 0 && question_.setup.pool_fraction_max <= 1))
    return bad(
        "--pool-fraction-max is a share between 0 and 1 (0.5: at least half of each request stays local)");
  const uint64_t granule_bytes = question_.setup.granule_bytes;
  if (!is_power_of_two(granule_bytes) || granule_bytes < limits::granule_bytes ||
      granule_bytes > limits::granule_bytes_max)
    return bad("--granule is a power of two from 2M to 1G, not " + format_size(granule_bytes));
  if (question_.host_memory_bytes.has_value() && *question_.host_memory_bytes < question_.setup.granule_bytes) {
    return bad("--host-memory " + format_size(*question_.host_memory_bytes) + " is less than one granule of " +
               format_size(question_.setup.granule_bytes));
  }
  return {};
}

Result<Outcome> Planner::run(const Setup& setup, const ReplayOptions& options) {
  if (tick_) tick_(plan_.replays);
  ++plan_.replays;
  return replay(trace_, setup, options);
}

Result<bool> Planner::enough(const Setup& setup, uint64_t rejected_max) {
  TERRACE_ASSIGN_OR_RETURN(const Outcome outcome, run(setup, {.rejected_max = rejected_max}));
  return outcome.rejected <= rejected_max;
}

// Sets the baseline: hosts and their memory. With as many hosts as requests are alive at once each could have
// its own: more never help, and what that many reject no number of hosts serves.
Status Planner::choose_hosts() {
  Setup& setup = plan_.baseline_setup;
  setup = question_.setup;
  setup.pool_bytes = 0;
  const uint64_t wanted =
      question_.host_memory_bytes.value_or(usual_host_memory(request_bytes_at(trace_, 999)));
  setup.local_bytes = down_to(wanted, setup.granule_bytes);
  plan_.host_memory_chosen = !question_.host_memory_bytes.has_value();
  plan_.hosts_chosen = !question_.hosts.has_value();
  if (question_.hosts.has_value()) {
    setup.hosts = *question_.hosts;
    return {};
  }
  uint64_t allowed = rejections_allowed();
  uint64_t high = std::max<uint64_t>(1, trace_.peak_requests);
  setup.hosts = high;
  TERRACE_ASSIGN_OR_RETURN(const Outcome most, run(setup, {}));
  allowed = std::max(allowed, most.rejected);
  uint64_t low = 0;  // too few
  while (high - low > 1) {
    setup.hosts = low + (high - low) / 2;
    TERRACE_ASSIGN_OR_RETURN(const bool fine, enough(setup, allowed));
    (fine ? high : low) = setup.hosts;
  }
  setup.hosts = high;
  return {};
}

Result<Point> Planner::look_at(double local_fraction, uint64_t pool_bytes, bool record) {
  Point point;
  point.local_fraction = local_fraction;
  point.setup = plan_.baseline_setup;
  const double local = static_cast<double>(plan_.baseline_setup.local_bytes) * local_fraction;
  point.setup.local_bytes = down_to(static_cast<uint64_t>(local + 0.5), point.setup.granule_bytes);
  point.setup.pool_bytes = up_to(pool_bytes, point.setup.granule_bytes);
  TERRACE_ASSIGN_OR_RETURN(point.outcome, run(point.setup, {.record = record}));
  point.total_bytes = point.setup.hosts * point.setup.local_bytes + point.setup.pool_bytes;
  point.saving = 1.0 - static_cast<double>(point.total_bytes) / static_cast<double>(plan_.baseline_bytes);
  point.acceptable = point.outcome.rejected <= plan_.rejected_max;
  return point;
}

// Bisects the hosts' memory. The baseline is acceptable, so there is an answer.
Status Planner::search_without_pool() {
  const uint64_t granule_bytes = plan_.baseline_setup.granule_bytes;
  const uint64_t unit = up_to(std::max<uint64_t>(plan_.baseline_setup.local_bytes / 512, 1), granule_bytes);
  uint64_t high = plan_.baseline_setup.local_bytes;
  uint64_t low = 0;
  Setup setup = plan_.baseline_setup;
  while (high - low > unit) {
    setup.local_bytes = std::max(low + granule_bytes, down_to(low + (high - low) / 2, unit));
    TERRACE_ASSIGN_OR_RETURN(const bool fine, enough(setup, plan_.rejected_max));
    (fine ? high : low) = setup.local_bytes;
  }
  const double fraction = static_cast<double>(high) / static_cast<double>(plan_.baseline_setup.local_bytes);
  TERRACE_ASSIGN_OR_RETURN(plan_.without_pool, look_at(fraction, 0, true));
  return {};
}

// Bisects between no pool and one that never ran out. Rejections almost never rise with the pool's size (a pool
// that serves one more request may be full for two later); what is returned was replayed at its exact size.
Result<Row> Planner::search_row(double local_fraction) {
  Row row;
  row.local_fraction = local_fraction;
  TERRACE_ASSIGN_OR_RETURN(const Point most, look_at(local_fraction, 2 * trace_.peak_bytes, false));
  row.least_rejected = most.outcome.rejected;
  if (!most.acceptable) return row;
  const uint64_t granule_bytes = plan_.baseline_setup.granule_bytes;
  // Fine enough that the total is exact to a thousandth, in whole GiB where memory is counted in many of them.
  const uint64_t unit =
      up_to(std::max<uint64_t>(plan_.baseline_bytes / 1024, 1),
            plan_.baseline_bytes >= 1024 * gib ? std::max(gib, granule_bytes) : granule_bytes);
  uint64_t high = up_to(most.outcome.pool_peak_bytes, unit) / unit;
  uint64_t low = 0;
  Setup setup = most.setup;
  setup.pool_bytes = 0;
  TERRACE_ASSIGN_OR_RETURN(const bool without, enough(setup, plan_.rejected_max));
  if (without) high = 0;
  while (high > low + 1) {
    const uint64_t middle = low + (high - low) / 2;
    setup.pool_bytes = middle * unit;
    TERRACE_ASSIGN_OR_RETURN(const bool fine, enough(setup, plan_.rejected_max));
    (fine ? high : low) = middle;
  }
  TERRACE_ASSIGN_OR_RETURN(row.point, look_at(local_fraction, high * unit, true));
  // A pool of its own peak may place and split otherwise than the endless one; then grow it until it is enough.
  while (!row.point->acceptable && row.point->setup.pool_bytes < 2 * trace_.peak_bytes) {
    high += std::max<uint64_t>(1, high / 16);
    TERRACE_ASSIGN_OR_RETURN(row.point, look_at(local_fraction, high * unit, true));
  }
  return row;
}

// The same pool sizes for every fraction, so that the curves can be compared.
Status Planner::add_sweeps() {
  constexpr uint64_t steps = 8;
  uint64_t largest = 0;
  for (const Row& row : plan_.rows)
    if (row.point.has_value()) largest = std::max(largest, row.point->setup.pool_bytes);
  if (largest == 0) return {};
  for (Row& row : plan_.rows) {
    for (uint64_t step = 0; step <= steps; ++step) {
      const uint64_t pool_bytes = up_to(largest / steps * step, plan_.baseline_setup.granule_bytes);
      TERRACE_ASSIGN_OR_RETURN(Point point, look_at(row.local_fraction, pool_bytes, false));
      row.sweep.push_back(std::move(point));
    }
  }
  return {};
}

Result<Plan> Planner::make() {
  TERRACE_RETURN_IF_ERROR(check_question());
  TERRACE_RETURN_IF_ERROR(choose_hosts());
  TERRACE_ASSIGN_OR_RETURN(plan_.baseline, run(plan_.baseline_setup, {.record = true}));
  plan_.baseline_bytes = plan_.baseline_setup.hosts * plan_.baseline_setup.local_bytes;
  plan_.rate_reached = plan_.baseline.rejected <= rejections_allowed();
  plan_.rejected_max = std::max(rejections_allowed(), plan_.baseline.rejected);
  TERRACE_RETURN_IF_ERROR(search_without_pool());
  plan_.searched = question_.pool_bytes.empty();
  for (const double fraction : question_.local_fractions) {
    if (plan_.searched) {
      TERRACE_ASSIGN_OR_RETURN(Row row, search_row(fraction));
      plan_.rows.push_back(std::move(row));
      continue;
    }
    for (const uint64_t pool_bytes : question_.pool_bytes) {
      TERRACE_ASSIGN_OR_RETURN(Point point, look_at(fraction, pool_bytes, true));
      plan_.rows.push_back(
          Row{.local_fraction = fraction, .point = std::move(point), .sweep = {}, .least_rejected = 0});
    }
  }
  if (plan_.searched) TERRACE_RETURN_IF_ERROR(add_sweeps());
  return std::move(plan_);
}

}  // namespace

const Point* Plan::best() const {
  const Point* best = nullptr;
  for (const Row& row : rows) {
    if (!row.point.has_value() || !row.point->acceptable || row.point->saving <= 0) continue;
    if (best == nullptr || row.point->saving > best->saving) best = &*row.point;
  }
  return best;
}

const Point* Plan::shown() const {
  if (const Point* point = best()) return point;
  for (const Row& row : rows)
    if (row.point.has_value()) return &*row.point;
  return nullptr;
}

double Plan::saving_beyond_right_sizing(const Point& point) const {
  if (!without_pool.has_value() || without_pool->total_bytes == 0) return 0;
  return 1.0 - static_cast<double>(point.total_bytes) / static_cast<double>(without_pool->total_bytes);
}

std::vector<std::string> Plan::problems() const {
  std::vector<std::string> problems = baseline.problems;
  if (without_pool.has_value()) {
    const std::vector<std::string>& more = without_pool->outcome.problems;
    problems.insert(problems.end(), more.begin(), more.end());
  }
  for (const Row& row : rows) {
    if (row.point.has_value())
      problems.insert(problems.end(), row.point->outcome.problems.begin(), row.point->outcome.problems.end());
    for (const Point& point : row.sweep)
      problems.insert(problems.end(), point.outcome.problems.begin(), point.outcome.problems.end());
  }
  return problems;
}

Result<Plan> make_plan(const Trace& trace, const Question& question, const PlanTick& tick) {
  return Planner(trace, question, tick).make();
}

}  // namespace terrace::plan
