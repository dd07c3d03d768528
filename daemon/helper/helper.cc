// SPDX-License-Identifier: Apache-2.0
#include "daemon/helper/helper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

#include "core/base/clock.h"
#include "core/base/time_slice.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "helper";
constexpr int poll_ms = 100;

struct Pipe {
  UniqueFd read, write;
};

// Above what is wanted at fixed numbers in the helper, so that no descriptor is overwritten before it is copied.
Result<UniqueFd> high_copy(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 10));
  if (!copy.valid()) return os_error(errno, where, "no descriptor is left");
  return copy;
}

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return os_error(errno, where, "no pipe can be made");
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  // The helper's end blocks: it has nothing else to do.
  ::fcntl(pipe.write.get(), F_SETFL, 0);
  TERRACE_ASSIGN_OR_RETURN(pipe.write, high_copy(pipe.write.get()));
  return pipe;
}

Result<pid_t> start(const std::vector<std::string>& words, int input, int output, int progress) {
  std::vector<std::string> texts = {"terraced", helper_flag};
  texts.insert(texts.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, progress, helper_progress_fd);
  ::posix_spawn_file_actions_addclosefrom_np(&files, helper_progress_fd + 1);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::sigdelset(&all, SIGKILL);
  ::sigdelset(&all, SIGSTOP);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  pid_t pid = 0;
  const int failed = ::posix_spawn(&pid, "/proc/self/exe", &files, &attributes, arguments.data(), ::environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (failed != 0) return os_error(failed, where, "cannot start a process of this program");
  return pid;
}

uint64_t resident_bytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Appends what is there. False: the other end is closed.
bool read_some(int fd, std::string& bytes) {
  char part[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, part, sizeof part);
    if (got > 0)
      bytes.append(part, static_cast<size_t>(got));
    else
      return got < 0 && (errno == EAGAIN || errno == EINTR);
    if (static_cast<size_t>(got) < sizeof part) return true;
  }
}

