// SPDX-License-Identifier: Apache-2.0
// Registrations of host memory: one for all devices of the process, pages shared by neighbours, threads.
#include <sys/mman.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

// Memory of whole pages that nobody else has a byte of.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory_ != MAP_FAILED);
    const Bytes content = random_bytes(bytes, 1);
    std::memcpy(memory_, content.data(), bytes);
  }
  ~Pages() { ::munmap(memory_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::span<std::byte> span() { return {static_cast<std::byte*>(memory_), bytes_}; }
  std::span<std::byte> part(size_t at, size_t bytes) { return span().subspan(at, bytes); }

 private:
  void* memory_;
  size_t bytes_;
};

// Up, down to other memory: whether the bytes are right. Only the copy up is of what is registered.
bool comes_up(DeviceMemory& device, std::span<const std::byte> bytes) {
  const auto buffer = must(device.allocate(bytes.size(), "buffer"));
  const auto stream = must(device.make_stream());
  Bytes back(bytes.size());
  must(stream->upload(buffer, 0, bytes));
  must(must(stream->download(back, buffer, 0)).wait());
  return std::ranges::equal(back, bytes);
}

std::unique_ptr<HostRegistration> registered(DeviceMemory& device, std::span<const std::byte> memory) {
  return must(device.register_host(memory, HostAccess::read_write));
}

void wait_until_held(FakeDriver& driver) {
  while (driver->held == 0) std::this_thread::yield();
}

}  // namespace

// Found by the second GPU's copies of a lease, which were all staged.
TEST_CASE("HostRegistration: what one device has registered is direct on every other one") {
  FakeDriver driver;
  CudaDeviceOptions second = driver.options();
  for (const int32_t ordinal : {1, 0}) {  // another GPU; the same one, opened again
    second.ordinal = ordinal;
    Pages lease(1 * mib);
    auto one = driver.open();
    const auto two = must(DeviceMemory::open_cuda(second));
    auto ones = registered(*one, lease.span());
    const auto twos = registered(*two, lease.span());
    CHECK(ones->direct());
    CHECK(twos->direct());
    CHECK(driver->registered == 1);  // pinned once
    driver->direct_copies = 0;
    CHECK(comes_up(*one, lease.span()));
    CHECK(comes_up(*two, lease.span()));
    CHECK(driver->direct_copies == 2);
    ones.reset();
    one.reset();
    CHECK(driver->registered == 1);
    CHECK(comes_up(*two, lease.span()));
    CHECK(driver->direct_copies == 3);
  }
  CHECK(driver->registered == 0);
}

TEST_CASE("HostRegistration: neighbours that share a page are both direct, whoever goes first") {
  FakeDriver driver;
  const auto device = driver.open();
  Pages heap(16 * kib);
  const auto first = heap.part(0, 6 * kib), second = heap.part(6 * kib, 8 * kib);
  auto firsts = registered(*device, first);
  auto seconds = registered(*device, second);
  CHECK(firsts->direct());
  CHECK(seconds->direct());
  CHECK(driver->registered == 2);
  firsts.reset();
  CHECK(driver->registered == 2);  // the page in the middle is still needed
  CHECK(comes_up(*device, second));
  CHECK(driver->direct_copies == 2);  // cut at the edge of two registrations
  CHECK(driver->staged_copies == 1);  // down
  seconds.reset();
  CHECK(driver->registered == 0);
}

TEST_CASE("HostRegistration: only what is missing around and between others is registered") {
  FakeDriver driver;
  CudaDeviceOptions options = driver.options();
  options.register_piece_bytes = 64 * kib;
  const auto device = must(DeviceMemory::open_cuda(options));
  Pages lease(512 * kib);
  const auto one = registered(*device, lease.part(100 * kib, 20 * kib));
  const auto two = registered(*device, lease.part(300 * kib, 100 * kib));
  auto whole = registered(*device, lease.span());
  CHECK(whole->direct());
  CHECK(comes_up(*device, lease.span()));
  CHECK(driver->pageable_copies == 0);
  const auto inside = must(device->register_host(lease.part(250 * kib, 100 * kib), HostAccess::read_only));
  CHECK(inside->direct());
  whole.reset();
  CHECK(comes_up(*device, lease.part(250 * kib, 100 * kib)));
  CHECK(driver->pageable_copies == 0);
}

