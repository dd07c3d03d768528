// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/files/object_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/limits.h"
#include "core/base/units.h"
#include "core/os/patient_lock.h"
#include "daemon/memory/files/mount_table.h"
#include "daemon/memory/files/owner_file.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "ObjectDirectory";

// How a mount of ours is recognised in mountinfo.
constexpr const char* mount_source = "terraced";

constexpr uint64_t inodes_spare = 1024;

Error failed(ErrorCode code, std::string detail, int os_errno = 0) {
  return Error{.code = code, .os_errno = os_errno, .where = where, .detail = std::move(detail)};
}

Result<bool> on_tmpfs(int fd, const std::string& path) {
  struct statfs status {};
  if (::fstatfs(fd, &status) != 0) return os_error(errno, where, "cannot look at the file system of " + path);
  return status.f_type == TMPFS_MAGIC;
}

uint64_t capacity_of(int fd) {
  struct statfs status {};
  if (::fstatfs(fd, &status) != 0) return 0;
  return static_cast<uint64_t>(status.f_blocks) * static_cast<uint64_t>(status.f_bsize);
}

std::string memory_policy(int node) {
  return "bind:" + std::to_string(node);
}

std::string mount_options(const ObjectDirectoryOptions& options, bool huge) {
  std::string text = "mode=0700,size=" + std::to_string(options.bytes + options.slack_bytes) +
                     ",nr_inodes=" + std::to_string(options.bytes / limits::granule_bytes + inodes_spare);
  if (options.node >= 0) text += ",mpol=" + memory_policy(options.node);
  if (huge) text += std::string(",huge=") + huge_pages_word(options.huge_pages);
  return text;
}

// mount(2) follows links in a path; through /proc it lands on the directory that was checked.
std::string path_of_fd(int fd) {
  return "/proc/self/fd/" + std::to_string(fd);
}

int mount_on(int fd, unsigned long flags, const ObjectDirectoryOptions& options) {
  flags |= MS_NOSUID | MS_NODEV | MS_NOEXEC;
  const std::string target = path_of_fd(fd);
  // A kernel without transparent huge pages refuses the option; the memory works without it.
  for (const bool huge : {true, false}) {
    const std::string data = mount_options(options, huge);
    if (::mount(mount_source, target.c_str(), "tmpfs", flags, data.c_str()) == 0) return 0;
    if (errno != EINVAL) return errno;
  }
  return EINVAL;
}

// The kernel's switch above the mount option: "deny" overrides every mount, "force" as well.
std::string kernel_switch() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string text;
  if (!std::getline(file, text)) return "";
  const size_t open = text.find('[');
  const size_t close = text.find(']', open);
  if (open == std::string::npos || close == std::string::npos) return "";
  return text.substr(open + 1, close - open - 1);
}

bool holds_only(int fd, bool (*ignored)(const char* name)) {
  const int copy = ::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = copy < 0 ? nullptr : ::fdopendir(copy);
  if (stream == nullptr) return false;
  bool only = true;
  while (const dirent* entry = ::readdir(stream))
    only &=
        std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0 || ignored(entry->d_name);
  ::closedir(stream);
  return only;
}

bool is_empty(int fd) {
  return holds_only(fd, [](const char*) { return false; });
}

bool is_empty_but_for_owner(int fd) {
  return holds_only(fd, [](const char* name) { return is_owner_file(name); });
}

// One that is there already was mounted by an earlier start: for the same node, or its memory is elsewhere.
Status check_policy(const Mount& mount, const ObjectDirectoryOptions& options) {
  const std::string wanted = options.node < 0 ? "" : memory_policy(options.node);
  const std::string found = mount.option("mpol").value_or("");
  if (found == wanted) return {};
  return failed(ErrorCode::busy, "the tmpfs at " + mount.point + " has the memory policy '" + found +
                                     "', not '" + wanted + "'; end the leases on it and unmount it");
}

}  // namespace

const char* huge_pages_word(HugePages huge_pages) {
  switch (huge_pages) {
    case HugePages::always: return "always";
    case HugePages::within_size: return "within_size";
    case HugePages::advise: return "advise";
    case HugePages::never: break;
  }
  return "never";
}

