// SPDX-License-Identifier: Apache-2.0
// Timing memory: what is a cache's speed is not taken for the memory's, nothing is written, and what cannot be
// timed says so.
#include "core/os/measure_memory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/base/units.h"

using namespace terrace;
using namespace terrace::os;

namespace {

struct Memory {
  explicit Memory(size_t size) : bytes(size) {
    at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    std::memset(at, 0, size);
  }
  ~Memory() { ::munmap(at, bytes); }
  std::span<const std::byte> span() const { return {static_cast<const std::byte*>(at), bytes}; }
  void* at = nullptr;
  size_t bytes;
};

// A load that a cache close to the processor answers.
double cached_ns(std::span<const std::byte> span) {
  constexpr int loads = 100'000;
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    uint64_t at = 0;
    for (int i = 0; i < loads; ++i) at = *reinterpret_cast<const volatile uint64_t*>(span.data() + at);
    best = std::min(
        best,
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / loads);
  }
  return best;
}

}  // namespace

TEST_CASE("measure_memory: a sample that fits into any cache is still the memory's speed") {
  const Memory small(256 * kib);
  const MemorySpeed speed = measure_memory(small.span());
  REQUIRE(speed.known());
  CHECK(speed.latency_ns > 3 * cached_ns(small.span()));
  CHECK(speed.latency_ns < 100'000);
  CHECK(speed.bandwidth_bytes_per_s > 10 * mib);
}

TEST_CASE("measure_memory: nothing of it is changed, whatever is in it, and it ends in time") {
  Memory memory(measured_bytes);
  auto* const bytes = static_cast<unsigned char*>(memory.at);
  for (size_t i = 0; i < memory.bytes; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 4096);
  const std::vector<unsigned char> before(bytes, bytes + memory.bytes);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(measure_memory(memory.span(), {.time_ms = 200}).known());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));  // on a busy machine, instrumented
  CHECK(std::memcmp(before.data(), bytes, memory.bytes) == 0);
}

TEST_CASE("measure_memory: what is too little or fails under it is not measured") {
  const Memory tiny(32 * kib);
  CHECK(!measure_memory(tiny.span()).known());
  const int file = ::memfd_create("cut", 0);
  REQUIRE(::ftruncate(file, 1 * mib) == 0);
  void* const at = ::mmap(nullptr, 2 * mib, PROT_READ, MAP_SHARED, file, 0);
  REQUIRE(at != MAP_FAILED);
  CHECK(!measure_memory({static_cast<const std::byte*>(at), 2 * mib}).known());
  ::munmap(at, 2 * mib);
  ::close(file);
}