TEST_CASE("HostRegistration: one that fails half-way leaves nothing registered, and can be tried again") {
  FakeDriver driver;
  CudaDeviceOptions options = driver.options();
  options.register_piece_bytes = 64 * kib;
  const auto device = must(DeviceMemory::open_cuda(options));
  Pages lease(256 * kib);
  const auto own = registered(*device, lease.part(0, 4 * kib));
  // Another part of the program has the third piece.
  void* theirs = lease.part(128 * kib, 64 * kib).data();
  REQUIRE(driver.function<int(void*)>("fake_cuda_register")(theirs) == 0);
  const auto refused = registered(*device, lease.span());
  CHECK_FALSE(refused->direct());
  CHECK(refused->reason().find("already mapped") != std::string::npos);
  CHECK(driver->registered == 2);
  CHECK(comes_up(*device, lease.part(0, 128 * kib)));  // staged
  CHECK(driver->pageable_copies == 0);
  driver.function<void(void*)>("fake_cuda_unregister")(theirs);
  CHECK(registered(*device, lease.span())->direct());
}

TEST_CASE("HostRegistration: memory to be written is not covered by what is registered for reading") {
  FakeDriver driver;
  const auto device = driver.open();
  Pages lease(64 * kib);
  const auto reading = must(device->register_host(lease.part(0, 32 * kib), HostAccess::read_only));
  CHECK(reading->direct());
  const auto writing = registered(*device, lease.span());
  CHECK_FALSE(writing->direct());
  CHECK(writing->reason().find("for reading only") != std::string::npos);
  CHECK(must(device->register_host(lease.span(), HostAccess::read_only))->direct());
}

// Found by reading: a range that was let go was forgotten before the driver had let its pages go.
TEST_CASE("HostRegistration: who registers what another thread lets go waits for it") {
  FakeDriver driver;
  const auto device = driver.open();
  Pages lease(64 * kib);
  auto before = registered(*device, lease.span());
  driver->hold_unregister = true;
  std::thread going([&before] { before.reset(); });
  wait_until_held(driver);
  auto again = std::async(std::launch::async, [&] { return registered(*device, lease.span()); });
  CHECK(again.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  CHECK(comes_up(*device, lease.span()));  // staged meanwhile
  CHECK(driver->pageable_copies == 0);
  driver->hold_unregister = false;
  going.join();
  CHECK(again.get()->direct());
}

// Found by reading: pinning up to 64 GiB kept the mutex that each copy takes.
TEST_CASE("HostRegistration: copies of other memory go on while pages are pinned") {
  FakeDriver driver;
  const auto device = driver.open();
  Pages known(64 * kib), lease(64 * kib);
  const auto kept = registered(*device, known.span());
  driver->hold_register = true;
  auto pinned = std::async(std::launch::async, [&] { return registered(*device, lease.span()); });
  wait_until_held(driver);
  const auto buffer = must(device->allocate(64 * kib, "buffer"));
  const auto stream = must(device->make_stream());
  const DeviceEvent copied = must(stream->upload(buffer, 0, known.span()));
  CHECK(must(copied.wait_for(20 * ns_per_s)));
  CHECK(driver->direct_copies == 1);
  driver->hold_register = false;
  CHECK(pinned.get()->direct());
}

TEST_CASE("HostRegistration: threads that register and let go overlapping parts always get direct ones") {
  FakeDriver driver;
  const auto device = driver.open();
  Pages lease(64 * kib);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      Prng prng(number);
      for (int round = 0; round < 300; ++round) {
        const size_t at = prng.below(60 * kib), bytes = 1 + prng.below(64 * kib - at);
        const auto registration = device->register_host(lease.part(at, bytes), HostAccess::read_write);
        if (!registration.ok() || !(*registration)->direct()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(driver->registered == 0);
}