std::string shared_memory_directory(const std::string& runtime_directory, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a: the same in every build, and no secret
  for (const char c : runtime_directory) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash));
  return "/dev/shm/terrace-" + std::to_string(::geteuid()) + "-" + digits +
         (name == "objects" ? "" : "-" + name);
}

Result<ObjectDirectory> ObjectDirectory::prepare(const ObjectDirectoryOptions& options) {
  const bool root = ::geteuid() == 0;
  ObjectDirectory directory;
  directory.path_ = options.directory;
  if (directory.path_.empty()) {
    directory.path_ = root && options.mount ? options.runtime_directory + "/" + options.name
                                            : shared_memory_directory(options.runtime_directory, options.name);
  }
  if (directory.path_[0] != '/')
    return failed(ErrorCode::invalid_argument, "the object directory must be absolute: " + directory.path_);

  TERRACE_RETURN_IF_ERROR(directory.open_checked());
  const auto mount_here = [&directory] {
    const auto mount = find_mount(directory.path_);
    return mount.has_value() && mount->point == directory.path_ && mount->type == "tmpfs";
  };
  if (root && options.mount && !mount_here()) {
    // Under a lock on the directory below, so that two daemons that start at once do not both mount.
    TERRACE_RETURN_IF_ERROR(directory.lock());
    const UniqueFd below = std::move(directory.fd_);
    TERRACE_RETURN_IF_ERROR(directory.open_checked());
    Status mounted;
    if (!mount_here()) mounted = directory.mount_tmpfs(options);
    if (!mounted.ok()) {
      // Root within a container may not mount; /dev/shm serves as it does for other users.
      if (mounted.error().code != ErrorCode::permission_denied || !options.directory.empty())
        return mounted.error();
      ::rmdir(directory.path_.c_str());
      directory.path_ = shared_memory_directory(options.runtime_directory, options.name);
      TERRACE_RETURN_IF_ERROR(directory.open_checked());
    }
  }
  const auto mount = find_mount(directory.path_);
  directory.own_mount_ = mount.has_value() && mount->point == directory.path_ && mount->source == mount_source;
  TERRACE_ASSIGN_OR_RETURN(const bool tmpfs, on_tmpfs(directory.fd_.get(), directory.path_));
  if (!tmpfs) {
    return failed(ErrorCode::unsupported,
                  directory.path_ + " is on " + (mount.has_value() ? mount->type : "an unknown file system") +
                      ", but memory objects must be on tmpfs; run terraced as root with mounting allowed, or "
                      "choose a directory below /dev/shm");
  }
  TERRACE_RETURN_IF_ERROR(directory.lock());
  if (directory.own_mount_) {
    TERRACE_RETURN_IF_ERROR(check_policy(*mount, options));
    TERRACE_RETURN_IF_ERROR(directory.fit_size(options));
    directory.bytes_max_ = std::max(options.bytes + options.slack_bytes, capacity_of(directory.fd_.get()));
  }
  directory.describe();
  return directory;
}

Status ObjectDirectory::open_checked() {
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST)
    return os_error(errno, where, "cannot make the object directory " + path_);
  fd_.reset(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd_.valid()) {
    if (errno == ELOOP || errno == ENOTDIR) {
      return failed(ErrorCode::permission_denied,
                    path_ + " is a link or no directory; somebody else put it there. Remove it", errno);
    }
    return os_error(errno, where, "cannot open the object directory " + path_);
  }
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) return os_error(errno, where, "cannot look at " + path_);
  if (status.st_uid != ::geteuid()) {
    return failed(ErrorCode::permission_denied,
                  path_ + " belongs to uid " + std::to_string(status.st_uid) +
                      ", not to the uid of terraced; remove it, or choose another "
                      "object directory");
  }
  // The bits to pass through are allow_by_path()'s: for single users (the mask of a list is the group's), or for all.
  if ((status.st_mode & 066) != 0) {
    return failed(ErrorCode::permission_denied,
                  path_ +
                      " can be entered by others; its mode must be 0700. Remove it, or chmod it after "
                      "looking at what is in it");
  }
  // As the kernel names it, so that it can be found in mountinfo.
  std::error_code error;
  const auto resolved = std::filesystem::canonical(path_, error);
  if (!error) path_ = resolved.string();
  return {};
}

