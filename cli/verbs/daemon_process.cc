// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t log_lines_shown = 12;
constexpr uint64_t log_bytes_shown = 16 * kib;

std::string program_directory() {
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  return failed ? std::string() : self.parent_path().string();
}

// The end of what was appended to the log since `from`.
std::string log_tail(const std::string& path, uint64_t from) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const auto size = static_cast<uint64_t>(std::max<std::streamoff>(file.tellg(), 0));
  file.seekg(static_cast<std::streamoff>(std::max(from, size > log_bytes_shown ? size - log_bytes_shown : 0)));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::string text;
  for (size_t at = lines.size() > log_lines_shown ? lines.size() - log_lines_shown : 0; at < lines.size();
       ++at) {
    text += "\n  " + lines[at];
  }
  return text.empty() ? "\n  (its log is empty)" : text;
}

std::string describe_status(int status) {
  if (WIFEXITED(status)) return "ended with exit status " + std::to_string(WEXITSTATUS(status));
  if (WIFSIGNALED(status)) return "was ended by signal " + std::to_string(WTERMSIG(status));
  return "ended";
}

// terraced says 2 for what its configuration or flags have wrong, 1 for what keeps it from starting (its state
// locked, no room for its memory); anything else is no answer of its own.
ErrorCode code_of_end(int status) {
  constexpr int cannot_start = 1;
  constexpr int usage = 2;
  if (WIFEXITED(status) && WEXITSTATUS(status) == usage) return ErrorCode::invalid_argument;
  if (WIFEXITED(status) && WEXITSTATUS(status) == cannot_start) return ErrorCode::busy;
  return ErrorCode::unavailable;
}

