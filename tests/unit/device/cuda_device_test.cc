// SPDX-License-Identifier: Apache-2.0
// The CUDA device over the fake driver: copies on their ways, and each fault that a driver can answer with.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "core/base/unique_fd.h"
#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("CudaDevice: a machine without a driver is told what to do instead") {
  const auto device = DeviceMemory::open_cuda({.driver_library = "libcuda-that-is-not-there.so.1"});
  REQUIRE_FALSE(device.ok());
  CHECK(device.error().code == ErrorCode::unsupported);
  CHECK(says(device.error(), "libcuda-that-is-not-there.so.1"));
  CHECK(says(device.error(), "emulated device"));
}

TEST_CASE("CudaDevice: an old driver's missing function is named") {
  const auto device = DeviceMemory::open_cuda({.driver_library = FAKE_CUDA_OLD});
  REQUIRE_FALSE(device.ok());
  CHECK(device.error().code == ErrorCode::unsupported);
  CHECK(says(device.error(), "cuDevicePrimaryCtxRelease_v2"));
  CHECK(says(device.error(), "CUDA 11.0"));
}

TEST_CASE("CudaDevice: no device, no such device, and a driver that does not start, in the driver's words") {
  FakeDriver driver;
  driver->init_code = 100;
  auto device = DeviceMemory::open_cuda(driver.options());
  REQUIRE_FALSE(device.ok());
  CHECK(device.error().code == ErrorCode::not_found);
  CHECK(says(device.error(), "no CUDA-capable device is detected"));
  driver->init_code = 803;
  CHECK(DeviceMemory::open_cuda(driver.options()).error().code == ErrorCode::version_mismatch);
  driver->init_code = 4711;  // newer than this driver's texts
  CHECK(says(DeviceMemory::open_cuda(driver.options()).error(), "(4711)"));
  driver->init_code = 0;
  driver->devices = 0;
  device = DeviceMemory::open_cuda(driver.options());
  REQUIRE_FALSE(device.ok());
  CHECK(device.error().code == ErrorCode::not_found);
  CHECK(says(device.error(), "there are 0"));
  driver->devices = 2;
  for (const int32_t ordinal : {-1, 2}) {
    CudaDeviceOptions options = driver.options();
    options.ordinal = ordinal;
    CHECK(DeviceMemory::open_cuda(options).error().code == ErrorCode::not_found);
  }
}

TEST_CASE("CudaDevice: says what it is, what it has and what is free") {
  FakeDriver driver;
  const auto device = driver.open();
  CHECK(device->info().kind == DeviceKind::cuda);
  CHECK(device->info().name == "Fake GPU");
  CHECK(device->info().driver_version == 12040);
  CHECK(device->info().description.find("CUDA 12.4") != std::string::npos);
  const auto buffer = must(device->allocate(6 * mib, "buffer"));
  const DeviceUse use = must(device->use());
  CHECK(use.capacity_bytes == 256 * mib);
  CHECK(use.free_bytes == 250 * mib);
  CHECK(use.allocated_bytes == 6 * mib);
}

TEST_CASE("CudaDevice: too little memory is said with tensor, tier and bytes short") {
  FakeDriver driver;
  driver->capacity_bytes = 4 * mib;
  const auto device = driver.open();
  const auto kept = must(device->allocate(3 * mib, "kept"));
  const auto refused = device->allocate(2 * mib, "h.3.attn");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::capacity_exhausted);
  CHECK(says(refused.error(), "'h.3.attn' needs 2097152 bytes in tier hbm"));
  CHECK(says(refused.error(), "1048576 short"));
  CHECK(device->health().ok());
}

TEST_CASE("CudaDevice: copies of memory that is not registered go through pinned buffers, piece by piece") {
  FakeDriver driver;
  driver->copy_delay_us = 200;  // a buffer that were written too early would show
  const auto device = driver.open();
  const Bytes bytes = random_bytes(1 * mib + 5, 1);
  CHECK(round_trip(*device, bytes) == bytes);
  CHECK(driver->pageable_copies == 0);
  CHECK(driver->direct_copies == 0);
  CHECK(driver->staged_copies == 2 * 17);
  CHECK(driver->staged_bytes_max == 64 * kib);
}

