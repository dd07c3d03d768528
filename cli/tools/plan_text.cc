// SPDX-License-Identifier: Apache-2.0
#include "cli/tools/plan_text.h"

#include <cmath>
#include <cstdio>

#include "cli/terminal/output.h"
#include "core/base/units.h"
#include "daemon/plan/report.h"

namespace terrace::cli {
namespace {

using plan::Outcome;
using plan::Placement;
using plan::Plan;
using plan::Point;
using plan::Refusal;
using plan::refusal_kinds;
using plan::Row;
using plan::Setup;
using plan::Spill;
using plan::Trace;

// "36.7%"
std::string percent(double share, int decimals = 1) {
  char text[32];
  const double shown = std::abs(share) * 100 * std::pow(10, decimals) < 0.5 ? 0 : share * 100;  // no "-0.0%"
  std::snprintf(text, sizeof text, "%.*f%%", decimals, shown);
  return text;
}

// Rejections are compared near one percent.
std::string rejected_percent(const Outcome& outcome) {
  return percent(outcome.rejected_share(), 2);
}

// A share that somebody chose: "50%", "33.3%".
std::string chosen_percent(double share) {
  const bool whole = std::abs(share * 100 - std::round(share * 100)) < 0.05;
  return percent(share, whole ? 0 : 1);
}

std::string size(double bytes) {
  return format_size(static_cast<uint64_t>(bytes + 0.5));
}

double share_of(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

const char* refusal_name(size_t kind) {
  switch (static_cast<Refusal>(kind)) {
    case Refusal::cpu_or_gpu: return "no host had the cores or GPUs";
    case Refusal::local_full: return "no host had the local memory";
    case Refusal::pool_full: return "the pool was full";
    case Refusal::pool_fragmented: return "the pool was too fragmented";
  }
  return "";
}

std::string refusals_text(const Outcome& outcome) {
  std::string text = std::to_string(outcome.rejected) + " of " + std::to_string(outcome.requests);
  std::string reasons;
  for (size_t kind = 0; kind < refusal_kinds; ++kind) {
    if (outcome.refusals[kind] == 0) continue;
    reasons += (reasons.empty() ? "" : ", ") + std::to_string(outcome.refusals[kind]) + " because " +
               refusal_name(kind);
  }
  if (outcome.rejected > 0)
    reasons += "; " + size(outcome.free_at_refusal_bytes) + " of local memory was free on average then";
  return text + (reasons.empty() ? "" : ": " + reasons);
}

std::string hosts_text(const Setup& setup) {
  std::string text = count_text(setup.hosts, "host") + " of " + format_size(setup.local_bytes);
  if (setup.host_cpu_milli != 0) text += ", " + count_text(setup.host_cpu_milli / 1000, "core");
  if (setup.host_gpu_milli != 0) text += ", " + count_text(setup.host_gpu_milli / 1000, "GPU");
  return text;
}

std::string policy_text(const Setup& setup) {
  std::string text = setup.placement == Placement::best_fit ? "the fullest host that has room (best-fit)"
                                                            : "the emptiest host (worst-fit)";
  text += setup.spill == Spill::when_full ? "; the pool only when no host has room for all of it"
                                          : "; the pool's share of all memory comes from the pool";
  return text + ", at most " + chosen_percent(setup.pool_fraction_max) + " of a request";
}

std::string assumptions(const Plan& plan, const Trace& trace) {
  const Setup& setup = plan.baseline_setup;
  std::string chosen;
  if (plan.hosts_chosen) {
    chosen =
        plan.rate_reached ? " (the fewest that reject no more than is allowed" : " (more would reject no fewer";
  }
  if (plan.host_memory_chosen)
    chosen +=
        std::string(chosen.empty() ? " (" : "; ") + "the smallest usual size that 99.9% of requests fit in";
  if (!chosen.empty()) chosen += ")";
  std::string rows = count_text(trace.requests.size(), "request") + " in " +
                     format_duration((trace.end_s - trace.begin_s) * ns_per_s) + "; together at most " +
                     format_size(trace.peak_bytes) + " (" + count_text(trace.peak_requests, "request") +
                     " alive), one at most " + format_size(trace.largest_bytes);
  if (trace.without_end > 0) rows += "; " + std::to_string(trace.without_end) + " live to the end";
  if (trace.without_memory > 0) rows += "; " + std::to_string(trace.without_memory) + " ask for no memory";
  const std::string allowed =
      std::to_string(plan.rejected_max) + " (" +
      percent(share_of(plan.rejected_max, plan.baseline.requests), 2) + ")" +
      (plan.rate_reached ? "" : ", as many as the baseline: the wanted rate is below that");
  return format_block({{"trace", rows},
                       {"baseline", hosts_text(setup) + chosen},
                       {"placement", policy_text(setup)},
                       {"pool", count_text(setup.pool_devices, "device") + ", granules of " +
                                    format_size(setup.granule_bytes) + "; erased at once when given back"},
                       {"may reject", allowed + "; a rejected request does not come again"}});
}

std::vector<std::string> cells(const std::string& kind, double fraction, const Setup& setup,
                               const Outcome& outcome, uint64_t total_bytes, const std::string& saving,
                               bool acceptable) {
  const bool pooled = setup.pool_bytes > 0;
  return {kind,
          chosen_percent(fraction),
          format_size(setup.local_bytes),
          pooled ? format_size(setup.pool_bytes) : "-",
          format_size(total_bytes),
          saving,
          rejected_percent(outcome),
          pooled ? percent(share_of(outcome.spilled, outcome.requests)) : "-",
          size(outcome.stranded_mean_bytes),
          format_size(outcome.stranded_peak_bytes),
          pooled ? percent(outcome.fragmentation_p50) : "-",
          pooled ? percent(outcome.fragmentation_p99) : "-",
          acceptable ? "" : "rejects too many"};
}

std::vector<std::string> cells(const std::string& kind, const Point& point) {
  return cells(kind, point.local_fraction, point.setup, point.outcome, point.total_bytes, percent(point.saving),
               point.acceptable);
}

std::string table(const Plan& plan) {
  std::vector<std::vector<std::string>> rows;
  rows.push_back(cells("baseline", 1, plan.baseline_setup, plan.baseline, plan.baseline_bytes, "-", true));
  if (plan.without_pool.has_value()) rows.push_back(cells("no pool, least", *plan.without_pool));
  for (const Row& row : plan.rows) {
    if (row.point.has_value()) {
      const bool best = plan.best() == &*row.point;
      const std::string kind = row.point->setup.pool_bytes > 0 ? "pooled" : "no pool";
      rows.push_back(cells(best ? kind + ", best" : kind, *row.point));
      continue;
    }
    rows.push_back({"pooled", chosen_percent(row.local_fraction), "-", "-", "-", "-",
                    percent(share_of(row.least_rejected, plan.baseline.requests), 2), "-", "-", "-", "-", "-",
                    "with any pool"});
  }
  return format_table({"", "LOCAL", "PER HOST", "POOL", "TOTAL", "SAVING", "REJECTED", "SPILLED", "STRANDED",
                       "PEAK", "FRAG P50", "P99", ""},
                      rows);
}

// What a smaller or larger pool would do, for the local fraction that came out best.
std::string sweep_table(const Plan& plan) {
  const Point* best = plan.best();
  const Row* row = nullptr;
  for (const Row& candidate : plan.rows)
    if (best != nullptr && candidate.point.has_value() && &*candidate.point == best) row = &candidate;
  if (row == nullptr || row->sweep.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const Point& point : row->sweep) {
    rows.push_back({format_size(point.setup.pool_bytes), format_size(point.total_bytes), percent(point.saving),
                    rejected_percent(point.outcome), point.acceptable ? "" : "too many"});
  }
  return "\nWith " + chosen_percent(row->local_fraction) + " local, other pool sizes:\n" +
         format_table({"POOL", "TOTAL", "SAVING", "REJECTED", ""}, rows);
}

}  // namespace

std::string plan_text(const Plan& plan, const Trace& trace) {
  std::string text = "Assumed\n" + assumptions(plan, trace) + "\n" + table(plan);
  text +=
      "SAVING: against the baseline; 'no pool, least': the smallest hosts that will do without one.\n"
      "STRANDED: local memory free on hosts that could not take one more request of the median\n"
      "size, on average over time and at its peak. FRAG: the pool's free memory outside each\n"
      "device's longest free run, while it is used.\n";
  text += sweep_table(plan);
  text += "\nRejected\n";
  std::vector<std::pair<std::string, std::string>> rejected{{"baseline", refusals_text(plan.baseline)}};
  if (const Point* best = plan.best()) rejected.emplace_back("best", refusals_text(best->outcome));
  return text + format_block(rejected) + "\n" + plan::conclusion(plan) + "\n";
}

}  // namespace terrace::cli
