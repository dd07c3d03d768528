// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/metrics/run_metrics.h"

namespace terrace::daemon {
namespace {

using Kind = MetricsText::Kind;
using Sums = std::map<std::string, RunSums>;

void add_now(MetricsText& out, const Sums& sums) {
  out.family(
      "terrace_runs", Kind::gauge,
      "Programs that report what their memory does, in the last minute; tenant \"\": of all further ones.");
  for (const auto& [tenant, of] : sums) out.sample(of.runs, {{"tenant", tenant}});
  out.family("terrace_run_processes", Kind::gauge, "Processes of these runs.");
  for (const auto& [tenant, of] : sums) out.sample(of.processes, {{"tenant", tenant}});
  out.family("terrace_run_live_bytes", Kind::gauge, "The blocks of these programs, wherever they are.");
  for (const auto& [tenant, of] : sums) out.sample(of.live_bytes, {{"tenant", tenant}});
  out.family("terrace_run_bytes", Kind::gauge,
             "What these programs have by tier: of their DDR budgets, of what they lease (cxl), and outside of "
             "both (plain).");
  for (const auto& [tenant, of] : sums) {
    out.sample(of.ddr_bytes, {{"tenant", tenant}, {"tier", "ddr"}});
    out.sample(of.cxl_bytes, {{"tenant", tenant}, {"tier", "cxl"}});
    out.sample(of.plain_bytes, {{"tenant", tenant}, {"tier", "plain"}});
  }
  out.family("terrace_run_leased_bytes", Kind::gauge, "What these programs lease, in use or not.");
  for (const auto& [tenant, of] : sums) out.sample(of.leased_bytes, {{"tenant", tenant}});
  out.family("terrace_run_sampled_bytes", Kind::gauge,
             "Memory of these programs whose accesses are looked at.");
  for (const auto& [tenant, of] : sums) out.sample(of.sampled_bytes, {{"tenant", tenant}});
  out.family(
      "terrace_run_hit_ratio", Kind::gauge,
      "The share of accesses to sampled memory that a tier serves, as the programs' samplers estimate it; "
      "no series: nothing is sampled.");
  for (const auto& [tenant, of] : sums) {
    if (of.sampled_bytes == 0) continue;
    out.sample(of.ddr_hits, {{"tenant", tenant}, {"tier", "ddr"}});
    out.sample(1 - of.ddr_hits, {{"tenant", tenant}, {"tier", "cxl"}});
  }
}

}  // namespace

void add_runs(MetricsText& out, const RunTable& runs, uint64_t now_ns) {
  const Sums sums = runs.sums(now_ns);
  add_now(out, sums);
  const auto counter = [&](const char* name, const char* help, uint64_t RunCounters::*value) {
    out.family(name, Kind::counter, help);
    for (const auto& [tenant, of] : sums) out.sample(of.counters.*value, {{"tenant", tenant}});
  };
  counter("terrace_run_promotions_total", "Granules that rose to DDR.", &RunCounters::promotions);
  counter("terrace_run_demotions_total", "Granules that sank to CXL memory.", &RunCounters::demotions);
  counter("terrace_run_promoted_bytes_total", "Bytes that rose to DDR.", &RunCounters::promoted_bytes);
  counter("terrace_run_demoted_bytes_total", "Bytes that sank to CXL memory.", &RunCounters::demoted_bytes);
  out.family("terrace_run_stalled_seconds_total", Kind::counter,
             "Time in which an access could have waited for a move: a bound.");
  for (const auto& [tenant, of] : sums)
    out.sample(static_cast<double>(of.counters.stalled_ns) / static_cast<double>(ns_per_s),
               {{"tenant", tenant}});
  counter("terrace_run_refusals_total", "Large requests that found no room and failed.", &RunCounters::refused);
  counter("terrace_run_fallbacks_total", "Large requests that found no room, and that plain memory served.",
          &RunCounters::fallbacks);
  out.family("terrace_run_reports_total", Kind::counter, "Reports of programs that were taken.");
  for (const auto& [tenant, of] : sums) out.sample(of.reports, {{"tenant", tenant}});
  out.counter("terrace_run_reports_refused_total", "Reports with numbers that cannot be.", runs.refused());
}

}  // namespace terrace::daemon
