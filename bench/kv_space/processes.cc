// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_space/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <new>

#include "bench/kv_space/parts.h"

namespace terrace::bench::kv {
namespace {

// In the child: dies with its parent, or is not begun when that is gone already.
void die_with(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
}

void run_instead(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  ::_exit(127);
}

}  // namespace

void sleep_ns(uint64_t ns) {
  const timespec pause{static_cast<time_t>(ns / ns_per_s), static_cast<long>(ns % ns_per_s)};
  ::nanosleep(&pause, nullptr);
}

void wait_until(const std::atomic<uint32_t>& word, uint32_t least, uint64_t pause_ns) {
  const uint64_t begin = monotonic_ns();
  while (word.load() < least) {
    if (monotonic_ns() - begin > 120 * ns_per_s) give_up("a worker got stuck");
    sleep_ns(pause_ns);
  }
}

void Worker::meet() const {
  const uint32_t workers = job().workers;
  const uint32_t place = control.arrived.fetch_add(1);
  wait_until(control.arrived, (place / workers + 1) * workers);
}

Workers::Workers(const MemoryFile& memory, const Job& job)
    : memory_(memory), shared_(sizeof(Control)), control_(new (shared_.bytes().data()) Control) {
  control_->job = job;
}

Workers::~Workers() {
  for (uint32_t index = 0; index < workers_max; ++index)
    if (pids_[index] > 0) kill(index);
}

void Workers::start(uint32_t index, const char* role) {
  const pid_t parent = ::getpid();
  const std::vector<std::string> command = {"/proc/self/exe",
                                            "--role",
                                            role,
                                            "--index",
                                            std::to_string(index),
                                            "--control-fd",
                                            std::to_string(shared_.fd()),
                                            "--memory-fd",
                                            std::to_string(memory_.fd())};
  pids_[index] = ::fork();
  if (pids_[index] < 0) give_up("no process can be started");
  if (pids_[index] != 0) return;
  die_with(parent);
  run_instead(command);
}

void Workers::kill(uint32_t index) {
  ::kill(pids_[index], SIGKILL);
  ::waitpid(pids_[index], nullptr, 0);
  pids_[index] = 0;
}

std::string Workers::ended(uint32_t index) {
  int status = 0;
  if (pids_[index] <= 0 || ::waitpid(pids_[index], &status, WNOHANG) != pids_[index]) return {};
  pids_[index] = 0;
  return WIFSIGNALED(status) ? "by signal " + std::to_string(WTERMSIG(status))
                             : "with " + std::to_string(WEXITSTATUS(status));
}

void Workers::end(uint32_t index) {
  int status = 0;
  if (pids_[index] <= 0) return;
  ::waitpid(pids_[index], &status, 0);
  pids_[index] = 0;
  if (status != 0) give_up("a worker ended with wait status " + std::to_string(status));
}

void Workers::end_all() {
  control_->stop = 1;
  for (uint32_t index = 0; index < workers_max; ++index) end(index);
}

void Workers::run_all(const char* role) {
  for (uint32_t index = 0; index < control_->job.workers; ++index) start(index, role);
  for (uint32_t index = 0; index < control_->job.workers; ++index) end(index);
}

int run_role(const std::string& role, uint32_t index, int control_fd, int memory_fd) {
  const MemoryFile shared = MemoryFile::of(control_fd), memory = MemoryFile::of(memory_fd);
  const Worker me{index, *reinterpret_cast<Control*>(shared.bytes().data()), memory};
  if (role == "fill") return fill_role(me);
  if (role == "copy") return copy_role(me);
  if (role == "scale") return scale_role(me);
  if (role == "read") return read_role(me);
  if (role == "succeed") return succeed_role(me);
  if (role == "check") return check_role(me);
  return 2;
}

Program::Program(const std::vector<std::string>& command) {
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ != 0) return;
  die_with(parent);
  const int nowhere = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(nowhere, fd);
  run_instead(command);
}

Program::~Program() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Folder::Folder() {
  std::string name = "/dev/shm/terrace-bench-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) give_up("no directory in /dev/shm");
  path_ = name;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) give_up("no pipe");
  const UniqueFd waits(ends[0]);
  lives_.reset(ends[1]);
  remover_ = ::fork();
  if (remover_ < 0) give_up("no process can be started");
  if (remover_ != 0) return;
  ::setsid();  // Ctrl-C is not for this one
  ::fcntl(ends[0], F_SETFD, 0);
  run_instead({"/proc/self/exe", "--role", "remove", "--control-fd", std::to_string(ends[0]), "--path", path_});
}

Folder::~Folder() {
  lives_.reset();
  ::waitpid(remover_, nullptr, 0);
}

int remove_when_over(int pipe_fd, const std::string& path) {
  char byte = 0;
  while (::read(pipe_fd, &byte, 1) < 0 && errno == EINTR) {
  }
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  return 0;
}

}  // namespace terrace::bench::kv
