// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/units.h"
#include "daemon/plan/over_time.h"

namespace terrace::plan {
namespace {

// "1 host", "2 hosts"
std::string count_text(uint64_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

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

// The highest of each span: what a picture of the time shows.
constexpr size_t spans = 240;

nlohmann::json whole_numbers(const Outcome& outcome, const Trace& trace, uint64_t Sample::*field) {
  nlohmann::json list = nlohmann::json::array();
  for (const double value : highest_over_time(
           outcome, trace, spans, [field](const Sample& sample) { return static_cast<double>(sample.*field); }))
    list.push_back(static_cast<uint64_t>(value));
  return list;
}

nlohmann::json over_time_json(const Outcome& outcome, const Trace& trace) {
  return {{"local_used_bytes", whole_numbers(outcome, trace, &Sample::local_used_bytes)},
          {"pool_used_bytes", whole_numbers(outcome, trace, &Sample::pool_used_bytes)},
          {"stranded_bytes", whole_numbers(outcome, trace, &Sample::stranded_bytes)},
          {"fragmentation", highest_over_time(outcome, trace, spans,
                                              [](const Sample& sample) { return sample.fragmentation; })}};
}

}  // namespace

std::string conclusion(const Plan& plan) {
  const Point* best = plan.best();
  const Point* right_sized = plan.without_pool.has_value() ? &*plan.without_pool : nullptr;
  const double beyond = best == nullptr ? 0 : plan.saving_beyond_right_sizing(*best);
  if (best == nullptr || beyond <= 0) {
    std::string text = "Pooling saves nothing here";
    if (right_sized != nullptr && right_sized->saving > 0) {
      text += ": " + count_text(right_sized->setup.hosts, "host") + " of " +
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
      {"conclusion", conclusion(plan)},
      {"over_time",
       {{"baseline", over_time_json(plan.baseline, trace)},
        {"shown", plan.shown() != nullptr ? json_of(*plan.shown(), true) : nlohmann::json()},
        {"of_shown",
         plan.shown() != nullptr ? over_time_json(plan.shown()->outcome, trace) : nlohmann::json()}}}};
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
