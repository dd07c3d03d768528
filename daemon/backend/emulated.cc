#include "daemon/backend/emulated.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/failpoint.h"

namespace terrace::daemon {
namespace {

constexpr std::string_view suffix = ".obj";

// How often scrub() truncates a file that its holder grows again before it gives up.
constexpr int scrub_attempts = 64;

std::string file_of(const std::string& name) {
  return name + std::string(suffix);
}

Error bad_name(const std::string& name, const char* where) {
  return Error{.code = ErrorCode::invalid_argument,
               .where = where,
               .detail = "'" + name + "' cannot name a memory object"};
}

// A missing piece of memory means the same to the caller whether the mount or the machine is short of it.
Error memory_error(int os_errno, const char* where, std::string detail) {
  Error error = os_error(os_errno, where, std::move(detail));
  if (error.code == ErrorCode::out_of_memory) error.code = ErrorCode::capacity_exhausted;
  return error;
}

ObservedObject observed(const std::string& name, const struct stat& status) {
  return {.name = name,
          .bytes = static_cast<uint64_t>(status.st_size),
          .allocated = static_cast<uint64_t>(status.st_blocks) * 512};
}

}  // namespace

bool valid_object_name(std::string_view name) {
  if (name.empty() || name.size() > limits::name_bytes_max || name[0] == '.' || name[0] == '-') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

EmulatedBackend::EmulatedBackend(ObjectDirectory directory, EmulatedOptions options)
    : directory_(std::move(directory)), options_(std::move(options)) {}

std::vector<SeenDevice> EmulatedBackend::discover() {
  std::vector<SeenDevice> seen;
  for (const EmulatedDevice& device : options_.devices) {
    seen.push_back({.serial = "emu:" + device.name,
                    .backend = std::string(kind()),
                    .capacity_bytes = device.size_bytes,
                    .granule_bytes = options_.granule_bytes,
                    .detail = "emulated: " + directory_.description()});
  }
  return seen;
}

Status EmulatedBackend::carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) {
  constexpr const char* where = "EmulatedBackend::carve";
  if (!valid_object_name(name)) return bad_name(name, where);
  uint64_t granules = 0;
  for (const Extent& extent : extents) granules += extent.granules;
  // INT64_MAX is the kernel's bound on a file; the quotient avoids an overflow of the product.
  if (bytes == 0 || bytes > INT64_MAX || bytes % options_.granule_bytes != 0 ||
      bytes / options_.granule_bytes != granules) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = name + ": " + std::to_string(bytes) + " bytes are not the " +
                           std::to_string(granules) + " granules of its extents"};
  }
  if (const int code = TERRACE_FAILPOINT(carve_before_create); code != 0)
    return memory_error(code, where, "cannot create object " + name);
  const std::string file = file_of(name);
  const UniqueFd fd(
      ::openat(directory_.fd(), file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return memory_error(errno, where, "cannot create object " + name);
  Status reserved = reserve(fd.get(), name, bytes);
  if (!reserved.ok()) {
    ::unlinkat(directory_.fd(), file.c_str(), 0);
    return reserved;
  }
  remember_size(name, bytes);
  return {};
}

Status EmulatedBackend::reserve(int fd, const std::string& name, uint64_t bytes) const {
  constexpr const char* where = "EmulatedBackend::carve";
  const auto cannot = [&](int code) {
    return memory_error(code, where, "cannot reserve " + format_size(bytes) + " for object " + name);
  };
  if (const int code = TERRACE_FAILPOINT(carve_after_create); code != 0) return cannot(code);
  if (::fchmod(fd, 0600) != 0) return cannot(errno);  // whatever the umask took away
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return cannot(errno);
  // tmpfs gives back everything when a signal interrupts it, so that starting over is right.
  while (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0)
    if (errno != EINTR) return cannot(errno);
  if (const int code = TERRACE_FAILPOINT(carve_after_reserve); code != 0) return cannot(code);
  return {};
}

Result<UniqueFd> EmulatedBackend::open_object(const std::string& name, int flags) const {
  constexpr const char* where = "EmulatedBackend::open";
  if (!valid_object_name(name)) return bad_name(name, where);
  UniqueFd fd(::openat(directory_.fd(), file_of(name).c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return os_error(errno, where, "cannot open object " + name);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return os_error(errno, where, "cannot look at object " + name);
  if (!S_ISREG(status.st_mode)) {
    return Error{
        .code = ErrorCode::corrupt, .where = where, .detail = "object " + name + " is no regular file"};
  }
  return fd;
}

Result<UniqueFd> EmulatedBackend::open(const std::string& name, ObjectAccess access) {
  return open_object(name, access == ObjectAccess::read_write ? O_RDWR : O_RDONLY);
}

Status EmulatedBackend::fence(const std::string& name) {
  constexpr const char* where = "EmulatedBackend::fence";
  if (const int code = TERRACE_FAILPOINT(fence_before_truncate); code != 0)
    return os_error(code, where, "cannot fence object " + name);
  const Result<UniqueFd> fd = open_object(name, O_RDWR);
  if (!fd.ok()) return fd.error().code == ErrorCode::not_found ? Status() : Status(fd.error());
  struct stat status {};
  if (::fstat(fd->get(), &status) == 0) remember_size(name, static_cast<uint64_t>(status.st_size));
  if (::ftruncate(fd->get(), 0) != 0) return os_error(errno, where, "cannot fence object " + name);
  if (const int code = TERRACE_FAILPOINT(fence_after_truncate); code != 0)
    return os_error(code, where, "cannot confirm the fence of object " + name);
  return {};
}

Result<uint64_t> EmulatedBackend::scrub(const std::string& name) {
  constexpr const char* where = "EmulatedBackend::scrub";
  const Result<UniqueFd> fd = open_object(name, O_RDWR);
  if (!fd.ok()) {
    if (fd.error().code == ErrorCode::not_found) return forget_size(name);
    Error error = fd.error();
    if (error.code != ErrorCode::invalid_argument) error.code = ErrorCode::io_error;
    return error;
  }
  struct stat status {};
  if (::fstat(fd->get(), &status) == 0) remember_size(name, static_cast<uint64_t>(status.st_size));
  for (int attempt = 0; attempt < scrub_attempts; ++attempt) {
    TERRACE_ASSIGN_OR_RETURN(const bool removed, truncate_and_unlink(fd->get(), name));
    if (!removed) continue;
    const uint64_t bytes = forget_size(name);
    if (const int code = TERRACE_FAILPOINT(scrub_after_unlink); code != 0)
      return Error{ErrorCode::io_error, code, where, "cannot confirm the scrub of object " + name};
    return bytes;
  }
  return Error{.code = ErrorCode::io_error,
               .where = where,
               .detail = "a holder of the fenced object " + name +
                         " keeps growing it, so that it still holds memory; end that process"};
}

// One attempt. Returns whether the object was seen without memory and is gone.
Result<bool> EmulatedBackend::truncate_and_unlink(int fd, const std::string& name) const {
  constexpr const char* where = "EmulatedBackend::scrub";
  const auto cannot = [&](const char* what, int code) {
    return Error{ErrorCode::io_error, code, where, std::string("cannot ") + what + " object " + name};
  };
  const auto holds_memory = [fd] {
    struct stat status {};
    return ::fstat(fd, &status) != 0 || status.st_size != 0 || status.st_blocks != 0;
  };
  if (::ftruncate(fd, 0) != 0) return cannot("truncate", errno);
  if (const int code = TERRACE_FAILPOINT(scrub_before_verify); code != 0) return cannot("verify", code);
  if (holds_memory()) return false;
  if (const int code = TERRACE_FAILPOINT(scrub_before_unlink); code != 0) return cannot("remove", code);
  // A holder may have grown it since; what it does between here and the unlink stays its own pages.
  if (::ftruncate(fd, 0) != 0) return cannot("truncate", errno);
  if (holds_memory()) return false;
  if (::unlinkat(directory_.fd(), file_of(name).c_str(), 0) != 0 && errno != ENOENT)
    return cannot("remove", errno);
  return true;
}

Result<std::vector<ObservedObject>> EmulatedBackend::list() {
  constexpr const char* where = "EmulatedBackend::list";
  const int copy = ::openat(directory_.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return os_error(errno, where, "cannot open " + directory_.path());
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(copy), ::closedir);
  if (stream == nullptr) {
    const int code = errno;
    ::close(copy);
    return os_error(code, where, "cannot list " + directory_.path());
  }
  std::vector<ObservedObject> objects;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr && errno != 0) return os_error(errno, where, "cannot list " + directory_.path());
    if (entry == nullptr) break;
    const std::string_view file = entry->d_name;
    if (!file.ends_with(suffix)) continue;
    const std::string name(file.substr(0, file.size() - suffix.size()));
    struct stat status {};
    if (::fstatat(directory_.fd(), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;  // removed meanwhile
      return os_error(errno, where, "cannot look at object " + name);
    }
    if (!S_ISREG(status.st_mode) || !valid_object_name(name)) continue;  // none of ours
    remember_size(name, static_cast<uint64_t>(status.st_size));
    objects.push_back(observed(name, status));
  }
  std::sort(objects.begin(), objects.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return objects;
}

Result<ObservedObject> EmulatedBackend::usage(const std::string& name) {
  constexpr const char* where = "EmulatedBackend::usage";
  if (!valid_object_name(name)) return bad_name(name, where);
  struct stat status {};
  if (::fstatat(directory_.fd(), file_of(name).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return os_error(errno, where, "cannot look at object " + name);
  return observed(name, status);
}

void EmulatedBackend::remember_size(const std::string& name, uint64_t bytes) {
  const std::lock_guard lock(sizes_mutex_);
  uint64_t& size = sizes_[name];
  size = std::max(size, bytes);
}

uint64_t EmulatedBackend::forget_size(const std::string& name) {
  const std::lock_guard lock(sizes_mutex_);
  const auto found = sizes_.find(name);
  if (found == sizes_.end()) return 0;
  const uint64_t bytes = found->second;
  sizes_.erase(found);
  return bytes;
}

}  // namespace terrace::daemon
