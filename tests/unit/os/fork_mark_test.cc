// SPDX-License-Identifier: Apache-2.0
// Children are told from the process that made the mark, however they were made.
#include "core/os/fork_mark.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace terrace::os {
namespace {

int ends_with(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_CASE("a mark is here in its process, in each of its threads") {
  const ForkMark mark;
  CHECK(mark.is_here());
  bool in_thread = false;
  std::thread([&] { in_thread = mark.is_here(); }).join();
  CHECK(in_thread);
}

TEST_CASE("a child of fork, and of clone without glibc, is told from the parent; so is its child") {
  const ForkMark mark;
  const pid_t child = ::fork();
  if (child == 0) {
    const ForkMark own;
    ::_exit(!mark.is_here() && own.is_here() ? 7 : 1);
  }
  CHECK(ends_with(child) == 7);
  const auto cloned = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (cloned == 0) {
    const auto again = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
    if (again == 0) ::syscall(SYS_exit_group, mark.is_here() ? 1 : 9);
    int status = 0;
    ::waitpid(again, &status, 0);
    ::syscall(SYS_exit_group, !mark.is_here() && WEXITSTATUS(status) == 9 ? 8 : 1);
  }
  CHECK(ends_with(cloned) == 8);
  CHECK(mark.is_here());
}

}  // namespace
}  // namespace terrace::os
