// SPDX-License-Identifier: Apache-2.0
// Page nodes: on this machine's first node, which every machine has.
#include "core/os/page_nodes.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/units.h"
#include "core/os/memory_map.h"
#include "core/os/node_attributes.h"
#include "tests/support/skip.h"

using namespace terrace;
using namespace terrace::os;

namespace {

uint64_t allocated(int fd) {
  struct stat status {};
  REQUIRE(::fstat(fd, &status) == 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

// A container may forbid the calls; that is said, not passed over.
bool forbidden(const Error& error) {
  if (error.code != ErrorCode::permission_denied && error.code != ErrorCode::unsupported) return false;
  TERRACE_SKIP(memory_policy, error.to_string());
  return true;
}

}  // namespace

TEST_CASE("page nodes: a bound file's pages are where they were bound to, and binding takes no memory") {
  const std::vector<int> nodes = online_nodes();
  if (nodes.empty()) {
    TERRACE_SKIP(memory_policy, "a kernel without NUMA");
    return;
  }
  const int node = nodes.front();
  auto file = make_memory_file("terrace-test", 4 * mib);
  REQUIRE(file.ok());
  if (const Status bound = bind_file(file->get(), {0, 4 * mib}, node); !bound.ok()) {
    REQUIRE_MESSAGE(forbidden(bound.error()), bound.error().to_string());
    return;
  }
  CHECK(allocated(file->get()) == 0);
  REQUIRE(::fallocate(file->get(), 0, 0, 4 * mib) == 0);
  const auto found = nodes_of_file(file->get(), {0, 4 * mib}, 10'000);
  REQUIRE_MESSAGE(found.ok(), found.error().to_string());
  CHECK(found->on.size() == 1);
  CHECK(found->on.at(node) == 4 * mib / page_bytes());
  CHECK(found->elsewhere(node) == 0);
  CHECK(found->elsewhere(node + 1) == 4 * mib / page_bytes());
  CHECK(found->words() == "1024 on node " + std::to_string(node));
}

TEST_CASE("page nodes: of a long range some pages are looked at, the first and the last among them") {
  auto file = make_memory_file("terrace-test", 64 * mib);
  REQUIRE(file.ok());
  const auto found = nodes_of_file(file->get(), {0, 64 * mib}, 5);
  if (!found.ok() && forbidden(found.error())) return;
  REQUIRE(found.ok());
  uint64_t looked_at = 0;
  for (const auto& [node, pages] : found->on) looked_at += pages;
  CHECK(looked_at == 5);
  const uint64_t page = page_bytes();
  CHECK(::lseek(file->get(), 0, SEEK_DATA) == 0);
  CHECK(::lseek(file->get(), static_cast<off_t>(64 * mib - page), SEEK_DATA) ==
        static_cast<off_t>(64 * mib - page));
}

TEST_CASE("page nodes: a file that is shorter than asked is an error, not a signal") {
  const int fd = ::memfd_create("terrace-test", MFD_CLOEXEC);
  REQUIRE(fd >= 0);
  const UniqueFd file(fd);
  REQUIRE(::ftruncate(fd, 4 * kib) == 0);
  const auto found = nodes_of_file(fd, {0, 2 * mib}, 8);
  REQUIRE(!found.ok());
  CHECK((found.error().code == ErrorCode::io_error || found.error().code == ErrorCode::unsupported));
}

TEST_CASE("page nodes: a node without memory cannot be bound to") {
  auto file = make_memory_file("terrace-test", 4 * mib);
  REQUIRE(file.ok());
  for (const int node : {-1, 1000, 1 << 20}) CHECK(!bind_file(file->get(), {0, 4 * mib}, node).ok());
}
