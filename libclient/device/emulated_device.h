// SPDX-License-Identifier: Apache-2.0
// A device for machines without one: memory of this process with a capacity, copies no faster than a bandwidth.
//
// It emulates the capacity, the duration of copies, and that they happen later and in order. A copy
// takes max(the bandwidth's time, this machine's own time) plus the latency; streams share the bandwidth of a
// direction.
#pragma once

#include <chrono>

#include "core/base/sync/mutex.h"
#include "libclient/device/copy_operation.h"

namespace terrace::device {

// One direction's bandwidth.
class EmulatedLink {
 public:
  using Clock = std::chrono::steady_clock;
  explicit EmulatedLink(uint64_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  // Copied at once: what takes two milliseconds, at least 1 MiB. Streams that share a direction take turns so
  // often; and large copies by memcpy are faster (it goes around the caches then).
  uint64_t piece_bytes() const;
  // When `bytes` that are sent from `begin` on, after what others sent, have arrived.
  Clock::time_point send(Clock::time_point begin, uint64_t bytes);

 private:
  const uint64_t bytes_per_s_;
  Mutex mutex_;
  Clock::time_point free_at_ TERRACE_GUARDED_BY(mutex_){};
};

class EmulatedDevice final : public DeviceMemory, public std::enable_shared_from_this<EmulatedDevice> {
 public:
  explicit EmulatedDevice(const EmulatedDeviceOptions& options);

  const DeviceInfo& info() const override { return info_; }
  Result<DeviceUse> use() const override;
  Status health() const override { return {}; }
  Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t bytes, std::string_view what) override;
  Result<std::unique_ptr<DeviceStream>> make_stream() override;
  Result<std::unique_ptr<HostRegistration>> register_host(std::span<const std::byte> memory,
                                                          HostAccess access) override;

  EmulatedLink& link(CopyKind kind);
  uint64_t latency_ns() const { return options_.latency_ns; }
  void freed(uint64_t bytes);

 private:
  const EmulatedDeviceOptions options_;
  DeviceInfo info_;
  EmulatedLink upload_, download_, copy_;
  mutable Mutex mutex_;
  uint64_t allocated_bytes_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::device
