// SPDX-License-Identifier: Apache-2.0
// The emulated device, and what streams and events promise of every device.
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "core/base/unique_fd.h"
#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

// One copy of 1 MiB takes a quarter of a second.
EmulatedDeviceOptions slow() {
  return {.capacity_bytes = 64 * mib, .upload_bytes_per_s = 4 * mib, .download_bytes_per_s = 4 * mib};
}

bool readable(int fd, int timeout_ms) {
  pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&waited, 1, timeout_ms) == 1 && (waited.revents & POLLIN) != 0;
}

}  // namespace

TEST_CASE("EmulatedDevice: says that it is emulated, with its limits") {
  const auto device = emulated({.capacity_bytes = 8 * mib, .upload_bytes_per_s = 2 * mib, .latency_ns = 5000});
  CHECK(device->info().kind == DeviceKind::emulated);
  CHECK(device->info().capacity_bytes == 8 * mib);
  CHECK(device->info().description.find("emulated") != std::string::npos);
  CHECK(device->info().description.find("2 MiB/s") != std::string::npos);
  CHECK(device->info().description.find("down unlimited") != std::string::npos);
  CHECK(DeviceMemory::make_emulated({.capacity_bytes = 0}).error().code == ErrorCode::invalid_argument);
}

TEST_CASE(
    "EmulatedDevice: what does not fit is refused with the bytes it is short, and fits once others let go") {
  const auto device = emulated({.capacity_bytes = 4 * mib});
  auto first = must(device->allocate(3 * mib, "first"));
  const auto second = device->allocate(2 * mib, "layer 'x'");
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == ErrorCode::capacity_exhausted);
  CHECK(says(second.error(), "tier hbm"));
  CHECK(says(second.error(), "1048576 short"));
  CHECK(says(second.error(), "layer"));
  CHECK(must(device->use()).free_bytes == 1 * mib);
  first.reset();
  CHECK(must(device->use()).allocated_bytes == 0);
  CHECK(device->allocate(4 * mib, "all").ok());
  CHECK(device->allocate(~uint64_t{0}, "absurd").error().code == ErrorCode::capacity_exhausted);
  CHECK(device->allocate(0, "nothing").error().code == ErrorCode::invalid_argument);
}

TEST_CASE("DeviceStream: bytes go up, across and down unchanged") {
  const auto device = emulated();
  const Bytes bytes = random_bytes(3 * mib + 17, 1);
  const auto first = must(device->allocate(4 * mib, "first"));
  const auto second = must(device->allocate(4 * mib, "second"));
  const auto stream = must(device->make_stream());
  must(stream->upload(first, 100, bytes));
  must(stream->copy(second, 7, first, 100, bytes.size()));
  Bytes back(bytes.size());
  must(must(stream->download(back, second, 7)).wait());
  CHECK(back == bytes);
}

TEST_CASE("DeviceStream: copies of one stream happen in order, and record() is done after them") {
  const auto device = emulated();
  const auto buffer = must(device->allocate(1 * mib, "buffer"));
  const auto stream = must(device->make_stream());
  const Bytes bytes = random_bytes(1 * mib, 2), other = random_bytes(1 * mib, 3);
  Bytes first(1 * mib), last(1 * mib);
  std::vector<DeviceEvent> events;
  events.push_back(must(stream->upload(buffer, 0, bytes)));
  events.push_back(must(stream->download(first, buffer, 0)));
  events.push_back(must(stream->upload(buffer, 0, other)));
  events.push_back(must(stream->download(last, buffer, 0)));
  const DeviceEvent all = stream->record();
  must(all.wait());
  for (const DeviceEvent& event : events) CHECK(event.done());
  CHECK(first == bytes);
  CHECK(last == other);
}

