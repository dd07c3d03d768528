// SPDX-License-Identifier: Apache-2.0
// Copies of a stream by the CUDA driver: directly from and to registered host memory, through two pinned
// buffers in turns elsewhere.
//
// Threads     Made and destroyed on any thread, after the stream's has ended; in between the stream's only.
// Invariants  E1  a staging buffer is written again only after the copy that read it is done.
//             E2  a registration is kept until the copies from and to it are done.
#pragma once

#include <array>
#include <deque>
#include <memory>

#include "libclient/device/copy_operation.h"
#include "libclient/device/cuda/cuda_context.h"
#include "libclient/device/cuda/host_ranges.h"

namespace terrace::device {

class CudaEngine final : public CopyEngine {
 public:
  CudaEngine(std::shared_ptr<CudaContext> context, std::shared_ptr<HostRanges> ranges, uint64_t staging_bytes)
      : context_(std::move(context)), ranges_(std::move(ranges)), staging_bytes_(staging_bytes) {}
  ~CudaEngine() override;
  Status make();  // the driver's stream and events

  void enter() override { entered_ = context_->enter(); }
  Status begin(const CopyOperation& operation, const std::function<void()>& finish) override;
  Status finish_oldest() override;
  bool oldest_is_done() override;
  uint32_t depth() const override { return depth_max; }

 private:
  static constexpr uint32_t depth_max = 8;
  struct Staging {
    void* memory = nullptr;
    cuda::Event event = nullptr;
    bool in_use = false;
    uint64_t begun_before = 0;  // copies that the stream began before the one that uses it
  };
  struct Begun {
    cuda::Event event;
    HostCover kept;
  };

  Status check(cuda::Code code, const char* what) { return context_->check(code, "DeviceStream", what); }
  Status issue(const CopyOperation& operation, HostCover& cover);
  Status copy_in_device(const CopyOperation& operation);
  Status copy_direct(const CopyOperation& operation, const HostCover& cover);
  Status prepare_staging();
  Status record_use(Staging& staging);
  Status wait_for(Staging& staging);
  Status upload_staged(const CopyOperation& operation);
  Status download_staged(const CopyOperation& operation);

  const std::shared_ptr<CudaContext> context_;
  const std::shared_ptr<HostRanges> ranges_;
  const uint64_t staging_bytes_;
  Status entered_;
  cuda::Stream stream_ = nullptr;
  std::array<cuda::Event, depth_max> events_{};
  uint64_t begun_count_ = 0;
  std::deque<Begun> begun_;
  std::array<Staging, 2> staging_{};
  const std::function<void()>* finish_ = nullptr;  // during begin()
};

}  // namespace terrace::device
