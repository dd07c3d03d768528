#include "libclient/device/cuda/cuda_context.h"

namespace terrace::device {
CudaContext::~CudaContext() {
  (void)driver_->primary_context_release(device_);
}

Status CudaContext::health() const {
  if (!lost()) return {};
  const std::lock_guard lock(mutex_);
  return *loss_;
}

Error CudaContext::lost_before(const char* where) const {
  const std::lock_guard lock(mutex_);
  return {ErrorCode::unavailable, 0, where,
          label_ + " was lost earlier and stays lost for this process (" + loss_->detail + ")"};
}

Status CudaContext::check(cuda::Code code, const char* where, const char* what) {
  if (code == cuda::Code::success) return {};
  // After the loss every call gets the same error again, whatever it asked for.
  if (lost()) return lost_before(where);
  Error error = driver_->error(code, where, label_ + ": " + what);
  return is_sticky(code) && !(code == cuda::Code::unknown && answers()) ? lose(std::move(error)) : error;
}

// Drivers say `unknown` of a GPU that fell off the bus, and of a request that they would not serve: a
// registration of a kind of memory, say. A device that is gone answers nothing else either.
bool CudaContext::answers() const {
  size_t free_bytes = 0, total_bytes = 0;
  return driver_->memory_info(&free_bytes, &total_bytes) == cuda::Code::success;
}

Status CudaContext::usable(cuda::Code code) {
  if (code == cuda::Code::success) return {};
  if (lost()) return lost_before("DeviceMemory");
  const std::string what = label_ + ": the context cannot be used";
  if (code != cuda::Code::invalid_context) {
    Error error = driver_->error(code, "DeviceMemory", what);
    return is_sticky(code) ? lose(std::move(error)) : error;
  }
  // We keep it. Who destroyed it all the same took everything with it that was made there.
  return lose(
      driver_->error(code, "DeviceMemory", what + ", it was destroyed (cudaDeviceReset in this process?)"));
}

Error CudaContext::lose(Error error) {
  error.code = ErrorCode::io_error;
  {
    const std::lock_guard lock(mutex_);
    if (loss_) {  // another thread was first
      return {ErrorCode::unavailable, 0, error.where, label_ + " was lost (" + loss_->detail + ")"};
    }
    loss_ = error;
    lost_.store(true, std::memory_order_release);  // pairs with lost()
  }
  if (on_lost_) on_lost_(error);
  return error;
}

}  // namespace terrace::device
