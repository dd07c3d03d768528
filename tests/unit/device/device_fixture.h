// SPDX-License-Identifier: Apache-2.0
// What the tests of devices share: bytes to recognise, devices to use, the fake driver.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/base/prng.h"
#include "core/base/units.h"
#include "terrace/device_memory.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace terrace::test {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(size_t count, uint64_t seed) {
  Prng prng(seed);
  Bytes bytes(count);
  for (size_t at = 0; at < count; at += 8) {
    const uint64_t word = prng.next();
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, count - at));
  }
  return bytes;
}

template <typename Value>
Value must(Result<Value> result) {
  REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.error().to_string()));
  return std::move(result).value();
}

inline void must(const Status& status) {
  REQUIRE_MESSAGE(status.ok(), (status.ok() ? "" : status.error().to_string()));
}

inline bool says(const Error& error, std::string_view part) {
  const bool found = error.to_string().find(part) != std::string::npos;
  if (!found) MESSAGE("the text was: " << error.to_string());
  return found;
}

inline std::shared_ptr<DeviceMemory> emulated(EmulatedDeviceOptions options = {.capacity_bytes = 64 * mib}) {
  return must(DeviceMemory::make_emulated(options));
}

// The fake driver, as it comes; afterwards nothing of it may be left in use.
class FakeDriver {
 public:
  explicit FakeDriver(const char* library = FAKE_CUDA) : library_(library) {
    handle_ = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);  // never closed, as the library under test does
    REQUIRE(handle_ != nullptr);
    controls_ = function<GetFakeCuda>("fake_cuda")();
    controls_->reset();
  }
  ~FakeDriver() {
    CHECK(controls_->contexts == 0);
    CHECK(controls_->streams == 0);
    CHECK(controls_->events == 0);
    CHECK(controls_->buffers == 0);
    CHECK(controls_->host_buffers == 0);
    CHECK(controls_->registered == 0);
    CHECK(controls_->pushed == 0);
  }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  FakeCuda* operator->() { return controls_; }
  // A function of the driver, for what other parts of a program do with it.
  template <typename Function>
  Function* function(const char* symbol) const {
    void* found = ::dlsym(handle_, symbol);
    REQUIRE(found != nullptr);
    return reinterpret_cast<Function*>(found);
  }
  CudaDeviceOptions options() const {
    CudaDeviceOptions options;
    options.driver_library = library_;
    options.staging_bytes = 64 * kib;  // many turns in small copies
    return options;
  }
  std::shared_ptr<DeviceMemory> open() const { return must(DeviceMemory::open_cuda(options())); }

 private:
  const char* library_;
  void* handle_ = nullptr;
  FakeCuda* controls_;
};

// Up and down again: the bytes that come back.
inline Bytes round_trip(DeviceMemory& device, const Bytes& bytes) {
  const auto buffer = must(device.allocate(bytes.size(), "round trip"));
  const auto stream = must(device.make_stream());
  must(stream->upload(buffer, 0, bytes));
  Bytes back(bytes.size());
  const DeviceEvent done = must(stream->download(back, buffer, 0));
  must(done.wait());
  return back;
}

}  // namespace terrace::test
