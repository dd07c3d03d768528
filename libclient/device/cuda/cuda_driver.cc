// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/cuda/cuda_driver.h"

#include <dlfcn.h>

#include <type_traits>

namespace terrace::device {
namespace {

// Which driver first had what old ones lack: for the error text.
constexpr const char* oldest_driver = "a driver of CUDA 11.0 (450.36) or newer";

ErrorCode code_of(cuda::Code code) {
  switch (code) {
    case cuda::Code::invalid_value: return ErrorCode::invalid_argument;
    case cuda::Code::out_of_memory: return ErrorCode::out_of_memory;
    case cuda::Code::no_device:
    case cuda::Code::invalid_device: return ErrorCode::not_found;
    case cuda::Code::not_permitted: return ErrorCode::permission_denied;
    case cuda::Code::not_supported: return ErrorCode::unsupported;
    case cuda::Code::system_driver_mismatch: return ErrorCode::version_mismatch;
    case cuda::Code::not_initialized: return ErrorCode::unavailable;
    default: return ErrorCode::io_error;
  }
}

}  // namespace

Result<std::shared_ptr<const CudaDriver>> CudaDriver::load(const std::string& library) {
  constexpr const char* where = "DeviceMemory::open_cuda";
  // Never closed: the driver has threads of its own.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* text = ::dlerror();
    return Error{ErrorCode::unsupported, 0, where,
                 "no CUDA driver on this machine: " + std::string(text == nullptr ? library.c_str() : text) +
                     "; install NVIDIA's driver, or use an emulated device"};
  }
  auto driver = std::make_shared<CudaDriver>();
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    if (function == nullptr && missing == nullptr) missing = symbol;
  };
#define TERRACE_CUDA_FIND(member, symbol, arguments) find(driver->member, symbol);
  TERRACE_CUDA_FUNCTIONS(TERRACE_CUDA_FIND)
  const char* const oldest_missing = missing;
  TERRACE_CUDA_NEWER_FUNCTIONS(TERRACE_CUDA_FIND)
#undef TERRACE_CUDA_FIND
  if (oldest_missing != nullptr) {
    return Error{ErrorCode::unsupported, 0, where,
                 library + " has no " + oldest_missing + ": install " + oldest_driver};
  }
  return std::shared_ptr<const CudaDriver>(std::move(driver));
}

std::string CudaDriver::describe(cuda::Code code) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(code, &name) != cuda::Code::success || name == nullptr) name = "unknown CUDA error";
  if (get_error_string(code, &text) != cuda::Code::success || text == nullptr) text = "no text";
  return std::string(name) + " (" + std::to_string(static_cast<int32_t>(code)) + "): " + text;
}

Error CudaDriver::error(cuda::Code code, const char* where, const std::string& what) const {
  return {code_of(code), 0, where, what + ": " + describe(code)};
}

bool is_sticky(cuda::Code code) {
  switch (code) {
    case cuda::Code::deinitialized:
    case cuda::Code::device_unavailable:
    case cuda::Code::ecc_uncorrectable:
    case cuda::Code::nvlink_uncorrectable:
    case cuda::Code::contained:
    case cuda::Code::illegal_address:
    case cuda::Code::launch_timeout:
    case cuda::Code::context_is_destroyed:
    case cuda::Code::assertion:
    case cuda::Code::hardware_stack_error:
    case cuda::Code::illegal_instruction:
    case cuda::Code::misaligned_address:
    case cuda::Code::invalid_address_space:
    case cuda::Code::invalid_pc:
    case cuda::Code::launch_failed:
    case cuda::Code::tensor_memory_leak:
    case cuda::Code::unknown: return true;
    default: return false;
  }
}

}  // namespace terrace::device
