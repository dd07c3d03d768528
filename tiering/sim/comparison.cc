// SPDX-License-Identifier: Apache-2.0
#include "tiering/sim/comparison.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/units.h"
#include "tiering/sim/numbers.h"

namespace terrace::tiering {
namespace {

Error comparison_error(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "tiersim", .detail = std::move(detail)};
}

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

double ratio(double value, double of) {
  return of > 0 ? value / of : 1;
}

Status put(uint64_t& target, const Result<uint64_t>& value) {
  TERRACE_ASSIGN_OR_RETURN(target, value);
  return {};
}

Status set_look_ahead(ComparisonOptions& options, const std::string& text) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || value > look_ahead_max)
    return comparison_error("'" + text + "' is no whole number up to " + std::to_string(look_ahead_max));
  options.look_ahead = static_cast<uint32_t>(value);
  return {};
}

struct SizedOption {
  std::string_view name;
  uint64_t ComparisonOptions::*field;
  bool duration;
};

constexpr SizedOption sized_options[] = {
    {"granule", &ComparisonOptions::granule_bytes, false},
    {"ddr-latency", &ComparisonOptions::ddr_latency_ns, true},
    {"cxl-latency", &ComparisonOptions::cxl_latency_ns, true},
    {"ddr-bandwidth", &ComparisonOptions::ddr_bandwidth, false},
    {"cxl-bandwidth", &ComparisonOptions::cxl_bandwidth, false},
    {"copy-bandwidth", &ComparisonOptions::copy_bandwidth, false},
    {"copy-overhead", &ComparisonOptions::copy_overhead_ns, true},
    {"copy-budget", &ComparisonOptions::copy_budget, false},
};

Status set_known_option(ComparisonOptions& options, std::string_view name, const std::string& value) {
  if (name == "ddr-fraction") return parse_ddr_fractions(options, value);
  if (name == "policy") return parse_policies(options, value);
  if (name == "look-ahead") return set_look_ahead(options, value);
  if (name == "half-life") return put(options.policy.half_life_ns, parse_duration(value));
  if (name == "horizon") return put(options.policy.horizon_ns, parse_duration(value));
  std::string names = "ddr-fraction, policy, look-ahead, half-life, horizon";
  for (const SizedOption& one : sized_options) {
    if (one.name == name)
      return put(options.*one.field, one.duration ? parse_duration(value) : parse_size(value));
    names += ", " + std::string(one.name);
  }
  return Error{.code = ErrorCode::not_found, .where = "tiersim", .detail = names};
}

}  // namespace

ComparisonOptions::ComparisonOptions() : granule_bytes(usual_machine().granule_bytes) {
  const TierCosts usual;
  ddr_latency_ns = static_cast<uint64_t>(usual.ddr_latency_ns);
  cxl_latency_ns = static_cast<uint64_t>(usual.cxl_latency_ns);
  copy_overhead_ns = static_cast<uint64_t>(usual.move_overhead_ns);
  ddr_bandwidth = static_cast<uint64_t>(usual.ddr_bandwidth_bytes_per_s);
  cxl_bandwidth = static_cast<uint64_t>(usual.cxl_bandwidth_bytes_per_s);
  copy_bandwidth = static_cast<uint64_t>(usual.copy_bytes_per_s);
}