Status ObjectDirectory::lock() const {
  const int error = lock_patiently(fd_.get(), LOCK_EX);
  if (error == 0) return {};
  if (error != EWOULDBLOCK) return os_error(error, where, "cannot lock " + path_);
  return failed(ErrorCode::busy, "another terraced keeps its objects in " + path_ +
                                     "; stop it, or give this one an object directory of its own");
}

Status ObjectDirectory::claim(const StoreClaim& claim, size_t objects) const {
  return claim_directory({fd_.get(), path_}, claim, objects);
}

Status ObjectDirectory::mount_tmpfs(const ObjectDirectoryOptions& options) {
  if (!is_empty(fd_.get())) {
    return failed(ErrorCode::already_exists,
                  path_ +
                      " is not empty, and a tmpfs mounted over it would hide what is in it; move that away, "
                      "or choose another object directory");
  }
  if (const int error = mount_on(fd_.get(), 0, options); error != 0) {
    std::string detail = "cannot mount a tmpfs on " + path_;
    if (error == EINVAL && options.node >= 0)
      detail += " whose memory is that of node " + std::to_string(options.node) +
                ": the node has none, or this process may not use it (cpuset)";
    return os_error(error, where, std::move(detail));
  }
  return open_checked();
}

Status ObjectDirectory::fit_size(const ObjectDirectoryOptions& options) {
  if (capacity_of(fd_.get()) >= options.bytes + options.slack_bytes) return {};
  if (const int error = mount_on(fd_.get(), MS_REMOUNT, options); error != 0)
    return os_error(error, where, "cannot enlarge the tmpfs on " + path_ + " for the devices that were added");
  return {};
}

Status ObjectDirectory::enlarge(const ObjectDirectoryOptions& options) {
  if (!own_mount_) return {};
  bytes_max_ = std::max(bytes_max_, options.bytes + options.slack_bytes);
  return fit_size(options);
}

void ObjectDirectory::describe() {
  const auto mount = find_mount(path_);
  const std::string point = mount.has_value() ? mount->point : path_;
  description_ = "tmpfs at " + path_;
  if (point != path_) description_ += " (within " + point + ", which other programs fill too)";
  description_ += ", " + format_size(capacity_of(fd_.get())) + ": ";
  if (mount.has_value() && mount->option("mpol").has_value())
    description_ += "memory policy " + *mount->option("mpol") + ", ";

  const std::string huge = mount.has_value() ? mount->option("huge").value_or("never") : "never";
  const std::string kernel = kernel_switch();
  huge_pages_ =
      kernel == "force" || (kernel != "deny" && !kernel.empty() && huge != "never" && huge != "advise");
  if (kernel.empty()) {
    description_ += "no huge pages, the kernel is built without them";
  } else if (kernel == "deny") {
    description_ += "no huge pages, /sys/kernel/mm/transparent_hugepage/shmem_enabled says deny";
  } else if (kernel == "force") {
    description_ += "2 MiB pages, the kernel forces them";
  } else if (huge_pages_) {
    description_ += "2 MiB pages (huge=" + huge + ") while the kernel finds free ones";
  } else if (huge == "advise") {
    description_ += "2 MiB pages only where a holder asks for them with madvise (huge=advise)";
  } else {
    description_ += "4 KiB pages, the mount has no huge= option";
    if (!own_mount_) description_ += "; terraced run by root mounts one that has";
  }
}

Status ObjectDirectory::remove() {
  if (!fd_.valid()) return {};
  const bool empty = is_empty_but_for_owner(fd_.get());
  if (empty) forget_owner(fd_.get());
  fd_.reset();  // the lock goes with it, and an open directory would keep the mount busy
  if (!empty)
    return failed(
        ErrorCode::busy,
        path_ + " still holds objects, or marks of unplugged devices; it stays for the next start of terraced");
  if (own_mount_ && ::umount2(path_.c_str(), UMOUNT_NOFOLLOW) != 0) {
    const int error = errno;
    if (error == EBUSY)
      return failed(ErrorCode::busy, "a holder still has memory of " + path_ + " open", error);
    return os_error(error, where, "cannot unmount " + path_);
  }
  if (::rmdir(path_.c_str()) != 0 && errno != ENOENT) return os_error(errno, where, "cannot remove " + path_);
  return {};
}

}  // namespace terrace::daemon
