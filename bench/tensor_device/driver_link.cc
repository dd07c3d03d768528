// SPDX-License-Identifier: Apache-2.0
#include "bench/tensor_device/driver_link.h"

#include "bench/tensor_device/support.h"

namespace terrace::bench {

namespace cuda = device::cuda;

DriverLink::DriverLink(int32_t ordinal, std::span<std::byte> host) : host_(host) {
  driver_ = must(device::CudaDriver::load(CudaDeviceOptions().driver_library));
  check(driver_->init(0), "cuInit");
  check(driver_->device_get(&device_, ordinal), "cuDeviceGet");
  check(driver_->primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  check(driver_->context_push(context_), "cuCtxPushCurrent");
  check(driver_->stream_create(&stream_, cuda::stream_non_blocking), "cuStreamCreate");
  check(driver_->memory_allocate(&memory_, host.size()), "cuMemAlloc");
  check(driver_->host_register(host.data(), host.size(), cuda::register_portable), "cuMemHostRegister");
}

DriverLink::~DriverLink() {
  check(driver_->host_unregister(host_.data()), "cuMemHostUnregister");
  check(driver_->memory_free(memory_), "cuMemFree");
  check(driver_->stream_destroy(stream_), "cuStreamDestroy");
  cuda::Context before = nullptr;
  check(driver_->context_pop(&before), "cuCtxPopCurrent");
  check(driver_->primary_context_release(device_), "cuDevicePrimaryCtxRelease");
}

double DriverLink::up_s(uint64_t pieces) const {
  const uint64_t piece = host_.size() / pieces;
  return seconds([&] {
    for (uint64_t at = 0; at + piece <= host_.size(); at += piece) {
      check(driver_->copy_to_device(memory_ + at, host_.data() + at, piece, stream_), "cuMemcpyHtoDAsync");
    }
    check(driver_->stream_synchronize(stream_), "cuStreamSynchronize");
  });
}

double DriverLink::down_s() const {
  return seconds([&] {
    check(driver_->copy_to_host(host_.data(), memory_, host_.size(), stream_), "cuMemcpyDtoHAsync");
    check(driver_->stream_synchronize(stream_), "cuStreamSynchronize");
  });
}

double DriverLink::copy_up_s(std::span<const std::byte> host) const {
  return seconds([&] {
    check(driver_->copy_to_device(memory_, host.data(), host.size(), stream_), "cuMemcpyHtoDAsync");
    check(driver_->stream_synchronize(stream_), "cuStreamSynchronize");
  });
}

double DriverLink::copy_down_s(std::span<std::byte> host) const {
  return seconds([&] {
    check(driver_->copy_to_host(host.data(), memory_, host.size(), stream_), "cuMemcpyDtoHAsync");
    check(driver_->stream_synchronize(stream_), "cuStreamSynchronize");
  });
}

void DriverLink::check(cuda::Code code, const char* what) const {
  if (code != cuda::Code::success) die(std::string(what) + ": " + driver_->describe(code));
}

}  // namespace terrace::bench
