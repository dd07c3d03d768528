// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "core/base/unique_fd.h"
#include "terrace/tensor_space.h"

using namespace terrace;

namespace {

UniqueFd memory_file() {
  UniqueFd file(::memfd_create("space", MFD_CLOEXEC));
  REQUIRE(file.valid());
  return file;
}

}  // namespace

TEST_CASE("Ownership: a part has one owner, also of two that share a descriptor") {
  const UniqueFd file = memory_file();
  const auto a = *ownership_by_locks(file.get()), b = *ownership_by_locks(file.get());
  CHECK(*a->claim(3, [] { return uint64_t{6}; }) == 7);
  CHECK(a->claim(3, [] { return uint64_t{7}; }).error().code == ErrorCode::busy);
  CHECK(b->claim(3, [] { return uint64_t{7}; }).error().code == ErrorCode::busy);
  CHECK(*b->claim(4, [] { return uint64_t{0}; }) == 1);
  CHECK_FALSE(a->is_dead(3, 7));
  CHECK_FALSE(b->is_dead(3, 7));
  CHECK_FALSE(a->is_dead(4, 1));
  CHECK(a->is_dead(5, 1));
  a->release(3);
  CHECK(b->is_dead(3, 7));
  CHECK(*b->claim(3, [] { return uint64_t{7}; }) == 8);
}

TEST_CASE("Ownership: ends with the process, however it ends") {
  const UniqueFd file = memory_file();
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto owner = ownership_by_locks(file.get());
    const bool ok = owner.ok() && (*owner)->claim(0, [] { return uint64_t{1}; }).ok();
    const char answer = ok ? 'y' : 'n';
    (void)!::write(ready[1], &answer, 1);
    for (;;) ::pause();
  }
  char answer = 0;
  REQUIRE(::read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  const auto watcher = *ownership_by_locks(file.get());
  CHECK_FALSE(watcher->is_dead(0, 2));
  CHECK(watcher->claim(0, [] { return uint64_t{2}; }).error().code == ErrorCode::busy);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(watcher->is_dead(0, 2));
  CHECK(watcher->claim(0, [] { return uint64_t{2}; }).ok());
  ::close(ready[0]);
  ::close(ready[1]);
}