std::string simulated_names_text() {
  std::string text;
  for (const std::string_view name : simulated_names()) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

Status parse_ddr_fractions(ComparisonOptions& options, const std::string& text) {
  options.ddr_fractions.clear();
  for (const std::string& part : parts_of(text)) {
    char* end = nullptr;
    const double value = std::strtod(part.c_str(), &end);
    if (part.empty() || *end != '\0' || !(value > 0 && value <= 1))
      return comparison_error("'" + part + "' is no share above 0 and up to 1, such as 0.05");
    options.ddr_fractions.emplace_back(part, value);
  }
  if (options.ddr_fractions.empty()) return comparison_error("names no share, such as 0.05");
  return {};
}

Status parse_policies(ComparisonOptions& options, const std::string& text) {
  options.policies.clear();
  const std::vector<std::string_view> known = simulated_names();
  for (const std::string& part : parts_of(text)) {
    if (std::find(known.begin(), known.end(), part) == known.end())
      return comparison_error("no policy '" + part + "'; there are " + simulated_names_text());
    options.policies.push_back(part);
  }
  if (options.policies.empty()) return comparison_error("names no policy; there are " + simulated_names_text());
  return {};
}

Status set_option(ComparisonOptions& options, std::string_view name, const std::string& value) {
  const Status set = set_known_option(options, name, value);
  if (set.ok()) return {};
  if (set.error().code == ErrorCode::not_found)
    return comparison_error("a comparison has no option '" + std::string(name) + "'; there are " +
                            set.error().detail);
  return comparison_error(std::string(name) + ": " + set.error().detail);
}

Result<Machine> machine_of(const ComparisonOptions& options) {
  if (options.granule_bytes == 0 || options.granule_bytes > (uint64_t{1} << 40))
    return comparison_error("--granule lies between 1 byte and 1 TiB");
  for (const uint64_t bandwidth : {options.ddr_bandwidth, options.cxl_bandwidth, options.copy_bandwidth})
    if (bandwidth < mib) return comparison_error("bandwidths are at least 1M (a second)");
  Machine machine{.granule_bytes = options.granule_bytes,
                  .costs = {},
                  .copy_budget_bytes_per_s = options.copy_budget,
                  .look_ahead = options.look_ahead};
  machine.costs.ddr_latency_ns = static_cast<float>(options.ddr_latency_ns);
  machine.costs.cxl_latency_ns = static_cast<float>(options.cxl_latency_ns);
  machine.costs.move_overhead_ns = static_cast<float>(options.copy_overhead_ns);
  machine.costs.ddr_bandwidth_bytes_per_s = static_cast<float>(options.ddr_bandwidth);
  machine.costs.cxl_bandwidth_bytes_per_s = static_cast<float>(options.cxl_bandwidth);
  machine.costs.copy_bytes_per_s = static_cast<float>(options.copy_bandwidth);
  return machine;
}

Result<Comparison> compare(const Trace& trace, const ComparisonOptions& options, const ComparisonTick& tick) {
  Comparison comparison;
  TERRACE_ASSIGN_OR_RETURN(comparison.machine, machine_of(options));
  const Machine& machine = comparison.machine;
  for (const auto& [said, fraction] : options.ddr_fractions) {
    const auto room = std::max<uint64_t>(static_cast<uint64_t>(trace.objects * fraction), 1);
    TERRACE_ASSIGN_OR_RETURN(const Outcome best, simulate(trace, "belady", room, machine));
    for (const std::string& policy : options.policies) {
      const std::string what = policy + " at " + said;
      TERRACE_ASSIGN_OR_RETURN(Outcome outcome,
                               simulate(trace, policy, room, machine, options.policy, [&](uint64_t done) {
                                 if (tick) tick(what, done, trace.requests.size());
                               }));
      ComparisonRow row{.ddr_fraction = said, .outcome = std::move(outcome)};
      row.hits_over_belady = ratio(static_cast<double>(row.outcome.hits), static_cast<double>(best.hits));
      row.memory_over_belady = ratio(row.outcome.memory_s, best.memory_s);
      comparison.rows.push_back(std::move(row));
    }
  }
  return comparison;
}

nlohmann::json comparison_json(const Trace& trace, const Comparison& comparison) {
  nlohmann::json list = nlohmann::json::array();
  for (const ComparisonRow& row : comparison.rows) {
    const Outcome& outcome = row.outcome;
    list.push_back({{"policy", outcome.policy},
                    {"ddr_fraction", std::strtod(row.ddr_fraction.c_str(), nullptr)},
                    {"ddr_granules", outcome.ddr_granules},
                    {"hits", outcome.hits},
                    {"re_reference_hit_share", outcome.ddr_hit_share()},
                    {"hits_over_belady", row.hits_over_belady},
                    {"promotions", outcome.promotions},
                    {"demotions", outcome.demotions},
                    {"bytes_copied", outcome.bytes_copied},
                    {"new_in_cxl", outcome.new_in_cxl},
                    {"stall_s", outcome.stall_s},
                    {"memory_s", outcome.memory_s},
                    {"memory_time_over_belady", row.memory_over_belady}});
  }
  return {{"trace", trace.name},
          {"requests", trace.requests.size()},
          {"uses", trace.uses.size()},
          {"objects", trace.objects},
          {"re_references", trace.re_references()},
          {"granule_bytes", comparison.machine.granule_bytes},
          {"look_ahead_requests", comparison.machine.look_ahead},
          {"results", std::move(list)}};
}

}  // namespace terrace::tiering
