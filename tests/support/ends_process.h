// SPDX-License-Identifier: Apache-2.0
// What a broken invariant (TERRACE_CHECK) says, by doing it in a child.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace terrace::test {

// Returns what `act` wrote to stderr if it aborted; empty if it returned, or ended in another way.
template <typename Act>
std::string abort_message(Act act) {
  int channel[2];
  if (::pipe(channel) != 0) return {};
  const pid_t child = ::fork();
  if (child < 0) return {};
  if (child == 0) {
    const rlimit none{0, 0};
    (void)::setrlimit(RLIMIT_CORE, &none);
    std::signal(SIGABRT, SIG_DFL);  // the test framework would report it
    ::dup2(channel[1], STDERR_FILENO);
    ::close(channel[0]);
    ::close(channel[1]);
    act();
    ::_exit(0);
  }
  ::close(channel[1]);
  std::string text;
  char part[512];
  for (ssize_t n = 0; (n = ::read(channel[0], part, sizeof(part))) > 0;)
    text.append(part, static_cast<size_t>(n));
  ::close(channel[0]);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return {};
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? text : std::string();
}

}  // namespace terrace::test
