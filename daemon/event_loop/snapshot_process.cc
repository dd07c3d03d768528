// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop/snapshot_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <string_view>

namespace terrace::daemon {
namespace {

// Each text behind its length; this in the place of a length says that all was said.
constexpr uint32_t end_of_found = UINT32_MAX;
constexpr int lower_priority = 5;

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

// Whether a child computes, by the processor time that it has had.
class Progress {
 public:
  explicit Progress(pid_t child) : known_(::clock_getcpuclockid(child, &clock_) == 0) {}
  // Asked each second.
  bool stands_still() {
    timespec now{};
    if (!known_ || ::clock_gettime(clock_, &now) != 0) return false;
    idle_s_ = now.tv_sec == seen_.tv_sec && now.tv_nsec == seen_.tv_nsec ? idle_s_ + 1 : 0;
    seen_ = now;
    return idle_s_ >= idle_s_max;
  }

 private:
  static constexpr int idle_s_max = 5;
  clockid_t clock_{};
  bool known_;
  timespec seen_{};
  int idle_s_ = 0;
};

// Ends, too, when the child stands still: it waits for a lock that a thread had which it does not have. The C library
// sees to its own; the allocator of g++ 12's address sanitizer does not.
// One that spins for such a lock computes all the time: it is ended once it has taken `patience_s` seconds.
std::string read_all(int fd, pid_t child, uint32_t patience_s) {
  constexpr int look_ms = 1000;
  std::string all;
  char piece[64 * 1024];
  timespec begin{}, now{};
  ::clock_gettime(CLOCK_MONOTONIC, &begin);
  for (Progress progress(child);;) {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&one, 1, look_ms);
    if (ready == 0 && progress.stands_still()) return all;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    if (patience_s != 0 && ready == 0 && now.tv_sec - begin.tv_sec >= patience_s) return all;
    if (ready <= 0) continue;
    const ssize_t got = ::read(fd, piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return all;
    all.append(piece, static_cast<size_t>(got));
  }
}

std::string pack(const SnapshotProcess::Found& found) {
  std::string bytes;
  const auto add_length = [&](uint32_t length) {
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
  };
  for (const std::string& text : found) {
    add_length(static_cast<uint32_t>(text.size()));
    bytes += text;
  }
  add_length(end_of_found);
  return bytes;
}

bool unpack(std::string_view bytes, SnapshotProcess::Found* found) {
  for (;;) {
    uint32_t length = 0;
    if (bytes.size() < sizeof(length)) return false;
    memcpy(&length, bytes.data(), sizeof(length));
    bytes.remove_prefix(sizeof(length));
    if (length == end_of_found) return bytes.empty();
    if (bytes.size() < length) return false;
    found->emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
}

// A listener that stayed open here would keep its port or path from the next manager.
void close_all_but(int pipe) {
  if (pipe > STDERR_FILENO + 1) ::close_range(STDERR_FILENO + 1, static_cast<unsigned>(pipe) - 1, 0);
  ::close_range(static_cast<unsigned>(pipe) + 1, ~0u, 0);
}

[[noreturn]] void run_child(pid_t parent, int pipe, const std::function<SnapshotProcess::Found()>& work) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it has ended already
  close_all_but(pipe);
  ::prctl(PR_SET_NAME, "terraced-check");
  ::setpriority(PRIO_PROCESS, 0, lower_priority);
  ::_exit(write_all(pipe, pack(work())) ? 0 : 1);
}

}  // namespace

Result<SnapshotProcess> SnapshotProcess::start(const std::function<Found()>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return os_error(errno, "SnapshotProcess::start", "cannot make a pipe");
  UniqueFd reading(ends[0]), writing(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0)
    return os_error(errno, "SnapshotProcess::start", "cannot make a process that looks at the state");
  if (child == 0) run_child(parent, writing.get(), work);
  return SnapshotProcess(child, std::move(reading));
}

SnapshotProcess::~SnapshotProcess() {
  if (child_ < 0) return;
  ::kill(child_, SIGKILL);
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<SnapshotProcess::Found> SnapshotProcess::wait(uint32_t patience_s) {
  const std::string said = read_all(pipe_.get(), child_, patience_s);
  ::kill(child_, SIGKILL);  // it has said all, or will not
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
  child_ = -1;
  Found found;
  if (unpack(said, &found)) return found;
  const std::string how = WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                              : "exit code " + std::to_string(WEXITSTATUS(status));
  return Error{.code = ErrorCode::io_error,
               .where = "SnapshotProcess::wait",
               .detail = "the process that looked at the state ended early (" + how + "); ask again"};
}

}  // namespace terrace::daemon
