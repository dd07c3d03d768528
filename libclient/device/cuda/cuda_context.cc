// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/cuda/cuda_context.h"

namespace terrace::device {
namespace {

bool is_of_destroyed(cuda::Code code) {
  return code == cuda::Code::invalid_context || code == cuda::Code::context_is_destroyed;
}

}  // namespace

CudaContext::~CudaContext() {
  (void)driver_->primary_context_release(device_);
}

Status CudaContext::health() const {
  if (!lost()) return {};
  const MutexLock lock(mutex_);
  return *loss_;
}

Error CudaContext::lost_before(const char* where) const {
  const MutexLock lock(mutex_);
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

uint64_t CudaContext::id_of(const CudaDriver& driver, cuda::Context context) {
  uint64_t id = 0;
  if (driver.context_id == nullptr || driver.context_id(context, &id) != cuda::Code::success) return 0;
  return id;
}

Status CudaContext::still_there() {
  if (id_ == 0) return {};
  uint64_t id = 0;
  const cuda::Code code = driver_->context_id(context_, &id);
  if (code == cuda::Code::success) return id == id_ ? Status() : destroyed(cuda::Code::context_is_destroyed);
  // What else a broken device answers is told by the call that follows.
  return is_of_destroyed(code) ? destroyed(code) : Status();
}

Status CudaContext::usable(cuda::Code code) {
  if (code == cuda::Code::success) return still_there();
  if (is_of_destroyed(code)) return destroyed(code);
  if (lost()) return lost_before("DeviceMemory");
  Error error = driver_->error(code, "DeviceMemory", label_ + ": the context cannot be used");
  return is_sticky(code) ? lose(std::move(error)) : error;
}

// We keep it. Who destroyed it all the same took everything with it that was made there.
Status CudaContext::destroyed(cuda::Code code) {
  if (lost()) return lost_before("DeviceMemory");
  return lose(driver_->error(
      code, "DeviceMemory",
      label_ + ": the context cannot be used, it was destroyed (cudaDeviceReset in this process?)"));
}

Error CudaContext::lose(Error error) {
  error.code = ErrorCode::io_error;
  {
    const MutexLock lock(mutex_);
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