TEST_CASE("DeviceEvent: not done before the copy is; waits with a limit; its descriptor becomes readable") {
  const auto device = emulated(slow());
  const auto buffer = must(device->allocate(1 * mib, "buffer"));
  const auto stream = must(device->make_stream());
  const Bytes bytes = random_bytes(1 * mib, 4);
  const DeviceEvent event = must(stream->upload(buffer, 0, bytes));
  CHECK_FALSE(event.done());
  CHECK_FALSE(must(event.wait_for(1000)));
  const int fd = must(event.fd());
  CHECK_FALSE(readable(fd, 0));
  CHECK(readable(fd, 20'000));
  CHECK(event.done());
  CHECK(must(event.wait_for(~uint64_t{0})));
  CHECK(must(event.fd()) == fd);
  const DeviceEvent late = must(stream->upload(buffer, 0, std::span(bytes).first(1)));
  must(late.wait());
  CHECK(readable(must(late.fd()), 0));           // asked for afterwards
  CHECK(readable(must(DeviceEvent().fd()), 0));  // done from the start
}

TEST_CASE("DeviceStream: wait() lets another stream's copy go first") {
  const auto device = emulated(slow());
  const auto buffer = must(device->allocate(1 * mib, "buffer"));
  const auto up = must(device->make_stream()), down = must(device->make_stream());
  const Bytes bytes = random_bytes(1 * mib, 5);
  Bytes back(1 * mib);
  const DeviceEvent uploaded = must(up->upload(buffer, 0, bytes));
  down->wait(uploaded);
  must(must(down->download(back, buffer, 0)).wait());
  CHECK(back == bytes);
}

TEST_CASE("DeviceStream: streams that wait for each other's earlier copies go on") {
  const auto device = emulated();
  const auto buffer = must(device->allocate(4 * kib, "buffer"));
  const auto one = must(device->make_stream()), two = must(device->make_stream());
  const Bytes bytes = random_bytes(4 * kib, 6);
  DeviceEvent last;
  for (int round = 0; round < 200; ++round) {
    const DeviceEvent first = must(one->upload(buffer, 0, bytes));
    two->wait(first);
    last = must(two->upload(buffer, 0, bytes));
    one->wait(last);
  }
  must(last.wait());
  must(one->record().wait());
}

TEST_CASE("DeviceStream: parts outside of a buffer and buffers of other devices are refused") {
  const auto device = emulated(), other = emulated();
  const auto buffer = must(device->allocate(1000, "buffer"));
  const auto stranger = must(other->allocate(1000, "stranger"));
  const auto stream = must(device->make_stream());
  Bytes bytes(1000);
  CHECK(stream->upload(buffer, 1, bytes).error().code == ErrorCode::invalid_argument);
  CHECK(stream->upload(buffer, ~uint64_t{0}, bytes).error().code == ErrorCode::invalid_argument);
  CHECK(stream->download(bytes, buffer, 1001).error().code == ErrorCode::invalid_argument);
  CHECK(stream->upload(stranger, 0, bytes).error().code == ErrorCode::invalid_argument);
  CHECK(stream->copy(buffer, 0, stranger, 0, 1000).error().code == ErrorCode::invalid_argument);
  CHECK(stream->upload(nullptr, 0, bytes).error().code == ErrorCode::invalid_argument);
  must(must(stream->upload(buffer, 1000, std::span<const std::byte>())).wait());
}

TEST_CASE("DeviceStream: a buffer that its owner drops lives until its copies are done") {
  const auto device = emulated(slow());
  auto buffer = must(device->allocate(1 * mib, "buffer"));
  const auto stream = must(device->make_stream());
  const Bytes bytes = random_bytes(1 * mib, 7);
  const DeviceEvent event = must(stream->upload(buffer, 0, bytes));
  buffer.reset();
  CHECK(must(device->use()).allocated_bytes == 1 * mib);
  must(event.wait());
  CHECK(must(device->use()).allocated_bytes == 0);
}

TEST_CASE("DeviceStream: its end waits for what was begun") {
  const auto device = emulated(slow());
  const auto buffer = must(device->allocate(1 * mib, "buffer"));
  auto stream = must(device->make_stream());
  const Bytes bytes = random_bytes(1 * mib, 8);
  const DeviceEvent event = must(stream->upload(buffer, 0, bytes));
  stream.reset();
  CHECK(event.done());
}

TEST_CASE("DeviceStream: what a Finish returns is the event's result") {
  const auto device = emulated();
  const auto buffer = must(device->allocate(4096, "buffer"));
  const auto stream = must(device->make_stream());
  const Bytes bytes(4096);
  bool copied_well = false;
  const DeviceEvent event = must(stream->upload(buffer, 0, bytes, [&](Status copied) -> Status {
    copied_well = copied.ok();
    return Error{ErrorCode::busy, 0, "test", "refused afterwards"};
  }));
  CHECK(event.wait().error().code == ErrorCode::busy);
  CHECK(copied_well);
}

#ifndef __SANITIZE_THREAD__  // its memcpy does not survive a jump
TEST_CASE("DeviceStream: host memory that is fenced during a copy is an error, and the next copy works") {
  UniqueFd file(::memfd_create("lease", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.get(), 2 * mib) == 0);
  void* at = ::mmap(nullptr, 2 * mib, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  REQUIRE(at != MAP_FAILED);
  REQUIRE(::ftruncate(file.get(), 0) == 0);  // as a manager fences
  const auto device = emulated();
  const auto buffer = must(device->allocate(2 * mib, "buffer"));
  const auto stream = must(device->make_stream());
  const DeviceEvent lost = must(stream->upload(buffer, 0, {static_cast<std::byte*>(at), 2 * mib}));
  const Status status = lost.wait();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::lease_expired);
  const Bytes bytes = random_bytes(2 * mib, 9);
  must(must(stream->upload(buffer, 0, bytes)).wait());
  ::munmap(at, 2 * mib);
}
#endif
