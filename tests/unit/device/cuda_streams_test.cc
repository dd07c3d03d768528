// SPDX-License-Identifier: Apache-2.0
// When the copies of a CUDA stream are told to be done: each when it is, not when others are.
#include <array>
#include <atomic>
#include <future>
#include <optional>

#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

constexpr size_t piece_bytes = 64 * kib;  // of FakeDriver's staging buffers

// Counts the staged pieces that were begun when the copy was told.
DeviceStream::Finish note_pieces(FakeDriver& driver, std::atomic<uint64_t>& pieces) {
  return [&driver, &pieces](Status copied) {
    pieces = driver->staged_copies.load();
    return copied;
  };
}

// Keeps a stream's thread until everything of a test has been asked for.
class Gate {
 public:
  Gate(DeviceStream& stream, const std::shared_ptr<DeviceBuffer>& buffer) {
    must(stream.upload(buffer, 0, {}, [open = open_.get_future().share()](Status copied) {
      open.wait();
      return copied;
    }));
  }
  ~Gate() { open_.set_value(); }

 private:
  std::promise<void> open_;
};

}  // namespace

// Found by eight unregistered tensors whose events were all done at once, when the last one was.
TEST_CASE("CudaDevice: of many staged copies each is told when it is done, while the next ones go on") {
  FakeDriver driver;
  driver->copy_delay_us = 200;
  const auto device = driver.open();
  const auto stream = must(device->make_stream());
  constexpr size_t tensors = 8, pieces = 6;
  const Bytes bytes = random_bytes(pieces * piece_bytes, 1);
  const auto buffer = must(device->allocate(bytes.size(), "buffer"));
  Bytes back(bytes.size());
  for (const bool down : {false, true}) {
    driver->staged_copies = 0;
    std::array<std::atomic<uint64_t>, tensors> pieces_when_told{};
    std::optional<Gate> gate(std::in_place, *stream, buffer);
    for (size_t tensor = 0; tensor < tensors; ++tensor) {
      auto finish = note_pieces(driver, pieces_when_told[tensor]);
      must(down ? stream->download(back, buffer, 0, std::move(finish))
                : stream->upload(buffer, 0, bytes, std::move(finish)));
    }
    gate.reset();
    must(stream->record().wait());
    REQUIRE(driver->staged_copies == tensors * pieces);
    // Two buffers can be filled before the thread waits for the device and sees what is done.
    for (size_t tensor = 0; tensor < tensors; ++tensor) {
      CHECK(pieces_when_told[tensor].load() <= (tensor + 1) * pieces + 3);
    }
  }
  CHECK(back == bytes);
}

TEST_CASE("CudaDevice: a direct copy in front of a long staged one is told before that is made") {
  FakeDriver driver;
  driver->copy_delay_us = 200;
  const auto device = driver.open();
  const auto stream = must(device->make_stream());
  const Bytes known = random_bytes(128 * kib, 2), unknown = random_bytes(32 * piece_bytes, 3);
  const auto registration = must(device->register_host(known, HostAccess::read_only));
  REQUIRE(registration->direct());
  const auto buffer = must(device->allocate(unknown.size(), "buffer"));
  std::atomic<uint64_t> pieces_when_told = 0;
  std::optional<Gate> gate(std::in_place, *stream, buffer);
  must(stream->upload(buffer, 0, known, note_pieces(driver, pieces_when_told)));
  stream->record();
  const DeviceEvent last = must(stream->upload(buffer, 0, unknown));
  gate.reset();
  must(last.wait());
  CHECK(driver->staged_copies == 32);
  CHECK(pieces_when_told.load() <= 3);
}

TEST_CASE("CudaDevice: staged copies of one piece are told one after the other, too") {
  FakeDriver driver;
  driver->copy_delay_us = 500;
  const auto device = driver.open();
  const auto stream = must(device->make_stream());
  const Bytes bytes = random_bytes(piece_bytes, 4);
  const auto buffer = must(device->allocate(bytes.size(), "buffer"));
  std::atomic<uint64_t> pieces_when_told = 0;
  std::optional<Gate> gate(std::in_place, *stream, buffer);
  must(stream->upload(buffer, 0, bytes, note_pieces(driver, pieces_when_told)));
  for (int copy = 0; copy < 30; ++copy) must(stream->upload(buffer, 0, bytes));
  gate.reset();
  must(stream->record().wait());
  CHECK(pieces_when_told.load() <= 3);
}
