// SPDX-License-Identifier: Apache-2.0
// DeviceMemory over the CUDA driver.
#pragma once

#include <atomic>
#include <memory>

#include "libclient/device/cuda/cuda_context.h"
#include "libclient/device/cuda/host_ranges.h"
#include "terrace/device_memory.h"

namespace terrace::device {

class CudaDevice final : public DeviceMemory, public std::enable_shared_from_this<CudaDevice> {
 public:
  CudaDevice(const CudaDeviceOptions& options, DeviceInfo info, std::shared_ptr<CudaContext> context,
             bool can_register_read_only)
      : staging_bytes_(options.staging_bytes),
        can_register_read_only_(can_register_read_only),
        register_dax_(options.register_dax),
        register_piece_bytes_(options.register_piece_bytes),
        info_(std::move(info)),
        context_(std::move(context)),
        ranges_(HostRanges::of(context_->driver())) {}

  const DeviceInfo& info() const override { return info_; }
  Result<DeviceUse> use() const override;
  Status health() const override { return context_->health(); }
  Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t bytes, std::string_view what) override;
  Result<std::unique_ptr<DeviceStream>> make_stream() override;
  Result<std::unique_ptr<HostRegistration>> register_host(std::span<const std::byte> memory,
                                                          HostAccess access) override;

  CudaContext& context() { return *context_; }
  void free(uint64_t address, uint64_t bytes);

 private:
  const uint64_t staging_bytes_;
  const bool can_register_read_only_;
  const bool register_dax_;
  const uint64_t register_piece_bytes_;
  const DeviceInfo info_;
  const std::shared_ptr<CudaContext> context_;
  const std::shared_ptr<HostRanges> ranges_;
  std::atomic<uint64_t> allocated_bytes_ = 0;  // a statistic: relaxed
};

}  // namespace terrace::device
