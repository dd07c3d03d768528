// SPDX-License-Identifier: Apache-2.0
// The context of a CUDA device: never another one than its own, whatever the program does with its threads.
#include <atomic>

#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

// The calling thread of a framework that works on another GPU.
class OtherContext {
 public:
  explicit OtherContext(FakeDriver& driver) : driver_(driver) {
    void* context = nullptr;
    driver_.function<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 1);
    REQUIRE(driver_.function<int(void*)>("cuCtxPushCurrent_v2")(context) == 0);
  }
  ~OtherContext() {
    void* context = nullptr;
    driver_.function<int(void**)>("cuCtxPopCurrent_v2")(&context);
    driver_.function<int(int)>("cuDevicePrimaryCtxRelease_v2")(1);
  }
  OtherContext(const OtherContext&) = delete;
  OtherContext& operator=(const OtherContext&) = delete;

 private:
  FakeDriver& driver_;
};

constexpr int invalid_context = 201, invalid_value = 1;

}  // namespace

TEST_CASE("CudaDevice: where its context cannot be used nothing is asked of another device's") {
  FakeDriver driver;
  const OtherContext framework(driver);
  const auto device = driver.open();
  const Bytes bytes = random_bytes(64 * kib, 1);
  driver->context_code = invalid_value;  // for a moment: nothing is lost by it
  const auto refused = device->allocate(4096, "weights");
  REQUIRE_FALSE(refused.ok());
  CHECK(says(refused.error(), "CUDA device 0 (Fake GPU): the context cannot be used"));
  CHECK(driver->buffers == 0);
  CHECK_FALSE(device->use().ok());
  CHECK_FALSE(device->make_stream().ok());
  CHECK(driver->streams == 0);
  CHECK(driver->events == 0);
  const auto staged = must(device->register_host(bytes, HostAccess::read_write));
  CHECK_FALSE(staged->direct());
  CHECK(staged->reason().find("cannot be used") != std::string::npos);
  CHECK(driver->registered == 0);
  CHECK(device->health().ok());
  driver->context_code = 0;
  CHECK(round_trip(*device, bytes) == bytes);
}

// Found by memory of GPU 1 that was returned as GPU 0's, after cudaDeviceReset of that one.
TEST_CASE("CudaDevice: a context that the program destroyed is the device's loss, told once") {
  FakeDriver driver;
  const OtherContext framework(driver);
  CudaDeviceOptions options = driver.options();
  std::atomic<int> told = 0;
  options.on_lost = [&told](const Error&) { ++told; };
  const auto device = must(DeviceMemory::open_cuda(options));
  driver->context_code = invalid_context;
  const auto refused = device->allocate(4096, "weights");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::io_error);
  CHECK(says(refused.error(), "invalid device context"));
  CHECK(says(refused.error(), "cudaDeviceReset"));
  CHECK(device->health().error().code == ErrorCode::io_error);
  CHECK(device->allocate(4096, "weights").error().code == ErrorCode::unavailable);
  CHECK(device->use().error().code == ErrorCode::unavailable);
  CHECK(told == 1);
  CHECK(driver->buffers == 0);
  driver->context_code = 0;
  CHECK(device->allocate(4096, "weights").error().code == ErrorCode::unavailable);  // stays lost
  CHECK(driver->buffers == 0);
}

