// SPDX-License-Identifier: Apache-2.0
// The primary context of a CUDA device, which frameworks use, too: kept while an object here needs it; and
// the device's health.
//
// A program may destroy that context (cudaDeviceReset). Its handle stays, and is that of a new context once the
// program goes on with the device: then addresses and streams of ours are none of it, or are another's, and the
// driver dies of some. So the context's identity is compared before the driver gets one of them.
//
// Threads   Any.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "core/base/sync/mutex.h"
#include "libclient/device/cuda/cuda_driver.h"

namespace terrace::device {

class CudaContext {
 public:
  CudaContext(std::shared_ptr<const CudaDriver> driver, cuda::Device device, cuda::Context context,
              std::string label, std::function<void(const Error&)> on_lost)
      : driver_(std::move(driver)),
        device_(device),
        context_(context),
        id_(id_of(*driver_, context)),
        label_(std::move(label)),
        on_lost_(std::move(on_lost)) {}
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  // Makes the context the calling thread's, and puts back what was there. Where status() is not well the driver
  // must not be called: it would act in the context that the program has there, which may be another device's.
  class Current {
   public:
    explicit Current(CudaContext& context)
        : context_(context),
          pushed_(context.driver_->context_push(context.context_)),
          status_(context.usable(pushed_)) {}
    ~Current() {
      cuda::Context before = nullptr;
      if (pushed_ == cuda::Code::success) (void)context_.driver_->context_pop(&before);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    const Status& status() const { return status_; }

   private:
    CudaContext& context_;
    const cuda::Code pushed_;
    const Status status_;
  };
  // Makes it the calling thread's for good.
  Status enter() { return usable(driver_->context_set(context_)); }
  // Whether it still is the context that was opened; the device's loss otherwise. A driver before CUDA 12.0
  // does not tell.
  Status still_there();

  const CudaDriver& driver() const { return *driver_; }
  cuda::Context handle() const { return context_; }
  const std::string& label() const { return label_; }  // "CUDA device 0 (NVIDIA H200)"

  bool lost() const { return lost_.load(std::memory_order_acquire); }  // acquire: pairs with lose()
  Status health() const;
  // The Error of what the driver answered, well included; with the context current. A sticky one is the
  // device's loss: told once, in full; what fails afterwards says that the device was lost before, and by what.
  Status check(cuda::Code code, const char* where, const char* what);
  Error lost_before(const char* where) const;

 private:
  static uint64_t id_of(const CudaDriver& driver, cuda::Context context);
  Status usable(cuda::Code code);  // of making it current
  Status destroyed(cuda::Code code);
  bool answers() const;  // with the context current
  Error lose(Error error);

  const std::shared_ptr<const CudaDriver> driver_;
  const cuda::Device device_;
  const cuda::Context context_;
  const uint64_t id_;  // 0: not known
  const std::string label_;
  const std::function<void(const Error&)> on_lost_;
  std::atomic<bool> lost_ = false;
  mutable Mutex mutex_;
  std::optional<Error> loss_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::device
