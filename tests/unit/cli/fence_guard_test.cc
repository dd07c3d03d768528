// SPDX-License-Identifier: Apache-2.0
// A fence met while a command reads: the command lives, and knows.
#include "cli/verbs/fence_guard.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "core/base/unique_fd.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

constexpr size_t mapped_bytes = 1 << 20;

// Memory that can be fenced as the emulated backend does it: by cutting the file.
struct Memory {
  Memory() : fd(memfd_create("fence", MFD_CLOEXEC)) {
    REQUIRE(ftruncate(fd.get(), mapped_bytes) == 0);
    void* at = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    REQUIRE(at != MAP_FAILED);
    bytes = {static_cast<std::byte*>(at), mapped_bytes};
  }
  ~Memory() { munmap(bytes.data(), mapped_bytes); }
  std::byte read(size_t at) const { return *static_cast<volatile std::byte*>(bytes.data() + at); }

  UniqueFd fd;
  std::span<std::byte> bytes;
};

}  // namespace

TEST_CASE("FenceGuard: nothing is met while the memory is there") {
  const Memory memory;
  memory.bytes[5] = std::byte{7};
  const FenceGuard guard(memory.bytes);
  CHECK(memory.read(5) == std::byte{7});
  CHECK(!FenceGuard::fenced());
}

TEST_CASE("FenceGuard: a fence during a read gives zeros and is known, for all of the mapping") {
  const Memory memory;
  memory.bytes[5] = std::byte{7};
  const FenceGuard guard(memory.bytes);
  REQUIRE(ftruncate(memory.fd.get(), 0) == 0);
  CHECK(memory.read(mapped_bytes - 1) == std::byte{0});
  CHECK(FenceGuard::fenced());
  CHECK(memory.read(5) == std::byte{0});
}

TEST_CASE("FenceGuard: a new guard begins anew") {
  const Memory memory;
  const FenceGuard guard(memory.bytes);
  CHECK(!FenceGuard::fenced());
}

TEST_CASE("FenceGuard: a fault elsewhere still ends the process by SIGBUS") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGBUS, SIG_DFL);
    const UniqueFd other(memfd_create("other", MFD_CLOEXEC));
    void* at = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, other.get(), 0);
    std::byte own[16] = {};
    const FenceGuard guard(own);
    [[maybe_unused]] const std::byte read = *static_cast<volatile std::byte*>(at);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGBUS);
}
