// SPDX-License-Identifier: Apache-2.0
// A checkpoint's directory on the disk: under a hidden name until it is complete.
//
//   DIR/.lock                 locked for a moment to make, commit, remove or clean
//   DIR/.NAME.tmp             being written: its writer holds a lock on it; without the lock its
//                             writer is dead
//   DIR/.NAME.deleted         on its way out
//   DIR/NAME                  a checkpoint
//
// Crash     A writer's death leaves .NAME.tmp; the next list(), or the next write of that name, removes it. The
//           rename to NAME is the last step, after all was synced.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "libclient/checkpoint/manifest.h"

namespace terrace::checkpoint {

// A lock of flock() that ends with it: also where a child of fork, which inherits the description of the file,
// has it open still. Only one whose holder died holding it lasts until that child closes it.
class FolderLock {
 public:
  FolderLock() = default;
  explicit FolderLock(UniqueFd locked) : fd_(std::move(locked)) {}
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&& other) noexcept {
    unlock();
    fd_ = std::move(other.fd_);
    return *this;
  }
  ~FolderLock() { unlock(); }
  void unlock();
  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

// Of a directory of checkpoints, while it lives. Errors: permission_denied, io_error.
Result<FolderLock> lock_directory(const std::string& path);

// The names in a directory, in no order. What ended it early, if anything did.
std::error_code for_each_name(const std::string& path, const std::function<void(const std::string&)>& each);

// Of the directory at `path`, for one who made there what must outlast a crash. Errors: io_error.
Status sync_directory(const std::string& path);

// A checkpoint that is being made; removed again unless it was committed.
class NewFolder {
 public:
  // Errors    already_exists, busy (somebody writes it), capacity_exhausted (`file_bytes` do not fit), ...
  static Result<std::unique_ptr<NewFolder>> make(const std::string& directory, const std::string& name,
                                                 uint64_t file_bytes);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  int fd() const { return data_.get(); }
  const std::string& data_path() const { return data_path_; }
  // Syncs the data, writes the manifest, and gives it its name. An error whose text says that it has its name
  // is one of syncing that: it is there and complete, and may be gone again when the machine dies soon.
  Status commit(const Manifest& manifest);

 private:
  NewFolder(std::string directory, std::string name);

  const std::string directory_, name_, path_, data_path_;
  FolderLock folder_;
  UniqueFd data_;
  bool made_ = false;
};

// The manifest of DIR/NAME, and that the file beside it is as long as it says. Errors: not_found, corrupt, ...
Result<Manifest> read_folder(const std::string& directory, const std::string& name);

// Removes what dead writers and removers left. Requires the lock. Counts what it removed, and what lives.
void clean(const std::string& directory, uint64_t* removed, uint64_t* alive);

// Requires the lock. Errors: not_found, ...
Status remove_folder(const std::string& directory, const std::string& name);

}  // namespace terrace::checkpoint
