// SPDX-License-Identifier: Apache-2.0
// What the tests of tier hbm share: a pool with a device whose copies wait for the test's word.
#pragma once

#include <memory>
#include <string>

#include "tests/unit/placement/gated_device.h"
#include "tests/unit/placement/pools.h"

namespace terrace::test {

inline constexpr uint64_t replica_bytes = mib;

struct DevicePools : Pools {
  explicit DevicePools(uint64_t hbm_bytes, uint64_t capacity = 64 * mib)
      : DevicePools(hbm_bytes, std::make_shared<GatedDevice>(capacity)) {}
  DevicePools(uint64_t hbm_bytes, std::shared_ptr<GatedDevice> of)
      : Pools(8 * mib, 24 * mib, {.device = of, .hbm_bytes = hbm_bytes}), device(std::move(of)) {}
  HbmStatistics hbm() const { return pool->statistics().hbm; }
  std::shared_ptr<Tensor> filled(const std::string& name, uint64_t seed, uint64_t bytes = replica_bytes) {
    auto made = tensor(name, bytes);
    fill(take(made->write()).bytes(), seed);
    return made;
  }
  std::shared_ptr<GatedDevice> device;
};

inline std::span<std::byte> on_device(const DeviceGuard& guard) {
  return {reinterpret_cast<std::byte*>(guard.address()), guard.bytes()};
}

inline bool says(const Error& error, std::string_view part) {
  const bool found = error.to_string().find(part) != std::string::npos;
  if (!found) MESSAGE("the text was: " << error.to_string());
  return found;
}

inline void bring(Tensor& tensor) {
  const Status done = take(tensor.move_to(Tier::hbm))->wait(patience_ns);
  REQUIRE_MESSAGE(done.ok(), (done.ok() ? std::string() : done.error().to_string()));
}

}  // namespace terrace::test
