// SPDX-License-Identifier: Apache-2.0
#include "libclient/checkpoint/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "core/base/failpoint.h"

namespace terrace::checkpoint {
namespace {

constexpr const char* where = "checkpoint";
constexpr const char* half_written_suffix = ".tmp";
constexpr const char* deleted_suffix = ".deleted";

std::string hidden(const std::string& directory, const std::string& name, const char* suffix) {
  return directory + "/." + name + suffix;
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

// Its lock is taken as long as the writer lives.
FolderLock lock_folder(const std::string& path) {
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid() || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) return {};
  return FolderLock(std::move(folder));
}

// A directory with nothing in it but what a checkpoint has: others are never removed.
bool is_ours(const std::string& path) {
  std::error_code failed;
  if (!std::filesystem::is_directory(std::filesystem::symlink_status(path, failed))) return false;
  bool ours = true;
  failed =
      for_each_name(path, [&](const std::string& name) { ours &= name == manifest_name || name == data_name; });
  return ours && !failed;
}

void remove_ours(const std::string& path) {
  ::unlink((path + "/" + manifest_name).c_str());
  ::unlink((path + "/" + data_name).c_str());
  ::rmdir(path.c_str());
}

// True: nothing of that name is left. False: somebody writes it.
bool remove_if_left(const std::string& path) {
  if (!exists(path)) return true;
  const FolderLock folder = lock_folder(path);
  if (!folder.valid()) return false;
  remove_ours(path);
  return !exists(path);
}

Status write_file(int folder, const char* name, const std::string& text, const std::string& path) {
  const UniqueFd file(::openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.valid()) return os_error(errno, where, path + ": cannot make its manifest");
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return os_error(count < 0 ? errno : EIO, where, path + ": cannot write its manifest");
    done += static_cast<size_t>(count);
  }
  if (::fsync(file.get()) != 0) return os_error(errno, where, path + ": syncing its manifest failed");
  return {};
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() > end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

Status sync_directory(const std::string& path) {
  const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a directory and say EINVAL: there a rename is as durable as it gets.
  if (directory.valid() && (::fsync(directory.get()) == 0 || errno == EINVAL)) return {};
  return os_error(errno, where, path + ": syncing the directory failed");
}

std::error_code for_each_name(const std::string& path, const std::function<void(const std::string&)>& each) {
  std::error_code failed;
  // Not a range-for, whose increment throws.
  for (std::filesystem::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed))
    each(at->path().filename().string());
  return failed;
}

void FolderLock::unlock() {
  if (fd_.valid()) (void)::flock(fd_.get(), LOCK_UN);
  fd_.reset();
}

Result<FolderLock> lock_directory(const std::string& path) {
  UniqueFd lock(::open((path + "/.lock").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!lock.valid()) return os_error(errno, where, path + ": cannot be written to");
  while (::flock(lock.get(), LOCK_EX) != 0)
    if (errno != EINTR) return os_error(errno, where, path + ": cannot be locked");
  return FolderLock(std::move(lock));
}

NewFolder::NewFolder(std::string directory, std::string name)
    : directory_(std::move(directory)),
      name_(std::move(name)),
      path_(hidden(directory_, name_, half_written_suffix)),
      data_path_(path_ + "/" + data_name) {}

Result<std::unique_ptr<NewFolder>> NewFolder::make(const std::string& directory, const std::string& name,
                                                   uint64_t file_bytes) {
  TERRACE_RETURN_IF_ERROR(check_name(name));
  std::unique_ptr<NewFolder> folder(new NewFolder(directory, name));
  TERRACE_ASSIGN_OR_RETURN(const FolderLock lock, lock_directory(directory));
  if (exists(directory + "/" + name))
    return Error{
        .code = ErrorCode::already_exists,
        .where = where,
        .detail = "a checkpoint '" + name + "' exists in " + directory + "; remove it, or choose another name"};
  if (!remove_if_left(folder->path_))
    return Error{.code = ErrorCode::busy,
                 .where = where,
                 .detail = "checkpoint '" + name + "' is being written in " + directory};
  if (::mkdir(folder->path_.c_str(), 0777) != 0)
    return os_error(errno, where, directory + ": no directory can be made there");
  folder->made_ = true;
  folder->folder_ = lock_folder(folder->path_);
  if (!folder->folder_.valid()) return os_error(errno, where, folder->path_ + ": cannot be locked");
  folder->data_.reset(::openat(folder->folder_.fd(), data_name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!folder->data_.valid()) return os_error(errno, where, folder->path_ + ": no file can be made there");
  // Space for all of it now, rather than a failure at the end; not every file system can say.
  if (::fallocate(folder->fd(), 0, 0, static_cast<off_t>(file_bytes)) != 0 && errno == ENOSPC)
    return os_error(ENOSPC, where, directory + ": " + format_size(file_bytes) + " do not fit");
  return folder;
}

NewFolder::~NewFolder() {
  if (made_) remove_ours(path_);
}

Status NewFolder::commit(const Manifest& manifest) {
  if (::fsync(fd()) != 0) return os_error(errno, where, data_path_ + ": syncing failed");
  if (const int failure = TERRACE_FAILPOINT(checkpoint_before_manifest); failure != 0)
    return os_error(failure, where, data_path_ + ": failpoint before the manifest");
  TERRACE_RETURN_IF_ERROR(write_file(folder_.fd(), manifest_name, write_manifest(manifest), path_));
  TERRACE_RETURN_IF_ERROR(sync_directory(path_));
  if (const int failure = TERRACE_FAILPOINT(checkpoint_before_rename); failure != 0)
    return os_error(failure, where, path_ + ": failpoint before the rename");
  TERRACE_ASSIGN_OR_RETURN(const FolderLock lock, lock_directory(directory_));
  const std::string target = directory_ + "/" + name_;
  // Nobody else makes or removes it while the lock is held, but a stranger might.
  if (exists(target)) return os_error(EEXIST, where, target + ": was made by somebody else meanwhile");
  if (::rename(path_.c_str(), target.c_str()) != 0)
    return os_error(errno, where, target + ": cannot be given its name");
  made_ = false;
  if (const int failure = TERRACE_FAILPOINT(checkpoint_after_rename); failure != 0)
    return os_error(failure, where, target + ": failpoint after the rename");
  folder_.unlock();
  Status synced = sync_directory(directory_);
  if (synced.ok()) return {};
  Error error = std::move(synced).error();
  error.detail += "; checkpoint '" + name_ +
                  "' is there under its name and complete, but may not outlast a crash of "
                  "the machine";
  return error;
}

Result<Manifest> read_folder(const std::string& directory, const std::string& name) {
  TERRACE_RETURN_IF_ERROR(check_name(name));
  const std::string path = directory + "/" + name, file = path + "/" + manifest_name;
  if (!exists(path))
    return Error{
        .code = ErrorCode::not_found, .where = where, .detail = "no checkpoint '" + name + "' in " + directory};
  const auto corrupt = [&](const std::string& what) {
    return Error{.code = ErrorCode::corrupt, .where = where, .detail = path + ": " + what};
  };
  if (struct stat itself{}; ::lstat(path.c_str(), &itself) == 0 && S_ISLNK(itself.st_mode))
    return corrupt("is a link; checkpoints are directories of their own");
  // O_NONBLOCK: opening a FIFO must not wait.
  const UniqueFd manifest_fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!manifest_fd.valid() && (errno == ENOENT || errno == ENOTDIR)) return corrupt("has no manifest");
  if (!manifest_fd.valid() || ::fstat(manifest_fd.get(), &status) != 0)
    return os_error(errno, where, file + ": cannot be read");
  if (!S_ISREG(status.st_mode) || static_cast<uint64_t>(status.st_size) > manifest_bytes_max)
    return corrupt("its manifest is no file, or beyond " + format_size(manifest_bytes_max));
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::read(manifest_fd.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return os_error(errno, where, file + ": cannot be read");
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  TERRACE_ASSIGN_OR_RETURN(Manifest manifest, read_manifest(text, path));
  if (manifest.name != name) return corrupt("its manifest is that of '" + manifest.name.substr(0, 128) + "'");
  if (::stat((path + "/" + data_name).c_str(), &status) != 0 || !S_ISREG(status.st_mode))
    return corrupt(std::string("has no ") + data_name);
  if (static_cast<uint64_t>(status.st_size) != manifest.file_bytes)
    return corrupt(std::string(data_name) + " has " + std::to_string(status.st_size) + " bytes, not " +
                   std::to_string(manifest.file_bytes));
  return manifest;
}

void clean(const std::string& directory, uint64_t* removed, uint64_t* alive) {
  std::vector<std::string> left;
  (void)for_each_name(directory, [&](const std::string& name) {
    const std::string path = directory + "/" + name;
    if (name[0] == '.' && (ends_with(name, half_written_suffix) || ends_with(name, deleted_suffix)) &&
        is_ours(path))
      left.push_back(path);
  });
  for (const std::string& path : left) ++*(remove_if_left(path) ? removed : alive);
}

Status remove_folder(const std::string& directory, const std::string& name) {
  TERRACE_RETURN_IF_ERROR(check_name(name));
  const std::string path = directory + "/" + name, away = hidden(directory, name, deleted_suffix);
  if (!exists(path))
    return Error{
        .code = ErrorCode::not_found, .where = where, .detail = "no checkpoint '" + name + "' in " + directory};
  if (!is_ours(path))
    return Error{
        .code = ErrorCode::invalid_argument,
        .where = where,
        .detail = path + ": has files that are not of a checkpoint; look at it, and remove it yourself"};
  if (is_ours(away)) remove_ours(away);
  if (::rename(path.c_str(), away.c_str()) != 0) return os_error(errno, where, path + ": cannot be removed");
  if (const int failure = TERRACE_FAILPOINT(checkpoint_after_unlist); failure != 0)
    return os_error(failure, where, path + ": failpoint after it was taken from the list");
  TERRACE_RETURN_IF_ERROR(sync_directory(directory));
  remove_ours(away);
  if (exists(away))
    return Error{.code = ErrorCode::io_error,
                 .where = where,
                 .detail = away + ": is gone from the list, but not from the disk"};
  return {};
}

}  // namespace terrace::checkpoint
