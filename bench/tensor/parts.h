// The parts of bench_tensor. Each prints lines for a person and adds its keys.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace terrace::bench {

struct Sizes {
  bool smoke = false;
};

[[noreturn]] void die(const std::string& text);
template <typename Value>
Value must(Result<Value> result, const char* what) {
  if (!result.ok()) die(std::string(what) + ": " + result.error().to_string());
  return std::move(result).value();
}
void must(const Status& status, const char* what);

uint64_t now_ns();  // monotonic, the same in all processes
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// layer_pass_over_bound, optimizer_pass_over_bound; each share of compute with what was copied
void measure_layer_pass(const Sizes& sizes, nlohmann::json& out);
void measure_optimizer_pass(const Sizes& sizes, nlohmann::json& out);
// acquire_check_ns_over_load, acquire_check_ns, load_ns
void measure_acquire_check(const Sizes& sizes, nlohmann::json& out);
// open_by_name_us, open_by_name_over_100; open_again_us (a name that this process found before)
void measure_open_by_name(const Sizes& sizes, nlohmann::json& out);
// handoff_us_p50, handoff_1gib_over_4kib, handoff_noncoherent_us_p50
void measure_handoff(const Sizes& sizes, nlohmann::json& out);

}  // namespace terrace::bench
