// SPDX-License-Identifier: Apache-2.0
#include "cli/hold/leased_path.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <vector>

#include "cli/hold/held_lease.h"
#include "cli/terminal/manager_place.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

// The manager may have a mount namespace of its own, and this process too.
Status check_seen(const std::string& path, const struct stat& memory, const char* where) {
  struct stat seen {};
  const int code = ::stat(path.c_str(), &seen) == 0 ? 0 : errno;
  if (code == 0 && seen.st_ino == memory.st_ino && seen.st_dev == memory.st_dev) return {};
  if (code == EACCES) return {};  // another user's: it is that one's to see
  return Error{
      .code = ErrorCode::unsupported,
      .os_errno = code,
      .where = where,
      .detail =
          "the manager has the lease's memory at " + path +
          ", and that path leads elsewhere from here: one of both runs with mounts of its own (a container, a "
          "unit with PrivateMounts). Use the descriptor: terrace lease exec"};
}

}  // namespace

Result<uint32_t> user_id_of(const std::string& user, const char* where) {
  if (user.empty()) return ::geteuid();
  uint32_t uid = 0;
  const auto read = std::from_chars(user.data(), user.data() + user.size(), uid);
  if (read.ec == std::errc() && read.ptr == user.data() + user.size() && uid != UINT32_MAX) return uid;
  std::vector<char> text(16 * 1024);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwnam_r(user.c_str(), &entry, text.data(), text.size(), &found) == 0 && found != nullptr)
    return entry.pw_uid;
  return Error{
      .code = ErrorCode::invalid_argument,
      .where = where,
      .detail = "--user " + user + ": there is no such user on this machine, and it is no number of one"};
}

void add_path_options(Command verb, PathArguments& arguments) {
  verb.add_option("lease", arguments.lease, "Id or label (all digits: an id)").required().type_name("ID|LABEL");
  verb.add_flag("--ro", arguments.read_only, "Read-only: who opens it cannot write");
  verb.add_option("--user", arguments.user,
                  "Who may open it (default: this user); another one is named by an administrator")
      .type_name("NAME|UID");
  verb.add_option("--tenant", arguments.tenant, "Whose lease it is, where an administrator asks for another's")
      .type_name("TENANT");
}

Result<LeasedPath> open_leased_path(const Context& context, const PathArguments& arguments, const char* where) {
  TERRACE_RETURN_IF_ERROR(on_this_machine(context, where));
  TERRACE_ASSIGN_OR_RETURN(const LeaseId id, lease_id_in(arguments.lease, where));
  TERRACE_ASSIGN_OR_RETURN(const uint32_t uid, user_id_of(arguments.user, where));
  SessionOptions options;
  options.socket_path = context.socket_path;
  options.client_name = where;
  options.tenant = arguments.tenant;
  options.call_timeout_ns = context.call_timeout_ns;
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::connect(options));
  TERRACE_ASSIGN_OR_RETURN(
      const std::shared_ptr<Lease> lease,
      session->attach(id, id.value == 0 ? arguments.lease : std::string(),
                      arguments.read_only ? LeaseAccess::read_only : LeaseAccess::read_write));
  LeasedPath leased;
  leased.read_only = arguments.read_only;
  leased.uid = uid;
  TERRACE_ASSIGN_OR_RETURN(leased.lease, lease->info());
  const std::optional<uint32_t> another = uid == ::geteuid() ? std::nullopt : std::optional<uint32_t>(uid);
  TERRACE_ASSIGN_OR_RETURN(leased.path, lease->open_path(another));
  struct stat memory {};
  if (::fstat(lease->fd(), &memory) != 0) return os_error(errno, where, "cannot look at the lease's memory");
  TERRACE_RETURN_IF_ERROR(check_seen(leased.path, memory, where));
  leased.is_device = S_ISCHR(memory.st_mode);
  return leased;
}

std::string path_advice(const LeasedPath& leased) {
  if (leased.lease.phase == "revoking")
    return shown_lease(leased.lease.id, leased.lease.label) + " is being taken back" +
           (leased.lease.reason.empty() ? "" : ": " + leased.lease.reason) +
           "; the end of its grace is the modification time of its file";
  if (leased.lease.ttl_ns == 0) return "";
  return shown_lease(leased.lease.id, leased.lease.label) + " ends in " +
         format_duration(leased.lease.expires_in_ns) +
         " unless somebody renews it, which a path does not: keep it with 'terrace lease hold', or grant it "
         "--persistent";
}

}  // namespace terrace::cli
