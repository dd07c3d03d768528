// SPDX-License-Identifier: Apache-2.0
// Members of a KV space as programs find them: leases by a session, files by their paths.
//
// Threads   Any.
#include "terrace/kv_members.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>

#include "core/os/persist.h"
#include "terrace/mapping.h"
#include "terrace/session.h"

namespace terrace {
namespace {

constexpr const char* where_opened = "KvOpenMember";

// As the kernel says it, in 5.1 and later by its bus, before by a class of that name.
bool is_dax_device(const struct stat& status) {
  if (!S_ISCHR(status.st_mode)) return false;
  const std::string link = "/sys/dev/char/" + std::to_string(major(status.st_rdev)) + ":" +
                           std::to_string(minor(status.st_rdev)) + "/subsystem";
  std::error_code failed;
  return std::filesystem::read_symlink(link, failed).filename() == "dax" && !failed;
}

Result<KvMemberMemory> open_lease(Session& session, const std::string& where) {
  uint64_t id = 0;
  const bool digits = std::all_of(where.begin(), where.end(),
                                  [](unsigned char letter) { return letter >= '0' && letter <= '9'; });
  if (digits && std::from_chars(where.data(), where.data() + where.size(), id).ec != std::errc())
    return Error{ErrorCode::invalid_argument, 0, where_opened, "no lease has the id " + where};
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<Lease> lease,
                           session.attach(LeaseId{id}, digits ? "" : where, LeaseAccess::read_write));
  return kv_member_of_lease(std::move(lease));
}

}  // namespace

Result<KvMemberMemory> kv_member_of_lease(std::shared_ptr<Lease> lease) {
  TERRACE_ASSIGN_OR_RETURN(const LeaseInfo info, lease->info());
  if (info.mode != LeaseMode::shared_coherent)
    return Error{ErrorCode::invalid_argument, 0, where_opened,
                 "lease " + std::to_string(lease->id().value) +
                     " is not of the mode shared_coherent: only such a lease's memory has several holders"};
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<Mapping> mapping, Mapping::map(lease));
  if (mapping->bytes().empty())
    return Error{ErrorCode::permission_denied, 0, where_opened,
                 "the lease may only be read; a holder stores into it"};
  KvMemberMemory memory{.bytes = mapping->bytes(), .keep = mapping, .lease_epoch = lease->epoch()};
  TERRACE_ASSIGN_OR_RETURN(memory.ownership, ownership_by_manager(std::move(lease)));
  return memory;
}

std::string kv_where_of_lease(Lease& lease) {
  const Result<LeaseInfo> info = lease.info();
  return info.ok() && !info->label.empty() ? info->label : std::to_string(lease.id().value);
}

Result<UniqueFd> open_kv_memory(const std::string& path) {
  const UniqueFd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!place.valid()) return os_error(errno, where_opened, "cannot open " + path);
  struct stat status {};
  if (::fstat(place.get(), &status) != 0) return os_error(errno, where_opened, "cannot look at " + path);
  if (!S_ISREG(status.st_mode) && !is_dax_device(status))
    return Error{ErrorCode::invalid_argument, 0, where_opened,
                 path + " is neither a file nor a dax device; give memory that can be mapped"};
  UniqueFd opened(::open(("/proc/self/fd/" + std::to_string(place.get())).c_str(), O_RDWR | O_CLOEXEC));
  if (!opened.valid()) return os_error(errno, where_opened, "cannot open " + path);
  return opened;
}

Result<KvMemberMemory> open_kv_member_file(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd file, open_kv_memory(path));
  TERRACE_ASSIGN_OR_RETURN(os::FileMap map, os::FileMap::map(file.get()));
  const auto kept = std::make_shared<os::FileMap>(std::move(map));
  KvMemberMemory memory{.bytes = kept->bytes(), .keep = kept};
  TERRACE_ASSIGN_OR_RETURN(memory.ownership, ownership_by_locks(file.get()));
  return memory;
}

KvOpenMember kv_members_by_session(std::shared_ptr<Session> session) {
  return [session = std::move(session)](const std::string& where) -> Result<KvMemberMemory> {
    if (where.find('/') != std::string::npos) return open_kv_member_file(where);
    if (session == nullptr)
      return Error{ErrorCode::unavailable, 0, where_opened,
                   "lease " + where + ": this program gave no session to attach it by"};
    return open_lease(*session, where);
  };
}

}  // namespace terrace
