// SPDX-License-Identifier: Apache-2.0
// The speed of the CUDA driver alone: bare copies of memory that it has pinned, waited for at once. Of the
// library under test only the table of the driver's functions is used: no stream, engine or registration of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "libclient/device/cuda/cuda_driver.h"

namespace terrace::bench {

class DriverLink {
 public:
  DriverLink(int32_t ordinal, std::span<std::byte> host);  // whole pages, pinned as long as this lives
  ~DriverLink();
  DriverLink(const DriverLink&) = delete;
  DriverLink& operator=(const DriverLink&) = delete;

  // All of the host's bytes in `pieces` copies, one wait: how long it took.
  double up_s(uint64_t pieces) const;
  double down_s() const;
  // The same of other memory. What is not pinned the driver stages itself.
  double copy_up_s(std::span<const std::byte> host) const;
  double copy_down_s(std::span<std::byte> host) const;

 private:
  void check(device::cuda::Code code, const char* what) const;

  std::shared_ptr<const device::CudaDriver> driver_;
  const std::span<std::byte> host_;
  device::cuda::Device device_ = 0;
  device::cuda::Context context_ = nullptr;
  device::cuda::Stream stream_ = nullptr;
  device::cuda::DevicePointer memory_ = 0;
};

}  // namespace terrace::bench
