// SPDX-License-Identifier: Apache-2.0
// Doctor: what this user may have of the daemon.
#include <linux/userfaultfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cli/client/admin_client.h"
#include "cli/client/connection.h"
#include "cli/doctor/doctor.h"
#include "core/base/unique_fd.h"
#include "core/os/userfaultfd.h"
#include "terrace/session.h"

namespace terrace::cli {
namespace {

// What demotion (write protection of shared memory) and promotion (minor faults, remapping) need.
constexpr uint64_t features_needed = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM |
                                     UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM |
                                     UFFD_FEATURE_EVENT_REMAP;

// What this user may do there: by the socket's role, and where that is by-uid by its uid. Empty: it did not say.
std::string describe_rights(const std::string& path) {
  Context quick;
  quick.socket_path = path;
  quick.call_timeout_ns = 5 * ns_per_s;  // the doctor must end even when the daemon hangs
  const Result<SocketRights> rights = ask_rights(quick);
  if (!rights.ok() || rights->role.empty()) return "";
  const char* whole = rights->role == "operator" ? "an operator" : "an administrator";
  return (rights->role == "by-uid" ? ": by its uid "
                                   : ": by the socket's role (" + printable(rights->role) + ") ") +
         (rights->admin ? whole : "no administrator") +
         (rights->tenant.empty() ? ", without a tenant" : ", tenant " + printable(rights->tenant));
}

}  // namespace

int try_connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

Check check_userfaultfd_device(const std::string& socket_path) {
  Check check{.name = "userfaultfd_device", .state = CheckState::limited};
  // The doctor must end even when the daemon hangs.
  constexpr uint64_t patience_ns = 5 * ns_per_s;
  SessionOptions options;
  options.socket_path = socket_path;
  options.connect_timeout_ns = options.call_timeout_ns = patience_ns;
  const auto session = Session::connect(options);
  if (!session.ok()) {
    const bool away = session.error().code == ErrorCode::unavailable;
    check.found = away ? "no daemon to ask" : session.error().detail;
    check.meaning = "programs of this user have what userfaultfd says above, and no more";
    check.fix =
        away ? "terrace daemon start, as root" : "map this user to a tenant in terraced's configuration";
    return check;
  }
  const auto device = (*session)->userfaultfd_device();
  if (!device.ok()) {
    check.found = "terraced gives none: " + device.error().detail;
    check.meaning =
        "under programs that are not root no granule moves, unless userfaultfd says above that they "
        "may make their own";
    check.fix = device.error().code == ErrorCode::version_mismatch ? "upgrade terraced"
                : device.error().code == ErrorCode::permission_denied
                    ? "where all tenants are trusted: clients.userfaultfd = \"all\" in terraced's "
                      "configuration, then reload it; terraced has to run as root"
                    : "run terraced as root, on Linux 6.1 or newer";
    return check;
  }
  const auto tried = os::open_userfaultfd(device->get(), features_needed);
  if (!tried.ok()) {
    check.found = "terraced gives its device, which is of no use here: " + tried.error().detail;
    check.meaning = "no granule moves under a running program";
    check.fix = "use Linux 6.1 or newer";
    return check;
  }
  check.state = CheckState::ok;
  check.found = "terraced gives /dev/userfaultfd, tried: a userfaultfd with " +
                os::userfaultfd_feature_names(features_needed);
  check.meaning = "granules move also under programs of users that are not root";
  return check;
}

Check check_socket(const std::string& path) {
  Check check{.name = "socket"};
  const int failed = try_connect(path);
  struct stat status {};
  const bool there = stat(path.c_str(), &status) == 0;
  check.found = path;
  if (there) {
    char mode[16];
    std::snprintf(mode, sizeof(mode), "%04o", status.st_mode & 07777u);
    check.found += ", mode " + std::string(mode) + ", owner uid " + std::to_string(status.st_uid);
  }
  if (failed == 0 || failed == EAGAIN) {  // EAGAIN: somebody listens, and is busy
    check.found += ", a daemon listens";
    check.meaning = "this user can reach the daemon" + describe_rights(path);
  } else if (failed == EACCES || failed == EPERM) {
    check.state = CheckState::missing;
    check.found += ", refused for this user";
    check.meaning = "this user cannot reach the daemon";
    check.fix =
        "ask the operator for access to the socket and its directory, or name another one with --socket";
  } else {
    check.state = CheckState::limited;
    check.found += failed == ECONNREFUSED ? ", left over: nobody listens" : ", nobody listens";
    check.meaning = "no daemon runs there now";
    check.fix = "terrace daemon start";
  }
  return check;
}

}  // namespace terrace::cli
