// SPDX-License-Identifier: Apache-2.0
#include "libclient/io/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "core/base/failpoint.h"
#include "core/base/prng.h"
#include "core/base/units.h"

namespace terrace {
namespace {

constexpr const char* where = "export_safetensors";

// The name that a replacement really goes to: symbolic links stay, what they lead to is replaced. Only a
// regular file, or nothing, may be replaced: never a device, a fifo, a socket or a directory.
Result<std::string> replacement_target(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return path;
    return os_error(errno, where, path + ": cannot be looked at");
  }
  std::string target = path;
  if (S_ISLNK(found.st_mode)) {
    char* resolved = ::realpath(path.c_str(), nullptr);
    if (resolved == nullptr) return os_error(errno, where, path + ": is a symbolic link that leads nowhere");
    target = resolved;
    std::free(resolved);
    if (::lstat(target.c_str(), &found) != 0) return os_error(errno, where, target + ": cannot be looked at");
  }
  if (!S_ISREG(found.st_mode)) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = path + ": is not a regular file, so it is not replaced"};
  }
  return target;
}

}  // namespace

Result<TemporaryFile> TemporaryFile::create(const std::string& path, uint64_t bytes, bool replace) {
  if (!replace && ::access(path.c_str(), F_OK) == 0) {  // decided at the rename; here to fail early
    return os_error(EEXIST, where, path + ": exists already");
  }
  TemporaryFile file;
  file.replace_ = replace;
  file.target_ = path;
  if (replace) {
    TERRACE_ASSIGN_OR_RETURN(file.target_, replacement_target(path));
  }
  const size_t slash = file.target_.rfind('/');
  file.directory_ = slash == std::string::npos ? "." : slash == 0 ? "/" : file.target_.substr(0, slash);
  const std::string base = slash == std::string::npos ? file.target_ : file.target_.substr(slash + 1);
  if (base.empty()) {
    return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = path + ": names no file"};
  }
  char random[20];
  std::snprintf(random, sizeof random, ".%016llx", static_cast<unsigned long long>(secure_random_u64()));
  // A file name has at most 255 bytes; the suffix takes 22.
  file.path_ = file.directory_ + "/." + base.substr(0, 230) + random + ".tmp";
  file.fd_.reset(::open(file.path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.fd_.valid()) {
    const int failure = errno;
    file.path_.clear();
    return os_error(failure, where, path + ": cannot create a file in " + file.directory_);
  }
  if (::fallocate(file.fd(), 0, 0, static_cast<off_t>(bytes)) != 0 && errno == ENOSPC) {
    return os_error(ENOSPC, where, path + ": " + format_size(bytes) + " do not fit");
  }
  return file;
}

TemporaryFile::TemporaryFile(TemporaryFile&& other) noexcept
    : fd_(std::move(other.fd_)),
      directory_(std::move(other.directory_)),
      path_(std::exchange(other.path_, {})),
      target_(std::move(other.target_)),
      replace_(other.replace_) {}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Status TemporaryFile::commit() {
  if (::fsync(fd_.get()) != 0) return os_error(errno, where, target_ + ": syncing failed");
  if (const int failure = TERRACE_FAILPOINT(export_before_rename); failure != 0) {
    return os_error(failure, where, target_ + ": failpoint before the rename");
  }
  // Looked at again: it may have become something else while the bytes were written.
  if (replace_) TERRACE_RETURN_IF_ERROR(replacement_target(target_));
  if (!rename_to_target()) {
    return os_error(errno, where,
                    target_ + (replace_ ? ": cannot be replaced" : ": cannot be made; does it exist?"));
  }
  path_.clear();
  if (const int failure = TERRACE_FAILPOINT(export_after_rename); failure != 0) {
    return os_error(failure, where, target_ + ": failpoint after the rename");
  }
  const UniqueFd directory(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a directory and say EINVAL: there the rename is as durable as it gets.
  if (!directory.valid() || (::fsync(directory.get()) != 0 && errno != EINVAL)) {
    return os_error(errno, where, target_ + ": is complete, but syncing its directory failed");
  }
  return {};
}

bool TemporaryFile::rename_to_target() {
  if (replace_) return ::rename(path_.c_str(), target_.c_str()) == 0;
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL) return false;
  // A file system without that flag: a link never replaces either, and takes a second step.
  return ::link(path_.c_str(), target_.c_str()) == 0 && ::unlink(path_.c_str()) == 0;
}

}  // namespace terrace
