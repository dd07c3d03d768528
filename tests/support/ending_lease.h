// SPDX-License-Identifier: Apache-2.0
// Memory that goes away as a lease's does when it is fenced: the file behind the mapping is cut.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <span>

namespace terrace::test {

struct EndingLease {
  static constexpr size_t bytes = 16 << 20;
  int fd = ::memfd_create("lease", MFD_CLOEXEC);
  std::span<std::byte> memory;

  EndingLease() {
    REQUIRE(::ftruncate(fd, bytes) == 0);
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(at != MAP_FAILED);
    memory = {static_cast<std::byte*>(at), bytes};
  }
  ~EndingLease() {
    ::munmap(memory.data(), bytes);
    ::close(fd);
  }
  void fence() const { REQUIRE(::ftruncate(fd, 0) == 0); }
};

}  // namespace terrace::test
