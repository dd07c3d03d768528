// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/options.h"

#include <charconv>
#include <cstdlib>
#include <functional>
#include <sstream>

#include "core/base/limits.h"
#include "core/base/units.h"

namespace terrace::plan {
namespace {

Error option_error(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "plan", .detail = std::move(detail)};
}

template <typename T>
Result<std::vector<T>> parse_parts(const std::string& text, Result<T> (*parse)(const std::string&)) {
  std::vector<T> values;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    TERRACE_ASSIGN_OR_RETURN(const T value, parse(part));
    values.push_back(value);
  }
  return values;
}

Result<int64_t> parse_count(const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < least || value > most)
    return option_error("'" + text + "' is no whole number from " + std::to_string(least) + " to " +
                        std::to_string(most));
  return value;
}

Result<std::string> parse_word(const std::string& text, const char* one, const char* other) {
  if (text != one && text != other)
    return option_error("'" + text + "' is neither " + std::string(one) + " nor " + other);
  return text;
}

struct KnownOption {
  std::string_view name;
  std::function<Status(Options&, const std::string&)> set;
};

template <typename T>
Status put(T& target, Result<T> value) {
  TERRACE_ASSIGN_OR_RETURN(target, std::move(value));
  return {};
}

Status put_count(uint64_t& target, Result<int64_t> value) {
  if (!value.ok()) return value.error();
  target = static_cast<uint64_t>(*value);
  return {};
}

const std::vector<KnownOption>& known_options() {
  using Text = const std::string&;
  static const std::vector<KnownOption> known = {
      {"hosts", [](Options& o, Text v) { return put_count(o.hosts, parse_count(v, 1, hosts_max)); }},
      {"host-memory", [](Options& o, Text v) { return put(o.host_memory_bytes, parse_size(v)); }},
      {"host-cores", [](Options& o, Text v) { return put(o.host_cores, parse_count(v, 0, host_parts_max)); }},
      {"host-gpus", [](Options& o, Text v) { return put(o.host_gpus, parse_count(v, 0, host_parts_max)); }},
      {"local-fractions", [](Options& o, Text v) { return put(o.local_fractions, parse_shares(v)); }},
      {"pool-sizes", [](Options& o, Text v) { return put(o.pool_bytes, parse_sizes(v)); }},
      {"rejection-rate", [](Options& o, Text v) { return put(o.question.rejection_rate, parse_share(v)); }},
      {"pool-fraction-max",
       [](Options& o, Text v) { return put(o.question.setup.pool_fraction_max, parse_share(v)); }},
      {"spill", [](Options& o, Text v) { return put(o.spill, parse_word(v, "when-full", "even")); }},
      {"placement",
       [](Options& o, Text v) { return put(o.placement, parse_word(v, "worst-fit", "best-fit")); }},
      {"granule", [](Options& o, Text v) { return put(o.question.setup.granule_bytes, parse_size(v)); }},
      {"pool-devices",
       [](Options& o, Text v) {
         return put_count(o.question.setup.pool_devices, parse_count(v, 1, limits::devices_max));
       }},
  };
  return known;
}

}  // namespace

Options::Options() {
  question.setup.granule_bytes = limits::granule_bytes;
  question.setup.pool_fraction_max = 0.5;
}

Result<double> parse_share(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 0 && value <= 1))
    return option_error("'" + text + "' is no share between 0 and 1, such as 0.75");
  return value;
}

Result<std::vector<double>> parse_shares(const std::string& text) {
  return parse_parts<double>(text, parse_share);
}

Result<std::vector<uint64_t>> parse_sizes(const std::string& text) {
  return parse_parts<uint64_t>(text, [](const std::string& part) { return parse_size(part); });
}

Status set_option(Options& options, std::string_view name, const std::string& value) {
  std::string names;
  for (const KnownOption& one : known_options()) {
    names += (names.empty() ? "" : ", ") + std::string(one.name);
    if (one.name != name) continue;
    if (const Status set = one.set(options, value); !set.ok())
      return option_error(std::string(name) + ": " + set.error().detail);
    return {};
  }
  return option_error("a plan has no option '" + std::string(name) + "'; there are " + names);
}

Status complete(Options& options, const Trace& trace, const std::string& trace_name) {
  constexpr int64_t usual_cores = 96, usual_gpus = 8;
  Question& question = options.question;
  if (options.host_cores > 0 && !trace.has_cpu)
    return option_error("--host-cores needs a column cpu_milli in " + trace_name);
  if (options.host_gpus > 0 && !trace.has_gpu)
    return option_error("--host-gpus needs a column num_gpu in " + trace_name);
  const int64_t cores = options.host_cores >= 0 ? options.host_cores : trace.has_cpu ? usual_cores : 0;
  const int64_t gpus = options.host_gpus >= 0 ? options.host_gpus : trace.has_gpu ? usual_gpus : 0;
  question.setup.host_cpu_milli = static_cast<uint64_t>(cores) * 1000;
  question.setup.host_gpu_milli = static_cast<uint64_t>(gpus) * 1000;
  if (options.hosts != 0) question.hosts = options.hosts;
  if (options.host_memory_bytes != 0) question.host_memory_bytes = options.host_memory_bytes;
  if (!options.local_fractions.empty()) question.local_fractions = options.local_fractions;
  question.pool_bytes = options.pool_bytes;
  question.setup.placement = options.placement == "best-fit" ? Placement::best_fit : Placement::worst_fit;
  question.setup.spill = options.spill == "even" ? Spill::even : Spill::when_full;
  return {};
}

}  // namespace terrace::plan