TEST_CASE("CudaDevice: staged copies up and down in one stream keep their order and bytes") {
  FakeDriver driver;
  driver->copy_delay_us = 50;
  const auto device = driver.open();
  const auto stream = must(device->make_stream());
  const auto buffer = must(device->allocate(300 * kib, "buffer"));
  std::vector<Bytes> sent, back;
  for (uint64_t round = 0; round < 12; ++round) {
    sent.push_back(random_bytes(64 * kib + round * 20'001, round));
    back.emplace_back(sent.back().size());
  }
  for (size_t round = 0; round < sent.size(); ++round) {
    must(stream->upload(buffer, round, sent[round]));
    must(stream->download(back[round], buffer, round));
  }
  must(stream->record().wait());
  CHECK(sent == back);
}

TEST_CASE("CudaDevice: copies of registered memory are direct, also over the edges of its pieces") {
  FakeDriver driver;
  CudaDeviceOptions options = driver.options();
  options.register_piece_bytes = 128 * kib;
  driver->register_bytes_max = 128 * kib;
  const auto device = must(DeviceMemory::open_cuda(options));
  const Bytes bytes = random_bytes(1 * mib, 2);
  auto registration = must(device->register_host(bytes, HostAccess::read_write));
  CHECK(registration->direct());
  CHECK(registration->reason().empty());
  CHECK(driver->registrations >= 8);
  CHECK(round_trip(*device, bytes) == bytes);
  CHECK(driver->direct_copies >= 8);  // up; down goes to other memory
  CHECK(driver->pageable_copies == 0);
  registration.reset();
  CHECK(driver->registered == 0);
}

TEST_CASE("CudaDevice: a registration that is dropped during a copy is kept until it is done") {
  FakeDriver driver;
  driver->copy_delay_us = 100'000;
  const auto device = driver.open();
  const Bytes bytes = random_bytes(1 * mib, 3);
  const auto buffer = must(device->allocate(1 * mib, "buffer"));
  const auto stream = must(device->make_stream());
  auto registration = must(device->register_host(bytes, HostAccess::read_write));
  const DeviceEvent event = must(stream->upload(buffer, 0, bytes));
  while (driver->direct_copies == 0) std::this_thread::yield();
  registration.reset();
  CHECK(driver->registered == 1);
  must(event.wait());
  CHECK(driver->registered == 0);
}

TEST_CASE("CudaDevice: what the driver does not register is copied in stages, and says why") {
  FakeDriver driver;
  const auto device = driver.open();
  const Bytes bytes = random_bytes(512 * kib, 4);
  driver->register_code = 1;  // as for a file system's pages
  const auto refused = must(device->register_host(bytes, HostAccess::read_write));
  CHECK_FALSE(refused->direct());
  CHECK(refused->reason().find("invalid argument") != std::string::npos);
  CHECK(round_trip(*device, bytes) == bytes);
  CHECK(driver->direct_copies == 0);
  CHECK(driver->pageable_copies == 0);
  driver->register_code = 0;
  driver->read_only_registration = false;
  const auto old = must(driver.open()->register_host(bytes, HostAccess::read_only));
  CHECK_FALSE(old->direct());
  CHECK(old->reason().find("reading only") != std::string::npos);
  CHECK(device->register_host({}, HostAccess::read_write).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("CudaDevice: memory that is registered for reading only is never written by the device") {
  FakeDriver driver;
  const auto device = driver.open();
  Bytes bytes = random_bytes(256 * kib, 5);
  const auto registration = must(device->register_host(bytes, HostAccess::read_only));
  CHECK(registration->direct());
  const auto buffer = must(device->allocate(bytes.size(), "buffer"));
  const auto stream = must(device->make_stream());
  must(stream->upload(buffer, 0, bytes));
  must(must(stream->download(bytes, buffer, 0)).wait());
  CHECK(driver->direct_copies == 1);
  CHECK(driver->staged_copies == 4);
}

TEST_CASE(
    "CudaDevice: without pinned memory a staged copy fails with the driver's words, and later ones work") {
  FakeDriver driver;
  driver->host_allocate_code = 2;
  const auto device = driver.open();
  const Bytes bytes = random_bytes(128 * kib, 6);
  const auto buffer = must(device->allocate(bytes.size(), "buffer"));
  const auto stream = must(device->make_stream());
  const Status failed = must(stream->upload(buffer, 0, bytes)).wait();
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.error().code == ErrorCode::out_of_memory);
  CHECK(says(failed.error(), "pinned"));
  driver->host_allocate_code = 0;
  must(must(stream->upload(buffer, 0, bytes)).wait());
}

TEST_CASE("CudaDevice: buffers are copied within a device and from another one") {
  FakeDriver driver;
  const auto device = driver.open();
  CudaDeviceOptions second = driver.options();
  second.ordinal = 1;
  const auto peer = must(DeviceMemory::open_cuda(second));
  const Bytes bytes = random_bytes(100 * kib, 7);
  const auto there = must(peer->allocate(bytes.size(), "there"));
  const auto peers_stream = must(peer->make_stream());
  must(must(peers_stream->upload(there, 0, bytes)).wait());
  const auto here = must(device->allocate(bytes.size(), "here")),
             copy = must(device->allocate(bytes.size(), "copy"));
  const auto stream = must(device->make_stream());
  must(stream->copy(here, 0, there, 0, bytes.size()));
  must(stream->copy(copy, 0, here, 0, bytes.size()));
  Bytes back(bytes.size());
  must(must(stream->download(back, copy, 0)).wait());
  CHECK(back == bytes);
  CHECK(driver->peer_copies == 1);
  CHECK(stream->upload(there, 0, bytes).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("CudaDevice: streams that wait for each other's earlier copies go on, several begun at once") {
  FakeDriver driver;
  const auto device = driver.open();
  const Bytes bytes = random_bytes(64 * kib, 12);
  const auto registration = must(device->register_host(bytes, HostAccess::read_write));
  const auto buffer = must(device->allocate(bytes.size(), "buffer"));
  const auto one = must(device->make_stream()), two = must(device->make_stream());
  DeviceEvent last;
  for (int round = 0; round < 100; ++round) {
    const DeviceEvent first = must(one->upload(buffer, 0, bytes));
    two->wait(first);
    last = must(two->upload(buffer, 0, bytes));
    one->wait(last);
  }
  CHECK(must(last.wait_for(60 * ns_per_s)));
  must(one->record().wait());
}

TEST_CASE("CudaDevice: the loss of the device is told once, and everything afterwards says so") {
  FakeDriver driver;
  CudaDeviceOptions options = driver.options();
  std::atomic<int> told = 0;
  options.on_lost = [&told](const Error& error) { told += error.code == ErrorCode::io_error ? 1 : 100; };
  const auto device = must(DeviceMemory::open_cuda(options));
  const Bytes bytes = random_bytes(64 * kib, 8);
  const auto registration = must(device->register_host(bytes, HostAccess::read_write));
  auto buffer = must(device->allocate(bytes.size(), "buffer"));
  const auto stream = must(device->make_stream());
  driver->lose_at_copy = 3;
  driver->copy_delay_us = 2000;
  std::vector<DeviceEvent> events;
  for (int round = 0; round < 10; ++round) {
    if (auto event = stream->upload(buffer, 0, bytes); event.ok()) events.push_back(*event);
  }
  int first_errors = 0;
  size_t failed = 0;
  for (const DeviceEvent& event : events) {
    const Status status = event.wait();
    if (status.ok()) continue;
    ++failed;
    if (status.error().code == ErrorCode::io_error) {
      ++first_errors;
      CHECK(says(status.error(), "an illegal memory access was encountered"));
    } else {
      CHECK(status.error().code == ErrorCode::unavailable);
      CHECK(says(status.error(), "was lost"));
    }
  }
  CHECK(first_errors == 1);
  CHECK(failed + 2 >= events.size());  // two copies were before it
  CHECK(told == 1);
  CHECK(device->health().error().code == ErrorCode::io_error);
  CHECK(device->allocate(1, "more").error().code == ErrorCode::unavailable);
  CHECK(device->use().error().code == ErrorCode::unavailable);
  CHECK(device->make_stream().error().code == ErrorCode::unavailable);
  CHECK(device->register_host(random_bytes(8192, 1), HostAccess::read_write).error().code ==
        ErrorCode::unavailable);
  CHECK(stream->upload(buffer, 0, bytes).error().code == ErrorCode::unavailable);
  CHECK(told == 1);
  buffer.reset();  // can be dropped
}

TEST_CASE("CudaDevice: a loss that many streams see at once is told once") {
  for (int attempt = 0; attempt < 3; ++attempt) {
    FakeDriver driver;
    driver->text_delay_us = 20'000;  // between seeing it and noting it
    CudaDeviceOptions options = driver.options();
    std::atomic<int> told = 0;
    options.on_lost = [&told](const Error&) { ++told; };
    const auto device = must(DeviceMemory::open_cuda(options));
    const auto buffer = must(device->allocate(4096, "buffer"));
    driver->copy_delay_us = 20'000;  // all of them are under way
    driver->lose_at_copy = 1;
    const Bytes bytes(4096);
    std::vector<std::unique_ptr<DeviceStream>> streams;
    for (int number = 0; number < 8; ++number) streams.push_back(must(device->make_stream()));
    std::vector<DeviceEvent> events;
    for (const auto& stream : streams) {
      if (auto event = stream->upload(buffer, 0, bytes); event.ok()) events.push_back(*event);
    }
    int first_errors = 0;
    for (const DeviceEvent& event : events) {
      const Status status = event.wait();
      if (!status.ok() && status.error().code == ErrorCode::io_error) ++first_errors;
    }
    CHECK(told == 1);
    CHECK(first_errors == 1);
  }
}

TEST_CASE("CudaDevice: a loss that a synchronous call sees is told as well") {
  FakeDriver driver;
  const auto device = driver.open();
  driver->broken = 214;
  const auto refused = device->allocate(4096, "weights");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::io_error);
  CHECK(says(refused.error(), "uncorrectable ECC error"));
  CHECK(device->allocate(4096, "weights").error().code == ErrorCode::unavailable);
}

#ifndef __SANITIZE_THREAD__  // its memcpy does not survive a jump
TEST_CASE("CudaDevice: host memory that is fenced during a staged copy is an error, and the device is well") {
  FakeDriver driver;
  UniqueFd file(::memfd_create("lease", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.get(), 1 * mib) == 0);
  void* at = ::mmap(nullptr, 1 * mib, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  REQUIRE(at != MAP_FAILED);
  const std::span lease(static_cast<std::byte*>(at), 1 * mib);
  const auto device = driver.open();
  const auto buffer = must(device->allocate(1 * mib, "buffer"));
  const auto stream = must(device->make_stream());
  must(must(stream->upload(buffer, 0, lease)).wait());
  REQUIRE(::ftruncate(file.get(), 512 * kib) == 0);  // half-way
  CHECK(must(stream->upload(buffer, 0, lease)).wait().error().code == ErrorCode::lease_expired);
  CHECK(must(stream->download(lease, buffer, 0)).wait().error().code == ErrorCode::lease_expired);
  CHECK(device->health().ok());
  const Bytes bytes = random_bytes(1 * mib, 10);
  CHECK(round_trip(*device, bytes) == bytes);
  ::munmap(at, 1 * mib);
}
#endif

TEST_CASE("CudaDevice: streams on many threads, staged and direct") {
  FakeDriver driver;
  const auto device = driver.open();
  const Bytes shared = random_bytes(256 * kib, 11);
  const auto registration = must(device->register_host(shared, HostAccess::read_write));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      auto made = device->make_stream();
      const auto stream = std::move(*made);
      for (uint64_t round = 0; round < 20; ++round) {
        const Bytes own = random_bytes(100 * kib + number, number * 100 + round);
        const auto one = *device->allocate(own.size(), "own"), two = *device->allocate(shared.size(), "shared");
        Bytes own_back(own.size()), shared_back(shared.size());
        (void)stream->upload(one, 0, own);
        (void)stream->upload(two, 0, shared);
        (void)stream->download(own_back, one, 0);
        (void)stream->download(shared_back, two, 0);
        if (!stream->record().wait().ok() || own_back != own || shared_back != shared) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(driver->pageable_copies == 0);
}