// The last whole line of what was said; what comes behind it stays for the next time.
std::string take_last_line(std::string& said) {
  const size_t end = said.rfind('\n');
  if (end == std::string::npos) {
    if (said.size() > 4096) said.clear();
    return "";
  }
  const size_t before = end == 0 ? std::string::npos : said.rfind('\n', end - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  std::string line = said.substr(begin, end - begin);
  said.erase(0, end + 1);
  return line;
}

// A helper that runs. Whatever happens, it is gone when this is.
class Running {
 public:
  Running(pid_t pid, Pipe answer, Pipe progress)
      : pid_(pid), answer_(std::move(answer.read)), progress_(std::move(progress.read)) {}
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    if (ended_) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  Result<std::string> wait(const HelperBounds& bounds, HelperWatch& watch);

 private:
  Status check(const HelperBounds& bounds, HelperWatch& watch) const;

  pid_t pid_;
  UniqueFd answer_, progress_;
  std::string bytes_, said_;
  uint64_t began_ns_ = SystemClock().now_ns();
  bool ended_ = false;
  int status_ = 0;
};

Status Running::check(const HelperBounds& bounds, HelperWatch& watch) const {
  const auto passed = [](std::string detail) {
    return Error{.code = ErrorCode::limit_exceeded, .where = where, .detail = std::move(detail)};
  };
  if (watch.cancelled())
    return Error{.code = ErrorCode::cancelled, .where = where, .detail = "nobody waits for it any more"};
  if (SystemClock().now_ns() - began_ns_ > bounds.time_ns)
    return passed("it took longer than " + format_duration(bounds.time_ns) + ", and was ended");
  if (resident_bytes(pid_) > bounds.memory_bytes)
    return passed("it needed more than " + format_size(bounds.memory_bytes) + " of memory, and was ended");
  if (bytes_.size() > bounds.answer_bytes)
    return passed("its answer has more than " + format_size(bounds.answer_bytes) + ", and it was ended");
  return {};
}

Result<std::string> answered(const std::string& bytes, int status) {
  if (!bytes.empty() && bytes[0] == '+' && WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return bytes.substr(1);
  const size_t zero = bytes.find('\0');
  if (!bytes.empty() && bytes[0] == '-' && zero != std::string::npos) {
    uint16_t code = 0;
    std::from_chars(bytes.data() + 1, bytes.data() + zero, code);
    if (code != 0)
      return Error{.code = error_code_from_wire(code), .where = where, .detail = bytes.substr(zero + 1)};
  }
  const std::string how = WIFSIGNALED(status) ? std::string("by signal ") + std::to_string(WTERMSIG(status)) +
                                                    " (" + ::strsignal(WTERMSIG(status)) + ")"
                                              : "with status " + std::to_string(WEXITSTATUS(status));
  return Error{.code = ErrorCode::io_error,
               .where = where,
               .detail = "its process ended " + how + " and gave no answer"};
}

Result<std::string> Running::wait(const HelperBounds& bounds, HelperWatch& watch) {
  bool open = true;
  while (open || !ended_) {
    TERRACE_RETURN_IF_ERROR(check(bounds, watch));
    pollfd waited[] = {{open ? answer_.get() : -1, POLLIN, 0}, {progress_.get(), POLLIN, 0}};
    ::poll(waited, progress_.valid() ? 2 : 1, poll_ms);
    // A copy of the pipe may live on in a process that was forked meanwhile: what counts is the helper's end.
    if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
    if (open) open = read_some(answer_.get(), bytes_) && !ended_;
    if (progress_.valid() && !read_some(progress_.get(), said_)) progress_.reset();
    if (std::string line = take_last_line(said_); !line.empty()) watch.set_progress(std::move(line));
  }
  while (bytes_.size() <= bounds.answer_bytes) {  // what it wrote before its end, and was not read yet
    const size_t before = bytes_.size();
    if (!read_some(answer_.get(), bytes_) || bytes_.size() == before) break;
  }
  if (bytes_.size() > bounds.answer_bytes) return check(bounds, watch).error();
  return answered(bytes_, status_);
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;  // nobody reads: the parent is on its way to end this process
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
}

}  // namespace

Result<std::string> run_helper(const std::vector<std::string>& words, int input, const HelperBounds& bounds,
                               HelperWatch& watch) {
  TERRACE_ASSIGN_OR_RETURN(Pipe answer, make_pipe());
  TERRACE_ASSIGN_OR_RETURN(Pipe progress, make_pipe());
  UniqueFd nothing;
  if (input < 0) {
    nothing.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing.valid()) return os_error(errno, where, "cannot open /dev/null");
  }
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd read_from, high_copy(input < 0 ? nothing.get() : input));
  TERRACE_ASSIGN_OR_RETURN(const pid_t pid,
                           start(words, read_from.get(), answer.write.get(), progress.write.get()));
  answer.write.reset();
  progress.write.reset();
  if (bounds.nice != 0) ::setpriority(PRIO_PROCESS, static_cast<id_t>(pid), bounds.nice);
  return Running(pid, std::move(answer), std::move(progress)).wait(bounds, watch);
}

void begin_helper() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);
  std::ofstream("/proc/self/oom_score_adj") << "1000";
  (void)take_usual_slice();  // the manager's threads have short ones, which a child inherits
}

int answer_helper(const Result<std::string>& answer) {
  if (answer.ok()) {
    write_all(STDOUT_FILENO, "+" + *answer);
    return 0;
  }
  std::string bytes = "-" + std::to_string(static_cast<unsigned>(answer.error().code));
  bytes += '\0';
  write_all(STDOUT_FILENO, bytes + answer.error().detail);
  return 1;
}

void tell_progress(std::string_view words) {
  write_all(helper_progress_fd, std::string(words) + "\n");
}

}  // namespace terrace::daemon
