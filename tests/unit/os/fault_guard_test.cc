// SPDX-License-Identifier: Apache-2.0
#include "core/os/fault_guard.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "core/base/units.h"
#include "core/os/erase.h"

namespace terrace::os {
namespace {

// A shared mapping of which the file ends in the middle: the rest raises SIGBUS.
struct HalfGone {
  static constexpr uint64_t bytes = 8 * mib;
  int fd = ::memfd_create("half", MFD_CLOEXEC);
  std::byte* at = nullptr;

  HalfGone() {
    REQUIRE(::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    at = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    REQUIRE(::ftruncate(fd, static_cast<off_t>(bytes / 2)) == 0);
  }
  ~HalfGone() {
    ::munmap(at, bytes);
    ::close(fd);
  }
};

}  // namespace

TEST_CASE(
    "guarded: an access to memory that is gone is an answer, also nested and in several threads at once") {
  const HalfGone memory;
  CHECK(guarded([&] { std::memset(memory.at, 1, 4096); }));
  CHECK_FALSE(guarded([&] { std::memset(memory.at + HalfGone::bytes / 2, 1, 4096); }));
  bool inner = true;
  CHECK(guarded([&] {
    inner = guarded([&] { std::memset(memory.at + HalfGone::bytes / 2, 1, 4096); });
    std::memset(memory.at, 2, 4096);
  }));
  CHECK_FALSE(inner);
  std::vector<std::thread> threads;
  std::vector<int> cut_off(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&memory, &cut_off, i] {
      for (int round = 0; round < 100; ++round)
        cut_off[static_cast<size_t>(i)] +=
            !guarded([&memory] { *(memory.at + HalfGone::bytes - 1) = std::byte{1}; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(cut_off == std::vector<int>(4, 100));
}

TEST_CASE(
    "erase: memory that goes away under it is an error that says where, with one thread and with several") {
  const HalfGone memory;
  for (const unsigned threads : {1u, 3u}) {
    const auto erased = erase({memory.at, HalfGone::bytes}, {.threads = threads});
    REQUIRE_FALSE(erased.ok());
    CHECK(erased.error().code == ErrorCode::io_error);
    CHECK(erased.error().detail.find("SIGBUS") != std::string::npos);
  }
  CHECK(erase({memory.at, HalfGone::bytes / 2}, {}).ok());
}

}  // namespace terrace::os
