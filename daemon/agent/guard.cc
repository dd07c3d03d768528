// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/guard.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "core/base/clock.h"
#include "core/base/units.h"
#include "daemon/agent/guard_process.h"
#include "daemon/agent/host_lease_file.h"
#include "daemon/consent/consented_holders.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "guard";
// For those that are ended first. Short: the host lease is about to run out, and a process that was killed stores nothing more.
constexpr uint64_t end_wait_ns = 200 * ns_per_ms;
constexpr std::string_view dax_mark = "dax:";  // before a line that is a dax region, not a directory of files

struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

Result<UniqueFd> open_lock(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return os_error(errno, where, "cannot open " + path);
  return file;
}

// Open-file locks: asking whether one is held takes nothing, so that who asks never is in the holder's way.
Result<bool> take_lock(const UniqueFd& file, const std::string& path) {
  struct flock lock = whole_file();
  if (::fcntl(file.get(), F_OFD_SETLK, &lock) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  return os_error(errno, where, "cannot lock " + path);
}

bool is_held(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return false;
  struct flock lock = whole_file();
  return ::fcntl(file.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

Result<std::vector<std::string>> read_lines(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return os_error(errno, where, "cannot read " + path);
  std::string content(65'536, '\0');
  const ssize_t bytes = ::read(file.get(), content.data(), content.size());
  if (bytes < 0) return os_error(errno, where, "cannot read " + path);
  if (static_cast<size_t>(bytes) == content.size())
    return os_error(EFBIG, where, "more than can be guarded is in " + path);
  content.resize(static_cast<size_t>(bytes));
  std::vector<std::string> lines;
  for (size_t at = 0; at < content.size();) {
    const size_t end = std::min(content.find('\n', at), content.size());
    if (end > at) lines.push_back(content.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Of the agent that holds its lock; 0: none does, or it has not said so yet.
pid_t agent_pid(const HostFiles& files) {
  if (!is_held(files.agent_lock)) return 0;
  const auto lines = read_lines(files.agent_lock);
  return lines.ok() && !lines->empty() ? static_cast<pid_t>(std::atoi(lines->front().c_str())) : 0;
}

// Ends an agent that does not come to it, and waits until it is gone.
void stop_agent(const HostFiles& files) {
  const pid_t pid = agent_pid(files);
  if (pid <= 1) return;
  log::critical("guard: the agent (pid {}) has not fenced this host's memory in time: killed", pid);
  ::kill(pid, SIGKILL);
  for (int i = 0; i < 1000 && is_held(files.agent_lock); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// One look: fences when the moment has come. The word is the agent's to clear while it lives, as it may have an
// order under way that only it can end.
Status fence_in_time(const HostFiles& files, HostLeaseFile& lease, const Clock& clock) {
  lease.set_guard_busy(true);
  const uint64_t at_ns = lease.fence_at_ns();
  const uint64_t now_ns = clock.now_ns();
  Status status;
  if (at_ns != 0 && now_ns >= at_ns) {
    status = fence_guarded(files);
    if (is_held(files.agent_lock) && now_ns >= lease.stop_at_ns() && lease.fence_at_ns() == at_ns) {
      stop_agent(files);
      status = fence_guarded(files);  // what it made meanwhile
    }
    if (status.ok() && !is_held(files.agent_lock) && lease.clear(at_ns))
      log::critical("guard: the host lease has run out: this host's memory is fenced");
  }
  lease.set_guard_busy(false);
  return status;
}

// Removed with its folder: no agent can find this guard any more, and the record cannot be read again.
bool has_no_name(const UniqueFd& lock) {
  struct stat status {};
  return ::fstat(lock.get(), &status) == 0 && status.st_nlink == 0;
}

// Not longer than a tenth of a second: the moment may be moved nearer by a new, shorter host lease.
void sleep_until(uint64_t at_ns, uint64_t now_ns) {
  const uint64_t look_again_ns = now_ns + 100 * ns_per_ms;
  sleep_until_boot_ns(at_ns > now_ns ? std::min(at_ns, look_again_ns) : look_again_ns);
}

}  // namespace

HostFiles::HostFiles(const std::string& runtime_directory)
    : lease(runtime_directory + "/host-lease"),
      agent_lock(runtime_directory + "/agent.lock"),
      guard_lock(runtime_directory + "/guard.lock"),
      directories(runtime_directory + "/guarded-directories"),
      consents(runtime_directory + "/consents") {}

Result<UniqueFd> lock_as_agent(const HostFiles& files) {
  TERRACE_ASSIGN_OR_RETURN(UniqueFd file, open_lock(files.agent_lock));
  TERRACE_ASSIGN_OR_RETURN(const bool taken, take_lock(file, files.agent_lock));
  if (taken) {
    const std::string pid = std::to_string(::getpid()) + "\n";
    if (::ftruncate(file.get(), 0) != 0 || ::write(file.get(), pid.data(), pid.size()) < 0)
      return os_error(errno, where, "cannot write to " + files.agent_lock);
    return file;
  }
  return Error{.code = ErrorCode::busy,
               .where = where,
               .detail = "another agent runs here already: it holds " + files.agent_lock};
}

Status record_guarded(const HostFiles& files, const GuardedMemory& memory) {
  const std::string fresh = files.directories + ".new";
  std::string content;
  for (const std::string& directory : memory.directories) content += directory + "\n";
  for (const std::string& region : memory.dax_regions) content += std::string(dax_mark) + region + "\n";
  const UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid() ||
      ::write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      ::rename(fresh.c_str(), files.directories.c_str()) != 0)
    return os_error(errno, where, "cannot write " + files.directories);
  return {};
}

GuardedMemory read_guarded(const HostFiles& files) {
  GuardedMemory memory;
  const auto lines = read_lines(files.directories);
  if (!lines.ok()) return memory;
  for (const std::string& line : *lines) {
    const bool dax = line.starts_with(dax_mark);
    (dax ? memory.dax_regions : memory.directories).push_back(dax ? line.substr(dax_mark.size()) : line);
  }
  return memory;
}

Status fence_guarded(const HostFiles& files) {
  // A list that cannot be read is not an empty one.
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> lines, read_lines(files.directories));
  GuardedMemory memory;
  for (const std::string& line : lines) {
    const bool dax = line.starts_with(dax_mark);
    (dax ? memory.dax_regions : memory.directories).push_back(dax ? line.substr(dax_mark.size()) : line);
  }
  end_all_consented(files.consents, SystemClock().boot_id(), end_wait_ns);
  return fence_memory(memory);
}

bool guard_runs(const HostFiles& files) {
  return is_held(files.guard_lock);
}

// Two that are started at once are no harm: the second one finds the lock held and ends.
Status ensure_guard(const HostFiles& files, const std::vector<std::string>& command) {
  while (::waitpid(-1, nullptr, WNOHANG) >
         0) {  // guards of ours that have ended; the agent has no other children
  }
  if (is_held(files.guard_lock)) return {};
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  std::string guard = "--guard";
  arguments.push_back(guard.data());
  arguments.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::sigdelset(&all, SIGKILL);
  ::sigdelset(&all, SIGSTOP);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  pid_t pid = 0;
  const int failed = ::posix_spawn(&pid, "/proc/self/exe", nullptr, &attributes, arguments.data(), ::environ);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) return os_error(failed, where, "cannot start this host's guard");
  return {};
}

Status run_guard(const HostFiles& files) {
  GuardedMemory known = read_guarded(files);  // as it was last, while the record was there
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd lock, open_lock(files.guard_lock));
  TERRACE_ASSIGN_OR_RETURN(const bool taken, take_lock(lock, files.guard_lock));
  if (!taken) return {};
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock.get(), 0) != 0 || ::write(lock.get(), pid.data(), pid.size()) < 0)
    log::warn("guard: cannot write its pid to {}", files.guard_lock);
  TERRACE_ASSIGN_OR_RETURN(HostLeaseFile lease, HostLeaseFile::open(files.lease));
  lease.set_guard_busy(false);  // one that was killed may have left it so
  const SystemClock clock;
  bool told = false;
  for (;;) {
    if (!has_no_name(lock)) known = read_guarded(files);
    const uint64_t at_ns = lease.fence_at_ns();
    const uint64_t now_ns = clock.now_ns();
    if (at_ns == 0 && !is_held(files.agent_lock)) return {};
    if (at_ns == 0 || now_ns < at_ns) {
      told = false;
      sleep_until(at_ns, now_ns);
      continue;
    }
    const Status status = fence_in_time(files, lease, clock);
    if (status.ok()) {
      if (lease.fence_at_ns() == at_ns) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    if (has_no_name(lock) && !is_held(files.agent_lock)) {
      log::critical(
          "guard: {} was removed, and no agent runs: what was recorded there is fenced, the guard ends",
          files.guard_lock);
      return fence_memory(known);
    }
    if (!told) log::critical("guard: {}; trying again", status.error().to_string());
    told = true;
    sleep_until(0, now_ns);
  }
}

}  // namespace terrace::daemon
