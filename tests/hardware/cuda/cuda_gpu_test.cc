// SPDX-License-Identifier: Apache-2.0
// The CUDA device on a real GPU: what the fake driver cannot show. Exits with 77 where there is none.
//
// Also answers what docs/design/0013-hbm.md leaves open: which mappings the driver registers.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "terrace/device_replicas.h"

using namespace terrace;

namespace {

using Bytes = std::vector<std::byte>;
std::shared_ptr<DeviceMemory> gpu;

template <typename Value>
Value must(Result<Value> result) {
  REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.error().to_string()));
  return std::move(result).value();
}

void must(const Status& status) {
  REQUIRE_MESSAGE(status.ok(), (status.ok() ? "" : status.error().to_string()));
}

void fill(std::span<std::byte> bytes, uint64_t seed) {
  Prng prng(seed);
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = prng.next();
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, bytes.size() - at));
  }
}

// A mapping of a file; of memory without one.
struct Mapped {
  Mapped(int fd, size_t bytes, int protection = PROT_READ | PROT_WRITE)
      : memory(::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0)), count(bytes) {
    REQUIRE(memory != MAP_FAILED);
  }
  ~Mapped() { ::munmap(memory, count); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  std::span<std::byte> span() { return {static_cast<std::byte*>(memory), count}; }
  void* memory;
  size_t count;
};

void check_round_trip(std::span<const std::byte> bytes) {
  const auto buffer = must(gpu->allocate(bytes.size() + 3, "round trip"));
  const auto other = must(gpu->allocate(bytes.size() + 3, "copy"));
  const auto stream = must(gpu->make_stream());
  Bytes back(bytes.size());
  must(stream->upload(buffer, 3, bytes));
  must(stream->copy(other, 0, buffer, 0, bytes.size() + 3));
  must(must(stream->download(back, other, 3)).wait());
  CHECK(std::memcmp(back.data(), bytes.data(), bytes.size()) == 0);
}

void report(const std::string& what, const HostRegistration& registration) {
  MESSAGE(what << (registration.direct() ? ": registered" : ": staged, " + registration.reason()));
}

}  // namespace

TEST_CASE("GPU: says what it is") {
  MESSAGE(gpu->info().description);
  CHECK(gpu->info().capacity_bytes > 1 * gib);
  const DeviceUse before = must(gpu->use());
  const auto buffer = must(gpu->allocate(256 * mib, "buffer"));
  const DeviceUse with = must(gpu->use());
  CHECK(with.allocated_bytes == 256 * mib);
  CHECK(with.free_bytes + 256 * mib <= before.free_bytes + 4 * mib);
}

TEST_CASE("GPU: more than it has is refused in bytes") {
  const auto refused = gpu->allocate(gpu->info().capacity_bytes + gib, "too much");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::capacity_exhausted);
  MESSAGE(refused.error().to_string());
  CHECK(gpu->health().ok());
}

TEST_CASE("GPU: staged copies of any size come back unchanged") {
  for (const size_t count :
       {size_t{1}, size_t{4095}, size_t{4 * mib}, size_t{4 * mib + 1}, size_t{33 * mib + 7}}) {
    Bytes bytes(count);
    fill(bytes, count);
    check_round_trip(bytes);
  }
}

TEST_CASE("GPU: a memory file as a lease's is registered, and copied directly") {
  UniqueFd file(::memfd_create("lease", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.get(), 64 * mib) == 0);
  Mapped mapped(file.get(), 64 * mib);
  fill(mapped.span(), 1);
  const auto registration = must(gpu->register_host(mapped.span(), HostAccess::read_write));
  report("memfd", *registration);
  CHECK(registration->direct());
  check_round_trip(mapped.span().subspan(12345, 50 * mib));
}

TEST_CASE("GPU: pieces of a registration are copied over their edges") {
  CudaDeviceOptions options;
  options.register_piece_bytes = 2 * mib;
  const auto device = must(DeviceMemory::open_cuda(options));
  Bytes bytes(11 * mib), back(11 * mib);
  fill(bytes, 2);
  const auto registration = must(device->register_host(bytes, HostAccess::read_write));
  report("heap in pieces", *registration);
  const auto buffer = must(device->allocate(bytes.size(), "pieces"));
  const auto stream = must(device->make_stream());
  must(stream->upload(buffer, 0, bytes));
  must(must(stream->download(back, buffer, 0)).wait());
  CHECK(bytes == back);
}

