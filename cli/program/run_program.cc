// SPDX-License-Identifier: Apache-2.0
#include "cli/program/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/clock.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"

namespace terrace::cli {

namespace {

// Without the signals that this process has blocked.
int spawn(const std::string& program, std::vector<std::string> words, int out, int err, pid_t& pid) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int failed = posix_spawn(&pid, program.c_str(), &actions, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return failed;
}

// How long poll() may wait, in ms; -1: without end.
int left_ms(uint64_t until_ns) {
  if (until_ns == 0) return -1;
  const uint64_t now_ns = SystemClock().now_ns();
  return now_ns >= until_ns
             ? 0
             : static_cast<int>(std::min<uint64_t>((until_ns - now_ns) / ns_per_ms + 1, 3'600'000));
}

}  // namespace

Result<ProgramOutput> run_program(const std::string& program, const std::vector<std::string>& arguments,
                                  uint64_t limit_ns) {
  constexpr const char* where = "run_program";
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return os_error(errno, where, "cannot make a pipe");
  const UniqueFd out_end(out[0]);
  UniqueFd out_child(out[1]);
  if (pipe2(err, O_CLOEXEC) != 0) return os_error(errno, where, "cannot make a pipe");
  const UniqueFd err_end(err[0]);
  UniqueFd err_child(err[1]);
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  pid_t pid = 0;
  const int failed = spawn(program, std::move(words), out_child.get(), err_child.get(), pid);
  if (failed != 0) return os_error(failed, where, "cannot run " + program);
  out_child.reset();
  err_child.reset();

  ProgramOutput output;
  const uint64_t until_ns = limit_ns == 0 ? 0 : SystemClock().now_ns() + limit_ns;
  bool late = false;
  pollfd ends[2] = {{.fd = out_end.get(), .events = POLLIN, .revents = 0},
                    {.fd = err_end.get(), .events = POLLIN, .revents = 0}};
  while (!late && (ends[0].fd >= 0 || ends[1].fd >= 0)) {
    if (poll(ends, 2, left_ms(until_ns)) < 0 && errno != EINTR) break;
    for (pollfd& end : ends) {
      if (end.fd < 0 || end.revents == 0) continue;
      char part[16 * kib];
      const ssize_t got = read(end.fd, part, sizeof(part));
      if (got > 0) (&end == ends ? output.out : output.err).append(part, static_cast<size_t>(got));
      if (got == 0 || (got < 0 && errno != EINTR)) end.fd = -1;
    }
    late = left_ms(until_ns) == 0;
  }
  if (late) kill(pid, SIGKILL);
  while (waitpid(pid, &output.status, 0) < 0 && errno == EINTR) {
  }
  if (late)
    return Error{.code = ErrorCode::unavailable,
                 .where = where,
                 .detail = program + " did not end within " + format_duration(limit_ns) + ", and was killed"};
  return output;
}

}  // namespace terrace::cli
