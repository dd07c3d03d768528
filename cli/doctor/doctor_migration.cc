// Doctor: whether granules move under programs of this user, and what is in the way.
#include <linux/userfaultfd.h>

#include <algorithm>

#include "cli/doctor/doctor.h"
#include "core/os/userfaultfd.h"
#include "terrace/session.h"

namespace terrace::cli {
namespace {

// What demotion (write protection of shared memory) and promotion (minor faults, remapping) need.
constexpr uint64_t features_needed = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM |
                                     UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM |
                                     UFFD_FEATURE_EVENT_REMAP;

CheckState state_of(const std::vector<Check>& checks, const std::string& name) {
  const auto found =
      std::find_if(checks.begin(), checks.end(), [&](const Check& check) { return check.name == name; });
  return found == checks.end() ? CheckState::missing : found->state;
}

}  // namespace

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

Check check_migration(const std::vector<Check>& checks) {
  Check check{.name = "migration"};
  const bool own = state_of(checks, "userfaultfd") == CheckState::ok;
  const bool given = state_of(checks, "userfaultfd_device") == CheckState::ok;
  const bool switches = state_of(checks, "userfaultfd_shmem") == CheckState::ok || given;
  const bool looks = state_of(checks, "pagemap_scan") == CheckState::ok;
  std::string obstacles;
  const auto lacks = [&obstacles](const char* name) {
    obstacles += (obstacles.empty() ? "" : ", ") + std::string(name);
  };
  if (!own && !given) lacks("a userfaultfd (userfaultfd, userfaultfd_device)");
  if (!switches) lacks("write protection of shared memory (userfaultfd_shmem)");
  if (!looks) lacks("a way to see which granules are in use (pagemap_scan)");
  if (obstacles.empty()) {
    check.found = own ? "this user makes its own userfaultfd" : "this user has terraced's device";
    check.meaning = "hot granules rise and cold ones sink while programs run; `terrace tier status` shows it";
    return check;
  }
  check.state = CheckState::limited;
  check.found = "lacking: " + obstacles;
  check.meaning = "tiered ranges work, and their granules stay where they are";
  check.fix = "see the checks named";
  return check;
}

}  // namespace terrace::cli