TEST_CASE("GPU: read-only mappings and files of a disk work, directly or not") {
  UniqueFd file(::memfd_create("lease", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.get(), 8 * mib) == 0);
  Mapped mapped(file.get(), 8 * mib, PROT_READ);
  const auto read_only = must(gpu->register_host(mapped.span(), HostAccess::read_only));
  report("read-only memfd", *read_only);
  check_round_trip(mapped.span());
  char path[] = "/var/tmp/terrace-gpu-XXXXXX";
  UniqueFd disk(::mkstemp(path));
  REQUIRE(disk.valid());
  ::unlink(path);
  REQUIRE(::ftruncate(disk.get(), 8 * mib) == 0);
  Mapped of_disk(disk.get(), 8 * mib);
  fill(of_disk.span(), 3);
  const auto registration = must(gpu->register_host(of_disk.span(), HostAccess::read_write));
  report("a disk's file", *registration);
  check_round_trip(of_disk.span());
}

TEST_CASE("GPU: a lease that is fenced while it is registered harms neither process nor device") {
  UniqueFd file(::memfd_create("lease", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.get(), 8 * mib) == 0);
  Mapped mapped(file.get(), 8 * mib);
  fill(mapped.span(), 4);
  const Bytes before(mapped.span().begin(), mapped.span().end());
  const auto registration = must(gpu->register_host(mapped.span(), HostAccess::read_write));
  report("memfd to be fenced", *registration);
  REQUIRE(::ftruncate(file.get(), 0) == 0);
  const auto buffer = must(gpu->allocate(8 * mib, "buffer"));
  const auto stream = must(gpu->make_stream());
  const Status status = must(stream->upload(buffer, 0, mapped.span())).wait();
  CHECK(gpu->health().ok());
  if (!registration->direct()) {  // staged: the pages are gone
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::lease_expired);
    return;
  }
  // The pinned pages are still ours, with our bytes: never somebody else's.
  must(status);
  Bytes back(before.size());
  must(must(stream->download(back, buffer, 0)).wait());
  CHECK(back == before);
}

// The cut comes at another moment each time: before, within and after the pieces.
TEST_CASE(
    "GPU: a lease that is fenced during a staged copy fails that copy, in either direction, and no other") {
  const uint64_t size = 64 * mib;
  const auto buffer = must(gpu->allocate(size, "buffer"));
  const auto stream = must(gpu->make_stream());
  int failed = 0;
  for (int round = 0; round < 40; ++round) {
    UniqueFd file(::memfd_create("lease", MFD_CLOEXEC));
    REQUIRE(::ftruncate(file.get(), static_cast<off_t>(size)) == 0);
    Mapped mapped(file.get(), size);
    std::memset(mapped.memory, round, size);
    const bool up = round % 2 == 0;
    const DeviceEvent event =
        up ? must(stream->upload(buffer, 0, mapped.span())) : must(stream->download(mapped.span(), buffer, 0));
    std::this_thread::sleep_for(std::chrono::microseconds(500 * (round / 2)));
    REQUIRE(::ftruncate(file.get(), 0) == 0);
    const Status status = event.wait();
    if (!status.ok()) {
      ++failed;
      CHECK(status.error().code == ErrorCode::lease_expired);
    }
    Bytes after(mib, std::byte{0x77});
    check_round_trip(after);
  }
  CHECK(failed > 0);
  CHECK(gpu->health().ok());
}

