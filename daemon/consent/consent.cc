// SPDX-License-Identifier: Apache-2.0
#include "daemon/consent/consent.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "daemon/event_loop/processes.h"

namespace terrace::daemon {
namespace {

constexpr const char* consent_where = "on_fence";
constexpr long pidfs_magic = 0x50494446;  // newer than the headers

// Inodes of pidfds are numbers of processes only where they have a file system of their own; before, all had the same.
uint64_t number_of(const UniqueFd& pidfd) {
  struct statfs system {};
  struct stat status {};
  if (!pidfd.valid() || ::fstatfs(pidfd.get(), &system) != 0 || system.f_type != pidfs_magic) return 0;
  return ::fstat(pidfd.get(), &status) == 0 ? status.st_ino : 0;
}

// The numbers behind a word of /proc/PID/status: "Uid:", "NSpid:".
std::vector<uint64_t> status_numbers(uint64_t pid, const std::string& word) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::vector<uint64_t> numbers;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(word)) continue;
    std::istringstream words(line.substr(word.size()));
    for (uint64_t number = 0; words >> number;) numbers.push_back(number);
    break;
  }
  return numbers;
}

bool is_readable(const UniqueFd& pidfd) {
  pollfd one{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, 0) > 0;
}

// As kill(2) allows it: who agreed could end it by itself. Programs that raise their rights are their user's no more.
bool may_end(const Consent& consent) {
  if (consent.uid == 0) return true;
  const std::vector<uint64_t> uids =
      status_numbers(consent.process.pid, "Uid:");  // real, effective, saved, file system
  return uids.size() >= 3 && (uids[0] == consent.uid || uids[2] == consent.uid);
}

// What the record says of a process that an earlier run of this daemon had a pidfd of.
void open_again(Consent& consent) {
  if (consent.pidfd != nullptr) return;
  UniqueFd opened = open_living(consent.process);
  if (!opened.valid()) return;
  const uint64_t number = number_of(opened);
  if (consent.number != 0 && number != 0 && number != consent.number) return;  // another one of the same number
  consent.pidfd = std::make_shared<const UniqueFd>(std::move(opened));
}

Error refused_consent(ErrorCode code, const std::string& holder, const char* what) {
  return Error{.code = code, .where = consent_where, .detail = holder + " " + what};
}

}  // namespace

Result<Consent> consent_of_peer(int socket, int32_t peer_pid, uint32_t uid, uint32_t told_pid,
                                std::string holder) {
  UniqueFd pidfd;
  TERRACE_ASSIGN_OR_RETURN(const ProcessId process, peer_process(socket, peer_pid, &pidfd));
  if (process.pid == 1 || process.pid == static_cast<uint64_t>(::getpid()))
    return refused_consent(ErrorCode::permission_denied, holder,
                           "is a process that the machine needs: it cannot agree to be ended with a lease");
  const std::vector<uint64_t> numbers = status_numbers(process.pid, "NSpid:");
  if (numbers.empty() || numbers.back() != told_pid || is_readable(pidfd))
    return refused_consent(
        ErrorCode::permission_denied, holder,
        "opened this connection, and another process asks on it for a lease whose holders are "
        "ended at a fence (on_fence kill): each process agrees for itself only, over a connection "
        "of its own");
  Consent consent;
  consent.process = process;
  consent.number = number_of(pidfd);
  consent.uid = uid;
  consent.holder = std::move(holder);
  consent.pidfd = std::make_shared<const UniqueFd>(std::move(pidfd));
  return consent;
}

bool has_ended(const Consent& consent) {
  if (consent.pidfd != nullptr) return is_readable(*consent.pidfd);
  if (process_has_ended(consent.process)) return true;
  const UniqueFd opened = open_living(consent.process);
  return opened.valid() && consent.number != 0 && number_of(opened) != 0 && number_of(opened) != consent.number;
}

EndOf end_process(Consent& consent) {
  open_again(consent);
  if (consent.pidfd == nullptr) return has_ended(consent) ? EndOf::ended : EndOf::exempt;
  const bool allowed = may_end(consent);
  // Looked at after its user was read by its number: while it lives the number is its own.
  if (is_readable(*consent.pidfd)) return EndOf::ended;
  if (!allowed) return EndOf::exempt;
  if (::syscall(SYS_pidfd_send_signal, consent.pidfd->get(), SIGKILL, nullptr, 0) == 0) return EndOf::killed;
  return errno == ESRCH ? EndOf::ended : EndOf::exempt;
}

std::string shown_with_state(const Consent& consent) {
  std::ifstream file("/proc/" + std::to_string(consent.process.pid) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("State:") && line.size() > 7)
      return consent.holder + " (state " + line.substr(7, 1) + ")";
  return consent.holder;
}

}  // namespace terrace::daemon
