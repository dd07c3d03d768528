// SPDX-License-Identifier: Apache-2.0
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
  std::string directory = "/var/tmp";  // for files, on a disk
};

[[noreturn]] void die(const std::string& text);
template <typename Value>
Value must(Result<Value> result, const char* what) {
  if (!result.ok()) die(std::string(what) + ": " + result.error().to_string());
  return std::move(result).value();
}
void must(const Status& status, const char* what);

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
// python_view_overhead_us (Tensor.numpy()), python_asarray_us, numpy_view_us, python_torch_us, python_slice_us
void measure_python_view(const Sizes& sizes, nlohmann::json& out);
// import_gib_per_s_over_dd, export_gib_per_s_over_dd
void measure_files(const Sizes& sizes, nlohmann::json& out);
// checkpoint_drain_over_dd, checkpoint_pause_ms_per_gib, checkpoint_begin_ms_per_gib
void measure_checkpoint(const Sizes& sizes, nlohmann::json& out);

}  // namespace terrace::bench
