// SPDX-License-Identifier: Apache-2.0
#include "cli/program/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/unique_fd.h"
#include "core/base/units.h"

namespace terrace::cli {

Result<ProgramOutput> run_program(const std::string& program, const std::vector<std::string>& arguments) {
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
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out_child.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err_child.get(), STDERR_FILENO);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, program.c_str(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return os_error(failed, where, "cannot run " + program);
  out_child.reset();
  err_child.reset();

  ProgramOutput output;
  pollfd ends[2] = {{.fd = out_end.get(), .events = POLLIN, .revents = 0},
                    {.fd = err_end.get(), .events = POLLIN, .revents = 0}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (poll(ends, 2, -1) < 0 && errno != EINTR) break;
    for (pollfd& end : ends) {
      if (end.fd < 0 || end.revents == 0) continue;
      char part[16 * kib];
      const ssize_t got = read(end.fd, part, sizeof(part));
      if (got > 0) (&end == ends ? output.out : output.err).append(part, static_cast<size_t>(got));
      if (got == 0 || (got < 0 && errno != EINTR)) end.fd = -1;
    }
  }
  while (waitpid(pid, &output.status, 0) < 0 && errno == EINTR) {
  }
  return output;
}

}  // namespace terrace::cli
