// SPDX-License-Identifier: Apache-2.0
// Shared by the parts of bench_tensor_device.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "terrace/device_memory.h"

namespace terrace::bench {

struct Sizes {
  uint64_t copy_bytes = 256 * mib;
  uint64_t small_bytes = 4096;
  uint64_t hits = 2'000'000;
  int rounds = 7;
  uint64_t limit_bytes = 256 * mib;
  uint64_t staging_bytes = CudaDeviceOptions().staging_bytes;
};

[[noreturn]] void die(const std::string& text);

template <typename Value>
Value must(Result<Value> result) {
  if (!result.ok()) die(result.error().to_string());
  return std::move(*result);
}
void must(const Status& status);

double median(std::vector<double> values);

template <typename Work>
double seconds(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Each prints lines for a person and adds its keys.
void measure_copies(DeviceMemory& device, const Sizes& sizes, nlohmann::json& out);
void measure_replicas(const std::shared_ptr<DeviceMemory>& device, const Sizes& sizes, nlohmann::json& out);
// The emulated device's limits: always on one of its own.
void measure_limits(const Sizes& sizes, nlohmann::json& out);

}  // namespace terrace::bench