// Found on a GPU: the driver gives the new context the handle of the old one. The device seemed to be well, and
// dropping one of its streams ended the process.
TEST_CASE(
    "CudaDevice: a context that the program resets and uses again is the device's loss, and is left alone") {
  FakeDriver driver;
  CudaDeviceOptions options = driver.options();
  std::atomic<int> told = 0;
  options.on_lost = [&told](const Error&) { ++told; };
  auto device = must(DeviceMemory::open_cuda(options));
  Bytes bytes = random_bytes(128 * kib, 1);
  auto buffer = must(device->allocate(1 * mib, "buffer"));
  auto stream = must(device->make_stream());
  must(must(stream->upload(buffer, 0, bytes)).wait());  // staged: it has pinned buffers
  auto registration = must(device->register_host(bytes, HostAccess::read_write));
  REQUIRE(registration->direct());
  driver.function<void()>("fake_cuda_drop")();
  driver->context_id = 2;
  const auto theirs = driver.open();
  const auto their_buffer = must(theirs->allocate(1 * mib, "theirs"));
  SUBCASE("a call meets it") {
    CHECK(device->allocate(4096, "weights").error().code == ErrorCode::io_error);
  }
  SUBCASE("a copy meets it") {
    const Status status = must(stream->upload(buffer, 0, bytes)).wait();
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::io_error);
    CHECK(says(status.error(), "cudaDeviceReset"));
    CHECK(says(status.error(), "709"));
  }
  SUBCASE("nobody meets it") {}
  if (!device->health().ok()) {
    CHECK(device->use().error().code == ErrorCode::unavailable);
    CHECK_FALSE(stream->upload(buffer, 0, bytes).ok());
    // Nobody has these pages pinned any more, and the old registration still stands for them.
    const auto again = must(theirs->register_host(bytes, HostAccess::read_write));
    CHECK_FALSE(again->direct());
    CHECK(again->reason().find("lost") != std::string::npos);
    CHECK(round_trip(*theirs, bytes) == bytes);
    CHECK(driver->pageable_copies == 0);
    CHECK(told == 1);
  }
  stream.reset();
  buffer.reset();
  registration.reset();
  device.reset();
  CHECK(driver->dead_handles == 0);
  CHECK(driver->buffers == 1);
  const auto again = must(theirs->register_host(bytes, HostAccess::read_write));
  CHECK(again->direct());
  CHECK(round_trip(*theirs, bytes) == bytes);
}

TEST_CASE("CudaDevice: what is dropped without its context is not freed in another one") {
  FakeDriver driver;
  const OtherContext framework(driver);
  const auto device = driver.open();
  const Bytes bytes = random_bytes(64 * kib, 2);
  auto buffer = must(device->allocate(4096, "buffer"));
  auto registration = must(device->register_host(bytes, HostAccess::read_write));
  REQUIRE(registration->direct());
  driver->context_code = invalid_value;
  buffer.reset();
  registration.reset();
  CHECK(driver->buffers == 1);
  CHECK(driver->registered == 1);
  driver->context_code = 0;
  driver.function<void()>("fake_cuda_drop")();  // as the end of the context does
}

TEST_CASE("CudaDevice: a stream whose thread gets no context fails its copies and says why") {
  FakeDriver driver;
  const auto device = driver.open();
  const auto buffer = must(device->allocate(4096, "buffer"));
  driver->set_code = invalid_value;
  const auto stream = must(device->make_stream());
  const Bytes bytes = random_bytes(4096, 3);
  const Status status = must(stream->upload(buffer, 0, bytes)).wait();
  REQUIRE_FALSE(status.ok());
  CHECK(says(status.error(), "the context cannot be used"));
}

// Found by a registration that was refused with CUDA_ERROR_UNKNOWN: the device was given up for lost.
TEST_CASE("CudaDevice: an unknown error of a device that still answers is a refusal, not a loss") {
  FakeDriver driver;
  const auto device = driver.open();
  const Bytes bytes = random_bytes(128 * kib, 4);
  driver->register_code = 999;
  const auto refused = must(device->register_host(bytes, HostAccess::read_write));
  CHECK_FALSE(refused->direct());
  CHECK(refused->reason().find("CUDA_ERROR_UNKNOWN") != std::string::npos);
  driver->host_allocate_code = 999;
  const auto buffer = must(device->allocate(bytes.size(), "buffer"));
  const Status staged = must(must(device->make_stream())->upload(buffer, 0, bytes)).wait();
  REQUIRE_FALSE(staged.ok());
  CHECK(says(staged.error(), "CUDA_ERROR_UNKNOWN"));
  CHECK(device->health().ok());
  driver->host_allocate_code = 0;
  CHECK(round_trip(*device, bytes) == bytes);
  driver->broken = 999;  // this one fell off the bus
  CHECK(device->allocate(4096, "weights").error().code == ErrorCode::io_error);
  CHECK(device->health().error().code == ErrorCode::io_error);
}