// In the child: only async-signal-safe calls from here to exec.
[[noreturn]] void become_daemon(const std::string& program, char* const* arguments, int log_fd, int error_fd) {
  setsid();
  struct sigaction defaults {};
  defaults.sa_handler = SIG_DFL;
  sigaction(SIGPIPE, &defaults, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null_fd = ::open("/dev/null", O_RDONLY);
  dup2(null_fd, STDIN_FILENO);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  execv(program.c_str(), arguments);
  const int failed = errno;
  [[maybe_unused]] const ssize_t told = write(error_fd, &failed, sizeof(failed));
  _exit(127);
}

// Ends a daemon that this process started and that is of no use.
void end_child(pid_t pid) {
  kill(pid, SIGTERM);
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (waitpid(pid, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

}  // namespace

Result<std::string> find_daemon_program() {
  std::vector<std::string> places;
  if (const char* named = std::getenv("TERRACED"); named != nullptr && *named != '\0') {
    places.push_back(named);
  } else {
    const std::string here = program_directory();
    for (const char* place :
         {"/terraced", "/../daemon/terraced", "/../sbin/terraced", "/../libexec/terraced"}) {
      places.push_back(here + place);
    }
    const char* path = std::getenv("PATH");
    std::istringstream directories(path == nullptr ? "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin"
                                                   : path);
    for (std::string directory; std::getline(directories, directory, ':');) {
      if (!directory.empty()) places.push_back(directory + "/terraced");
    }
  }
  std::string tried;
  for (const std::string& place : places) {
    std::error_code ignored;
    if (fs::is_regular_file(place, ignored) && access(place.c_str(), X_OK) == 0)
      return fs::canonical(place).string();
    tried += (tried.empty() ? "" : ", ") + place;
  }
  return Error{.code = ErrorCode::not_found,
               .where = "find_daemon_program",
               .detail = "cannot find the program terraced (tried " + tried + "); set TERRACED to its path"};
}

std::string listening_socket_of(pid_t pid) {
  std::map<std::string, int> descriptor_of;  // by inode
  std::error_code failed;
  const std::string descriptors = "/proc/" + std::to_string(pid) + "/fd";
  for (fs::directory_iterator at(descriptors, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(at->path(), gone);
    if (target.rfind("socket:[", 0) == 0)
      descriptor_of[target.substr(8, target.size() - 9)] = std::atoi(at->path().filename().c_str());
  }
  // Of several the main one, which was bound first.
  std::pair<int, std::string> first{INT_MAX, ""};
  // Num RefCount Protocol Flags Type St Inode Path; flag 0x10000 is a listening socket.
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string number, references, protocol, flags, type, state, inode, path;
    fields >> number >> references >> protocol >> flags >> type >> state >> inode;
    std::getline(fields >> std::ws, path);
    const auto descriptor = descriptor_of.find(inode);
    if (flags == "00010000" && !path.empty() && path[0] == '/' && descriptor != descriptor_of.end())
      first = std::min(first, {descriptor->second, path});
  }
  return first.second;
}

bool is_daemon_process(pid_t pid) {
  std::error_code failed;
  std::string name = fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", failed).filename();
  if (failed) {  // another user's process: its command name is readable still
    std::ifstream comm("/proc/" + std::to_string(pid) + "/comm");
    std::getline(comm, name);
  }
  constexpr std::string_view deleted = " (deleted)";  // the program was upgraded while it runs
  if (name.size() > deleted.size() && name.ends_with(deleted)) name.resize(name.size() - deleted.size());
  return name == "terraced";
}

Result<StartedDaemon> start_daemon(const StartOptions& options) {
  constexpr const char* where = "start_daemon";
  const UniqueFd log(::open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
  if (!log.valid()) return os_error(errno, where, "cannot open the log " + options.log_path);
  const off_t log_begin = lseek(log.get(), 0, SEEK_END);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return os_error(errno, where, "cannot make a pipe");
  const UniqueFd exec_failed(ends[0]);
  UniqueFd exec_failed_child(ends[1]);

  std::vector<char*> arguments;
  std::string name = options.program;
  std::vector<std::string> copies = options.arguments;
  arguments.push_back(name.data());
  for (std::string& argument : copies) arguments.push_back(argument.data());
  arguments.push_back(nullptr);

  const pid_t pid = fork();
  if (pid < 0) return os_error(errno, where, "cannot start a process");
  if (pid == 0) become_daemon(options.program, arguments.data(), log.get(), exec_failed_child.get());
  exec_failed_child.reset();
  int os_errno = 0;
  if (read(exec_failed.get(), &os_errno, sizeof(os_errno)) == sizeof(os_errno)) {
    waitpid(pid, nullptr, 0);
    return os_error(os_errno, where, "cannot run " + options.program);
  }

  const uint64_t deadline_ns = SystemClock().now_ns() + options.wait_ns;
  for (;;) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == pid) {
      return Error{.code = code_of_end(status),
                   .where = where,
                   .detail = "terraced " + describe_status(status) + " before it listened; its last words in " +
                             options.log_path + ":" +
                             log_tail(options.log_path, static_cast<uint64_t>(log_begin))};
    }
    if (std::string path = listening_socket_of(pid); !path.empty()) return StartedDaemon{pid, path};
    if (SystemClock().now_ns() > deadline_ns) {
      end_child(pid);
      return Error{.code = ErrorCode::unavailable,
                   .where = where,
                   .detail = "terraced did not listen within " + format_duration(options.wait_ns) +
                             " and was ended (--wait gives it longer); its last words in " + options.log_path +
                             ":" + log_tail(options.log_path, static_cast<uint64_t>(log_begin))};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Result<UniqueFd> open_process(pid_t pid) {
  UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid())
    return os_error(errno, "open_process", "there is no process " + std::to_string(pid) + " here");
  return process;
}

Status signal_process(const UniqueFd& process, int number) {
  if (syscall(SYS_pidfd_send_signal, process.get(), number, nullptr, 0) != 0)
    return os_error(errno, "signal_process", "cannot send the signal");
  return {};
}

bool wait_for_end(const UniqueFd& process, uint64_t wait_ns) {
  pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
  const uint64_t deadline_ns = SystemClock().now_ns() + wait_ns;
  for (;;) {
    const uint64_t now_ns = SystemClock().now_ns();
    const uint64_t left_ms = now_ns >= deadline_ns ? 0 : (deadline_ns - now_ns) / ns_per_ms + 1;
    const int ready = poll(&ended, 1, static_cast<int>(std::min<uint64_t>(left_ms, 3'600'000)));
    if (ready > 0) return true;
    if (ready == 0 && SystemClock().now_ns() >= deadline_ns) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace terrace::cli