TEST_CASE("GPU: streams of several threads copy both ways at once, registered and not") {
  constexpr int threads = 6;
  std::vector<std::thread> running;
  std::atomic<int> wrong = 0;
  for (int index = 0; index < threads; ++index) {
    running.emplace_back([index, &wrong] {
      const auto stream = gpu->make_stream();
      const auto buffer = gpu->allocate(8 * mib + 17, "buffer");
      Bytes bytes(8 * mib + 17), back(bytes.size());
      const auto registration = index % 2 == 0 ? gpu->register_host(bytes, HostAccess::read_write)
                                               : Result<std::unique_ptr<HostRegistration>>(nullptr);
      for (int round = 0; round < 20; ++round) {
        fill(bytes, static_cast<uint64_t>(index * 1000 + round));
        if (!(*stream)->upload(*buffer, 0, bytes)->wait().ok()) ++wrong;
        if (!(*stream)->download(back, *buffer, 0)->wait().ok() || back != bytes) ++wrong;
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("GPU: a stream that waits for another's event sees its bytes") {
  const uint64_t size = 32 * mib;
  Bytes bytes(size), back(size);
  const auto from = must(gpu->register_host(bytes, HostAccess::read_write));
  const auto buffer = must(gpu->allocate(size, "buffer"));
  const auto up = must(gpu->make_stream()), down = must(gpu->make_stream());
  for (uint64_t round = 0; round < 20; ++round) {
    fill(bytes, 100 + round);
    down->wait(must(up->upload(buffer, 0, bytes)));
    must(must(down->download(back, buffer, 0)).wait());
    CHECK(back == bytes);
  }
}

// What is left is less than the budget says: a framework has the rest.
TEST_CASE("GPU: a device with less than the budget evicts replicas, and refuses only what is pinned away") {
  constexpr uint64_t size = 128 * mib, left = 600 * mib;
  const DeviceUse before = must(gpu->use());
  const auto others = must(gpu->allocate(before.free_bytes - left, "a framework"));
  const auto replicas = must(DeviceReplicas::make(gpu, {.budget_bytes = before.capacity_bytes}));
  Bytes bytes(size);
  fill(bytes, 5);
  const auto registration = must(gpu->register_host(bytes, HostAccess::read_write));
  const auto source = [&](uint64_t id) {
    return ReplicaSource{.id = id, .name = "tensor", .bytes = bytes, .version_now = {}};
  };
  for (uint64_t id = 0; id < 20; ++id) must(must(replicas->fetch(source(id), 2)).ready().wait());
  CHECK(replicas->stats().evicted >= 15);
  std::vector<Replica> pinned;
  Result<Replica> next = Replica();
  for (uint64_t id = 100; id < 120; ++id) {
    next = replicas->fetch(source(id), 2);
    if (!next.ok()) break;
    must(next->ready().wait());
    pinned.push_back(std::move(*next));
  }
  REQUIRE_FALSE(next.ok());
  CHECK(next.error().code == ErrorCode::capacity_exhausted);
  MESSAGE(next.error().to_string());
  CHECK(pinned.size() >= 3);
  pinned.clear();
  must(must(replicas->fetch(source(200), 2)).ready().wait());
  CHECK(gpu->health().ok());
}

TEST_CASE("GPU: an event's descriptor becomes readable") {
  Bytes bytes(64 * mib);
  const auto buffer = must(gpu->allocate(bytes.size(), "buffer"));
  const auto stream = must(gpu->make_stream());
  const DeviceEvent event = must(stream->upload(buffer, 0, bytes));
  pollfd waited{.fd = must(event.fd()), .events = POLLIN, .revents = 0};
  CHECK(::poll(&waited, 1, 20'000) == 1);
  CHECK(event.done());
}

TEST_CASE("GPU: replicas are evicted under a budget, and have the right bytes") {
  const auto replicas = must(DeviceReplicas::make(gpu, {.budget_bytes = 64 * mib}));
  std::vector<Bytes> tensors(12, Bytes(16 * mib));
  for (size_t id = 0; id < tensors.size(); ++id) fill(tensors[id], id);
  const auto stream = must(gpu->make_stream());
  Bytes back(16 * mib);
  for (int round = 0; round < 3; ++round) {
    for (size_t id = 0; id < tensors.size(); ++id) {
      const Replica replica =
          must(replicas->fetch({.id = id, .name = "tensor", .bytes = tensors[id], .version_now = {}}, 2));
      must(replica.ready().wait());
      must(must(stream->download(back, replica.buffer(), 0)).wait());
      CHECK(back == tensors[id]);
    }
  }
  CHECK(replicas->stats().evicted > 20);
  CHECK(replicas->stats().resident_bytes <= 64 * mib);
}

int main(int argc, char** argv) {
  auto opened = DeviceMemory::open_cuda({});
  if (!opened.ok()) {
    std::printf("skipped: no GPU (%s)\n", opened.error().to_string().c_str());
    return 77;
  }
  gpu = std::move(*opened);
  const int result = doctest::Context(argc, argv).run();
  gpu.reset();
  return result;
}
