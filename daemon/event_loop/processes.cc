// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/crc32c.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "peer_process";
constexpr int so_peerpidfd = 77;  // newer than the headers

// Field 22 of /proc/PID/stat, in clock ticks since the boot. The name in field 2 may hold blanks and brackets.
std::optional<uint64_t> start_of(uint64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  char text[1024];
  const ssize_t length = ::read(file.get(), text, sizeof(text));
  if (length <= 0) return std::nullopt;
  const std::string_view line(text, static_cast<size_t>(length));
  size_t at = line.rfind(')');
  if (at == std::string_view::npos) return std::nullopt;
  for (int field = 2; field < 22; ++field) {
    at = line.find(' ', at + 1);
    if (at == std::string_view::npos) return std::nullopt;
  }
  uint64_t ticks = 0;
  const auto read = std::from_chars(line.data() + at + 1, line.data() + line.size(), ticks);
  if (read.ec != std::errc()) return std::nullopt;
  return ticks;
}

// Numbers of the kernel's namespaces have 32 bits. Kernels without time namespaces have no file for them.
uint64_t own_space() {
  char self[16];
  const ssize_t length = ::readlink("/proc/self", self, sizeof(self));
  // A /proc of another pid namespace shows other processes under the same numbers.
  if (length <= 0 || std::string_view(self, static_cast<size_t>(length)) != std::to_string(::getpid()))
    return 0;
  struct stat pids {};
  if (::stat("/proc/self/ns/pid", &pids) != 0) return 0;
  struct stat times {};
  if (::stat("/proc/self/ns/time", &times) != 0) times.st_ino = 0;
  return static_cast<uint64_t>(pids.st_ino) ^ static_cast<uint64_t>(times.st_ino) << 32;
}

uint32_t hash_of(uint64_t number) {
  return crc32c(std::as_bytes(std::span(&number, 1)));
}

// 0: it cannot be read.
uint32_t hash_of_boot() {
  static const std::string boot = read_boot_id();
  return boot.empty() ? 0 : std::max(crc32c(std::as_bytes(std::span(boot))), 1u);
}

UniqueFd open_process(uint64_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}

// ESRCH: nobody has the number. It may still be a thread's, or that of a process group or session whose first
// process is reaped; then kernels before 6.15 answer EINVAL, later ones ENOENT. Nothing else in the call can be
// invalid: no flags, a positive number.
bool no_such_process(int error) {
  return error == ESRCH || error == EINVAL || error == ENOENT;
}

// A pidfd is readable once every thread of the process has ended.
bool readable(int fd, short events) {
  pollfd one{.fd = fd, .events = events, .revents = 0};
  return ::poll(&one, 1, 0) > 0;
}

}  // namespace

Result<ProcessId> peer_process(int socket, int32_t pid, UniqueFd* pidfd) {
  const auto refused = [pid](ErrorCode code, const char* what) {
    return Error{.code = code,
                 .where = where,
                 .detail = "process " + std::to_string(pid) + " at the other end of this connection " + what};
  };
  if (socket < 0) return refused(ErrorCode::unavailable, "is gone");
  if (pid <= 0)
    return refused(ErrorCode::unsupported, "is of another pid namespace: nobody would learn of its end");
  ProcessId id;
  id.space = own_space();
  if (id.space == 0)
    return refused(ErrorCode::unsupported,
                   "cannot be seen: /proc is not that of the manager's own pid namespace");
  UniqueFd process;
  int peer = -1;
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, so_peerpidfd, &peer, &length) == 0) {
    process = UniqueFd(peer);
  } else if (errno == ENOPROTOOPT) {  // an older kernel; otherwise the number may be another's by now
    process = open_process(static_cast<uint64_t>(pid));
    if (!process.valid() && no_such_process(errno)) return refused(ErrorCode::unavailable, "has ended");
  } else if (no_such_process(errno)) {
    return refused(ErrorCode::unavailable, "has ended");
  }
  const std::optional<uint64_t> started = start_of(static_cast<uint64_t>(pid));
  if (!process.valid() || !started.has_value()) {
    return refused(
        ErrorCode::unsupported,
        "cannot be seen from the manager (a hidden /proc, or no pidfd of it): nobody would learn of its "
        "end");
  }
  id.pid = static_cast<uint64_t>(pid);
  id.started = *started;
  // Looked at last: while these two say that it lives, what was read before was of this process and no later
  // one.
  if (readable(process.get(), POLLIN) || readable(socket, POLLRDHUP))
    return refused(ErrorCode::unavailable, "has ended");
  if (pidfd != nullptr) *pidfd = std::move(process);
  return id;
}

UniqueFd open_living(const ProcessId& process) {
  if (process.pid == 0 || process.pid > INT32_MAX || process.space != own_space()) return UniqueFd();
  UniqueFd fd = open_process(process.pid);
  if (!fd.valid()) return UniqueFd();
  const std::optional<uint64_t> started = start_of(process.pid);
  // Looked at last: while it lives, the number that was read by is its own.
  if (started != process.started || readable(fd.get(), POLLIN)) return UniqueFd();
  return fd;
}

bool process_has_ended(const ProcessId& process) {
  if (process.pid == 0 || process.pid > INT32_MAX || process.space != own_space()) return false;
  const UniqueFd fd = open_process(process.pid);
  if (!fd.valid()) return no_such_process(errno);
  if (readable(fd.get(), POLLIN)) return true;
  // The number is another's by now when that one was started at another time.
  const std::optional<uint64_t> started = start_of(process.pid);
  return started.has_value() && *started != process.started;
}

bool owner_has_ended(const OwnerRow& owner) {
  return owner.host.empty() && process_has_ended(owner.process);
}

Result<ProcessId> told_elsewhere(const ProcessId& process) {
  const uint32_t boot = hash_of_boot();
  if (boot == 0)
    return Error{.code = ErrorCode::unsupported,
                 .where = where,
                 .detail =
                     "cannot read /proc/sys/kernel/random/boot_id: nobody would learn of this process' end "
                     "after a restart of this host. Mount /proc"};
  ProcessId told = process;
  told.space = uint64_t{boot} << 32 | hash_of(process.space);
  return told;
}

bool told_process_has_ended(const ProcessId& told) {
  const uint32_t boot = hash_of_boot();
  const uint64_t space = own_space();
  // Of other namespaces nothing is known, nor whether their boot id was this machine's: a container may have one of its own.
  if (told.pid == 0 || boot == 0 || told.space >> 32 == 0) return false;
  if (space == 0 || (told.space & UINT32_MAX) != hash_of(space)) return false;
  if (told.space >> 32 != boot) return true;
  return process_has_ended(ProcessId{told.pid, told.started, space});
}

std::optional<OwnerRow> living_owner(const StateMachine& state, LeaseId lease, const ProcessId& but) {
  std::vector<ProcessId> ended = {ProcessId{}, but};  // or not to be counted
  for (const OwnerRow& owner : state.owners_of(lease)) {
    if (!owner.host.empty() && owner.process.pid != 0) return owner;
    if (std::find(ended.begin(), ended.end(), owner.process) != ended.end()) continue;
    if (!process_has_ended(owner.process)) return owner;
    ended.push_back(owner.process);
  }
  return std::nullopt;
}

}  // namespace terrace::daemon
