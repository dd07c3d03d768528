// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/memory/pmem/manager.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/memory/pmem/dax_memory.h"

namespace terrace::test {

uint64_t size_of(int fd) {
  struct stat status {};
  ::fstat(fd, &status);
  return static_cast<uint64_t>(status.st_size);
}

bool zeros(int fd, uint64_t bytes) {
  const auto mapping = DaxMapping::map(fd, 0, bytes, false);
  REQUIRE(mapping.ok());
  return std::all_of(mapping->bytes().begin(), mapping->bytes().end(),
                     [](std::byte b) { return b == std::byte{0}; });
}

void write_to(PmemBackend& backend, const std::string& name, const std::string& text) {
  const auto fd = backend.open(name, ObjectAccess::read_write);
  REQUIRE(fd.ok());
  REQUIRE(::pwrite(fd->get(), text.data(), text.size(), 4096) == static_cast<ssize_t>(text.size()));
}

std::string read_from(PmemBackend& backend, const std::string& name, size_t length) {
  const auto fd = backend.open(name, ObjectAccess::read_only);
  REQUIRE(fd.ok());
  std::string text(length, '\0');
  REQUIRE(::pread(fd->get(), text.data(), length, 4096) == static_cast<ssize_t>(length));
  return text;
}

}  // namespace terrace::test
