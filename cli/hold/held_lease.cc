// SPDX-License-Identifier: Apache-2.0
#include "cli/hold/held_lease.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "allocator/supply/proc.h"
#include "cli/terminal/manager_place.h"
#include "cli/terminal/verb.h"
#include "terrace/words.h"

namespace terrace::cli {
namespace {

constexpr std::pair<const char*, LeaseMode> modes[] = {{"exclusive", LeaseMode::exclusive},
                                                       {"shared_read_only", LeaseMode::shared_read_only},
                                                       {"shared_coherent", LeaseMode::shared_coherent}};

Error wrong(const char* where, std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = std::move(detail)};
}

Result<std::shared_ptr<Lease>> grant(Session& session, const HoldArguments& arguments, const char* where) {
  TERRACE_RETURN_IF_ERROR(check_label(arguments.lease));
  if (arguments.read_only)
    return wrong(where, "--ro with --size: a new lease has nothing yet that could be read");
  LeaseRequest request;
  request.label = arguments.lease;
  request.bytes = arguments.size_bytes;
  request.pool = arguments.pool;
  request.wait_ns = arguments.wait_ns;
  request.on_fence = on_fence_of_name(arguments.on_fence).value_or(OnFence::keep);
  for (const auto& [word, mode] : modes)
    if (arguments.mode == word) request.mode = mode;
  return session.grant(request);
}

// By a path, say.
bool another_process_has(int fd) {
  struct stat memory {};
  if (::fstat(fd, &memory) != 0) return false;
  for (const pid_t pid : supply::all_processes())
    if (pid != ::getpid() && has_memory(pid, memory)) return true;
  return false;
}

}  // namespace

bool has_memory(pid_t pid, const struct stat& memory) {
  const auto ranges = supply::read_maps(pid);
  if (std::any_of(ranges.begin(), ranges.end(), [&memory](const auto& range) {
        return range.inode == memory.st_ino && range.device == memory.st_dev;
      }))
    return true;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    struct stat status {};
    if (::stat(entry.path().c_str(), &status) == 0 && status.st_ino == memory.st_ino &&
        status.st_dev == memory.st_dev)
      return true;
  }
  return false;
}

UniqueFd ending_signals() {
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&ends, number);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  return UniqueFd(::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
}

void say_of_lease(const std::string& text) {
  const std::string line = "terrace: " + escaped(text) + "\n";
  std::fputs(line.c_str(), stderr);
}

std::string shown_lease(LeaseId id, const std::string& label) {
  return "lease " + std::to_string(id.value) + (label.empty() ? "" : " (" + label + ")");
}

void add_hold_options(Command verb, HoldArguments& arguments) {
  verb.add_option("lease", arguments.lease,
                  "Id or label (all digits: an id); with --size the new lease's label")
      .required()
      .type_name("ID|LABEL");
  verb.add_flag("--ro", arguments.read_only, "Read-only: its memory cannot be mapped writable");
  const Option size =
      add_size_option(verb, "--size", arguments.size_bytes,
                      "Grant it first, with that label, and give it back at the end; rounded up to granules");
  verb.add_option("--pool", arguments.pool, "Where --size grants; may be left out where there is only one pool")
      .needs(size)
      .type_name("POOL");
  verb.add_option("--mode", arguments.mode,
                  "Who may have the lease of --size besides this command (default " + arguments.mode + ")")
      .needs(size)
      .one_of({modes[0].first, modes[1].first, modes[2].first});
  add_duration_option(verb, "--wait", arguments.wait_ns,
                      "Wait for --size in the queue of a full pool, at most so long (default: not at all)")
      .needs(size);
}

Result<std::unique_ptr<HeldLease>> HeldLease::take(const Context& context, const HoldArguments& arguments,
                                                   const char* where,
                                                   std::function<void(const LeaseNotice&)> told) {
  TERRACE_RETURN_IF_ERROR(on_this_machine(context, where));
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, lease_id_in(arguments.lease, where));
  SessionOptions options;
  options.socket_path = context.socket_path;
  options.client_name = where;
  options.call_timeout_ns = context.call_timeout_ns;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::connect(options));
  const bool granted = arguments.size_bytes != 0;
  const LeaseAccess access = arguments.read_only ? LeaseAccess::read_only : LeaseAccess::read_write;
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<Lease> lease,
                           granted
                               ? grant(*session, arguments, where)
                               : session->attach(id, id.value == 0 ? arguments.lease : std::string(), access,
                                                 on_fence_of_name(arguments.on_fence).value_or(OnFence::keep)));
  std::string label = arguments.lease;
  if (id.value != 0) {
    const Result<LeaseInfo> info = lease->info();
    label = info.ok() ? info->label : "";
  }
  std::unique_ptr<HeldLease> held(
      new HeldLease(std::move(session), std::move(lease), std::move(label), granted));
  held->session_->on_notice([self = held.get(), told = std::move(told)](const LeaseNotice& notice) {
    self->tell(notice);
    if (told) told(notice);
  });
  return held;
}

HeldLease::~HeldLease() {
  session_->on_notice({});
}

void HeldLease::tell(const LeaseNotice& notice) const {
  if (notice.lease != lease_->id()) return;
  const std::string who = shown_lease(notice.lease, label_);
  const std::string why = notice.reason.empty() ? "" : ": " + notice.reason;
  if (notice.state == LeaseState::revoking)
    say_of_lease(who + " is being taken back in " + format_duration(notice.grace_ns) + why +
                 "; what still uses its memory then gets SIGBUS");
  else if (notice.state == LeaseState::lost)
    say_of_lease(who + " is lost" + why + "; whatever touches its memory gets SIGBUS");
  else if (notice.move_requested)
    say_of_lease(who + " should move to other memory" + why +
                 "; it stays where it is, as a program has it under its own address");
}

void HeldLease::give_back() {
  if (lease_->state() == LeaseState::lost) return;
  if (!granted_) {
    // An operator waits for its last holder to let go; others that still have it keep it until the grace is over.
    if (lease_->state() != LeaseState::revoking) return;
    // The manager sees those that have it by a path, too, and waits for them.
    const Result<LeaseInfo> info = lease_->info();
    if (!info.ok() || info->holders > 1 || another_process_has(lease_->fd())) return;
  }
  const Status released = lease_->release();
  if (!released.ok() && lease_->state() != LeaseState::lost)
    say_of_lease(shown_lease(lease_->id(), label_) +
                 " could not be given back now, it ends with its TTL: " + released.error().to_string());
}

Error HeldLease::loss() {
  const Result<LeaseInfo> info = lease_->info();
  if (!info.ok() && info.error().code != ErrorCode::unavailable) return info.error();
  return Error{.code = ErrorCode::lease_revoked,
               .where = "terrace lease",
               .detail = shown_lease(lease_->id(), label_) + " is lost"};
}

}  // namespace terrace::cli
