// A Backend whose objects are memfds of this process, for tests of the layers above it. Faults are set by
// the test; real files, mounts and kernels are the business of tests/unit/backend and tests/integration.
//
// Threads   As Backend; the fault switches are atomic.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>

#include "daemon/backend/backend.h"

namespace terrace::test {

class MemoryBackend final : public daemon::Backend {
 public:
  std::string_view kind() const override { return "emulated"; }
  std::vector<daemon::SeenDevice> discover() override {
    return {{"emu:a", "emulated", device_bytes, 2 * mib, "test"},
            {"emu:b", "emulated", device_bytes, 2 * mib, "test"}};
  }

  Status carve(const std::string& name, uint64_t bytes, const std::vector<daemon::Extent>&) override {
    if (fail_carve) return os_error(ENOSPC, "carve", "no room");
    UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC));
    if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
      return os_error(errno, "carve", "memfd");
    const std::lock_guard lock(mutex_);
    if (!objects_.try_emplace(name, std::move(fd)).second)
      return Error{.code = ErrorCode::already_exists, .where = "carve", .detail = name};
    return {};
  }
  Result<UniqueFd> open(const std::string& name, daemon::ObjectAccess access) override {
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find(name);
    if (at == objects_.end()) return Error{.code = ErrorCode::not_found, .where = "open", .detail = name};
    const std::string path = "/proc/self/fd/" + std::to_string(at->second.get());
    const int flags = access == daemon::ObjectAccess::read_write ? O_RDWR : O_RDONLY;
    UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC));
    if (!fd.valid()) return os_error(errno, "open", name);
    return fd;
  }
  Status fence(const std::string& name) override {
    if (fence_errno != 0) return os_error(fence_errno, "fence", "planted");
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find(name);
    if (at != objects_.end() && ::ftruncate(at->second.get(), 0) != 0) return os_error(errno, "fence", name);
    return {};
  }
  Result<uint64_t> scrub(const std::string& name) override {
    if (fail_scrub) return os_error(EIO, "scrub", "planted");
    const std::lock_guard lock(mutex_);
    objects_.erase(name);
    return uint64_t{0};
  }
  Result<std::vector<daemon::ObservedObject>> list() override {
    const std::lock_guard lock(mutex_);
    std::vector<daemon::ObservedObject> found;
    for (const auto& [name, fd] : objects_) found.push_back(observe(name, fd.get()));
    return found;
  }
  Result<daemon::ObservedObject> usage(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find(name);
    if (at == objects_.end()) return Error{.code = ErrorCode::not_found, .where = "usage", .detail = name};
    return observe(name, at->second.get());
  }
  std::string describe_memory() const override { return "memfd"; }
  bool huge_pages() const override { return false; }

  uint64_t device_bytes = 64 * mib;
  std::atomic<bool> fail_carve{false}, fail_scrub{false};
  std::atomic<int> fence_errno{0};

 private:
  static daemon::ObservedObject observe(const std::string& name, int fd) {
    struct stat info {};
    ::fstat(fd, &info);
    return {name, static_cast<uint64_t>(info.st_size), static_cast<uint64_t>(info.st_blocks) * 512};
  }

  std::mutex mutex_;
  std::map<std::string, UniqueFd> objects_;
};

}  // namespace terrace::test
