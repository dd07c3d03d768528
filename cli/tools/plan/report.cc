#include "cli/tools/plan/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/terminal/output.h"
#include "core/base/units.h"

namespace terrace::plan {
namespace {

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
  std::string text = cli::count_text(setup.hosts, "host") + " of " + format_size(setup.local_bytes);
  if (setup.host_cpu_milli != 0) text += ", " + cli::count_text(setup.host_cpu_milli / 1000, "core");
  if (setup.host_gpu_milli != 0) text += ", " + cli::count_text(setup.host_gpu_milli / 1000, "GPU");
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
  std::string rows = cli::count_text(trace.requests.size(), "request") + " in " +
                     format_duration((trace.end_s - trace.begin_s) * ns_per_s) + "; together at most " +
                     format_size(trace.peak_bytes) + " (" + cli::count_text(trace.peak_requests, "request") +
                     " alive), one at most " + format_size(trace.largest_bytes);
  if (trace.without_end > 0) rows += "; " + std::to_string(trace.without_end) + " live to the end";
  if (trace.without_memory > 0) rows += "; " + std::to_string(trace.without_memory) + " ask for no memory";
  const std::string allowed =
      std::to_string(plan.rejected_max) + " (" +
      percent(share_of(plan.rejected_max, plan.baseline.requests), 2) + ")" +
      (plan.rate_reached ? "" : ", as many as the baseline: the wanted rate is below that");
  return cli::format_block({{"trace", rows},
                            {"baseline", hosts_text(setup) + chosen},
                            {"placement", policy_text(setup)},
                            {"pool", cli::count_text(setup.pool_devices, "device") + ", granules of " +
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
  return cli::format_table({"", "LOCAL", "PER HOST", "POOL", "TOTAL", "SAVING", "REJECTED", "SPILLED",
                            "STRANDED", "PEAK", "FRAG P50", "P99", ""},
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
         cli::format_table({"POOL", "TOTAL", "SAVING", "REJECTED", ""}, rows);
}

nlohmann::json json_of(const Setup& setup) {
  return {{"hosts", setup.hosts},
          {"local_bytes", setup.local_bytes},
          {"pool_bytes", setup.pool_bytes},
          {"pool_devices", setup.pool_devices},
          {"granule_bytes", setup.granule_bytes},
          {"pool_fraction_max", setup.pool_fraction_max},
          {"placement", setup.placement == Placement::best_fit ? "best-fit" : "worst-fit"},
          {"spill", setup.spill == Spill::when_full ? "when-full" : "even"},
          {"host_cores", setup.host_cpu_milli / 1000},
          {"host_gpus", setup.host_gpu_milli / 1000}};
}

// `recorded`: the outcome has what only samples tell; else those keys are null.
nlohmann::json json_of(const Outcome& outcome, bool recorded) {
  nlohmann::json json = {
      {"requests", outcome.requests},
      {"rejected", outcome.rejected},
      {"rejected_share", outcome.rejected_share()},
      {"rejected_bytes", outcome.rejected_bytes},
      {"rejected_by",
       {{"cpu_or_gpu", outcome.refusals[static_cast<size_t>(Refusal::cpu_or_gpu)]},
        {"local_full", outcome.refusals[static_cast<size_t>(Refusal::local_full)]},
        {"pool_full", outcome.refusals[static_cast<size_t>(Refusal::pool_full)]},
        {"pool_fragmented", outcome.refusals[static_cast<size_t>(Refusal::pool_fragmented)]}}},
      {"spilled", outcome.spilled},
      {"local_peak_bytes", outcome.local_peak_bytes},
      {"pool_peak_bytes", outcome.pool_peak_bytes},
      {"used_peak_bytes", outcome.used_peak_bytes},
      {"pool_extents_max", outcome.pool_extents_max},
      {"free_at_refusal_bytes", static_cast<uint64_t>(outcome.free_at_refusal_bytes)},
      {"stranded_mean_bytes", nullptr},
      {"stranded_peak_bytes", nullptr},
      {"fragmentation_p50", nullptr},
      {"fragmentation_p99", nullptr}};
  if (!recorded) return json;
  json["stranded_mean_bytes"] = static_cast<uint64_t>(outcome.stranded_mean_bytes);
  json["stranded_peak_bytes"] = outcome.stranded_peak_bytes;
  json["fragmentation_p50"] = outcome.fragmentation_p50;
  json["fragmentation_p99"] = outcome.fragmentation_p99;
  return json;
}

nlohmann::json json_of(const Point& point, bool recorded) {
  return {{"local_fraction", point.local_fraction}, {"setup", json_of(point.setup)},
          {"total_bytes", point.total_bytes},       {"saving", point.saving},
          {"acceptable", point.acceptable},         {"outcome", json_of(point.outcome, recorded)}};
}

}  // namespace

std::string conclusion(const Plan& plan) {
  const Point* best = plan.best();
  const Point* right_sized = plan.without_pool.has_value() ? &*plan.without_pool : nullptr;
  const double beyond = best == nullptr ? 0 : plan.saving_beyond_right_sizing(*best);
  if (best == nullptr || beyond <= 0) {
    std::string text = "Pooling saves nothing here";
    if (right_sized != nullptr && right_sized->saving > 0) {
      text += ": " + cli::count_text(right_sized->setup.hosts, "host") + " of " +
              format_size(right_sized->setup.local_bytes) + " without a pool serve as many requests with " +
              percent(right_sized->saving) +
              " less memory, and no arrangement that was tried needs less than that";
    } else {
      text +=
          ": the hosts are as full as they can be at the busiest moment, and what they lose a pool must have";
    }
    return text + ".";
  }
  std::string text = percent(best->saving) + " less memory serves these requests (" +
                     format_size(best->total_bytes) + " instead of " + format_size(plan.baseline_bytes) + ", " +
                     rejected_percent(best->outcome) + " rejected): hosts of " +
                     format_size(best->setup.local_bytes) + " and ";
  if (best->setup.pool_bytes == 0) return text + "no pool.";
  text += "a shared pool of " + format_size(best->setup.pool_bytes) + ".";
  if (right_sized != nullptr && right_sized->saving > 0) {
    text += " Smaller hosts alone would save " + percent(right_sized->saving) +
            "; against those the pool saves " + percent(beyond) + ".";
  }
  return text;
}

std::string report_text(const Plan& plan, const Trace& trace) {
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
  return text + cli::format_block(rejected) + "\n" + conclusion(plan) + "\n";
}

nlohmann::json report_json(const Plan& plan, const Trace& trace) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : plan.rows) {
    nlohmann::json sweep = nlohmann::json::array();
    for (const Point& point : row.sweep) sweep.push_back(json_of(point, false));
    rows.push_back(
        {{"local_fraction", row.local_fraction},
         {"point", row.point.has_value() ? json_of(*row.point, true) : nlohmann::json()},
         {"least_rejected", row.point.has_value() ? nlohmann::json() : nlohmann::json(row.least_rejected)},
         {"sweep", sweep}});
  }
  const Point* best = plan.best();
  return {
      {"trace",
       {{"requests", trace.requests.size()},
        {"span_ns", (trace.end_s - trace.begin_s) * ns_per_s},
        {"peak_bytes", trace.peak_bytes},
        {"peak_requests", trace.peak_requests},
        {"largest_bytes", trace.largest_bytes},
        {"without_end", trace.without_end},
        {"without_memory", trace.without_memory}}},
      {"assumed",
       {{"hosts_chosen", plan.hosts_chosen},
        {"host_memory_chosen", plan.host_memory_chosen},
        {"rejected_max", plan.rejected_max},
        {"rate_reached", plan.rate_reached},
        {"pool_searched", plan.searched},
        {"replays", plan.replays}}},
      {"baseline",
       {{"setup", json_of(plan.baseline_setup)},
        {"total_bytes", plan.baseline_bytes},
        {"outcome", json_of(plan.baseline, true)}}},
      {"without_pool", plan.without_pool.has_value() ? json_of(*plan.without_pool, true) : nlohmann::json()},
      {"rows", rows},
      {"best", best != nullptr ? json_of(*best, true) : nlohmann::json()},
      {"saving_beyond_right_sizing",
       best != nullptr ? nlohmann::json(plan.saving_beyond_right_sizing(*best)) : nlohmann::json()},
      {"conclusion", conclusion(plan)}};
}

std::string time_series_csv(const Plan& plan) {
  std::string text =
      "arrangement,time_s,alive,rejected,local_used_bytes,pool_used_bytes,pool_largest_free_bytes,"
      "pool_fragmentation,stranded_bytes\n";
  const auto add = [&text](const char* name, const Outcome& outcome) {
    for (const Sample& sample : outcome.samples) {
      char fragmentation[32];
      std::snprintf(fragmentation, sizeof fragmentation, "%.4f", sample.fragmentation);
      for (const std::string& cell :
           {std::string(name), std::to_string(sample.time_s), std::to_string(sample.alive),
            std::to_string(sample.rejected), std::to_string(sample.local_used_bytes),
            std::to_string(sample.pool_used_bytes), std::to_string(sample.pool_largest_free_bytes),
            std::string(fragmentation)})
        text += cell + ",";
      text += std::to_string(sample.stranded_bytes) + "\n";
    }
  };
  add("baseline", plan.baseline);
  if (const Point* shown = plan.shown()) add("pooled", shown->outcome);
  return text;
}

}  // namespace terrace::plan
