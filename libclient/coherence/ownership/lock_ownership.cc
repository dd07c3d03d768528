// SPDX-License-Identifier: Apache-2.0
// Ownership of parts by open-file-description locks, one byte a part, far behind the file's end.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <unordered_set>

#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"
#include "terrace/host_ownership.h"
#include "terrace/tensor_space.h"

namespace terrace {
namespace {

constexpr off_t first_byte = off_t{1} << 62;

// Spaces that share a file begin at different bytes, at least a part's size apart.
struct flock lock_of(uint64_t space_offset, uint32_t part, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = first_byte + static_cast<off_t>(space_offset) + part;
  lock.l_len = 1;
  return lock;
}

class LockOwnership final : public OwnershipSource {
 public:
  LockOwnership(UniqueFd file, uint64_t space_offset) : file_(std::move(file)), space_offset_(space_offset) {}

  Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) override {
    if (::getpid() != process_)
      return Error{.code = ErrorCode::unavailable,
                   .where = "ownership_by_locks",
                   .detail = "the ownership belongs to the process that forked this one; open the file again"};
    struct flock lock = lock_of(space_offset_, part, F_WRLCK);
    MutexLock guard(mutex_);
    // The lock belongs to the description: taken twice through it, it would be granted twice.
    const bool taken = held_.count(part) != 0;
    if (taken || ::fcntl(file_.get(), F_OFD_SETLK, &lock) != 0) {
      if (taken || errno == EAGAIN || errno == EACCES)
        return Error{.code = ErrorCode::busy,
                     .where = "ownership_by_locks",
                     .detail = "part " + std::to_string(part) + " has an owner that lives"};
      return os_error(errno, "ownership_by_locks", "cannot lock part " + std::to_string(part));
    }
    const uint64_t last = last_epoch();
    if (last >= host_epochs_from) {
      lock.l_type = F_UNLCK;
      (void)::fcntl(file_.get(), F_OFD_SETLK, &lock);
      return Error{.code = ErrorCode::permission_denied,
                   .where = "ownership_by_locks",
                   .detail = "part " + std::to_string(part) +
                             " had an owner by host (ownership_by_host_ranges): all holders of a space use the "
                             "same kind of source; format it anew to change that"};
    }
    held_.insert(part);
    return last + 1;
  }

  // A forked child has the same description: what it unlocked would be lost to its parent.
  void release(uint32_t part) override {
    if (::getpid() != process_) return;
    struct flock lock = lock_of(space_offset_, part, F_UNLCK);
    MutexLock guard(mutex_);
    held_.erase(part);
    (void)::fcntl(file_.get(), F_OFD_SETLK, &lock);
  }

  SpaceOwnership kind() const override { return SpaceOwnership::locks; }

  bool is_dead(uint32_t part, uint64_t /*epoch*/) override {
    struct flock lock = lock_of(space_offset_, part, F_WRLCK);
    MutexLock guard(mutex_);
    if (held_.count(part) != 0) return false;
    return ::fcntl(file_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
  }

 private:
  const UniqueFd file_;
  const uint64_t space_offset_;
  const pid_t process_ = ::getpid();
  Mutex mutex_;
  std::unordered_set<uint32_t> held_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::shared_ptr<OwnershipSource>> ownership_by_locks(int fd, uint64_t space_offset) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid())
    return os_error(errno, "ownership_by_locks", "cannot open the space's file again through " + path);
  return std::shared_ptr<OwnershipSource>(std::make_shared<LockOwnership>(std::move(file), space_offset));
}

}  // namespace terrace
