// SPDX-License-Identifier: Apache-2.0
// A Backend whose objects are memfds of this process, for tests of the layers above it. Faults are set by
// the test; real files, mounts and kernels are the business of tests/unit/memory and tests/integration.
//
// Threads   As Backend; the fault switches are atomic.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/base/units.h"
#include "daemon/memory/backend.h"

namespace terrace::test {

class MemoryBackend final : public daemon::Backend {
 public:
  std::string_view kind() const override { return kind_name; }
  std::string kind_name = "emulated";  // set before it is used
  std::vector<daemon::SeenDevice> discover() override {
    std::vector<daemon::SeenDevice> seen;
    const std::lock_guard lock(mutex_);
    for (const char* serial : {"emu:a", "emu:b"})
      if (!unplugged_.contains(serial)) seen.push_back({serial, "emulated", device_bytes, 2 * mib, "test"});
    return seen;
  }
  Status refresh() override {
    ++refreshes;
    if (blind) return os_error(EMFILE, "refresh", "planted");
    return {};
  }
  bool saw_all(std::string_view) const override { return !blind; }
  bool outlasts_absence(std::string_view) const override { return lasting; }
  std::atomic<bool> held{false};  // a take-over waits for as long as it is
  Status may_take_over(const std::string&) override {
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return in_use();
  }
  Status take_over(const std::string&) override {
    ++take_overs;
    return in_use();
  }
  void unplug(const std::string& serial) {
    const std::lock_guard lock(mutex_);
    unplugged_.insert(serial);
  }
  void plug(const std::string& serial) {
    const std::lock_guard lock(mutex_);
    unplugged_.erase(serial);
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
    if (at == objects_.end()) return {};
    if (in_place && !kept_.contains(name)) kept_[name] = observe(name, at->second.get()).bytes;
    if (::ftruncate(at->second.get(), 0) != 0) return os_error(errno, "fence", name);
    return {};
  }
  Result<uint64_t> scrub(const std::string& name) override {
    if (fail_scrub) return os_error(EIO, "scrub", "planted");
    const std::lock_guard lock(mutex_);
    if (in_place && kept_.contains(name) && kept_[name] != 0)
      return Error{.code = ErrorCode::io_error, .where = "scrub", .detail = "bytes were left"};
    kept_.erase(name);
    objects_.erase(name);
    handed_out_.erase(name);
    return uint64_t{0};
  }
  std::function<void()> while_listed;  // set before it is used; without the lock
  Result<std::vector<daemon::ObservedObject>> list() override {
    if (while_listed) while_listed();
    const std::lock_guard lock(mutex_);
    std::vector<daemon::ObservedObject> found;
    if (hide_objects) return found;
    for (const auto& [name, fd] : objects_) {
      found.push_back(observe(name, fd.get()));
      found.back().handed_out = handed_out_.contains(name);
    }
    return found;
  }
  Status claim(const daemon::StoreClaim& claim) override {
    claims.push_back(claim);
    if (!foreign || claim.take_over) return {};
    return Error{.code = ErrorCode::invalid_argument, .where = "claim", .detail = "another store's"};
  }
  Status hand_out(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    handed_out_.insert(name);
    return {};
  }
  daemon::TierAttributes attributes(const std::string&) const override {
    return {.fence = pins_outlast ? daemon::Fence::trusting : daemon::Fence::verified};
  }
  Result<daemon::ObservedObject> usage(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find(name);
    if (at == objects_.end()) return Error{.code = ErrorCode::not_found, .where = "usage", .detail = name};
    return observe(name, at->second.get());
  }
  // With `in_place`, a fence leaves the bytes (as dax memory would) until erase() was called for all of them;
  // scrub() then refuses what was not erased.
  bool erases_in_place(std::string_view) const override { return in_place; }
  daemon::Kept kept(const std::string&, const std::vector<daemon::Extent>&) override {
    ++kept_asked;
    return pages_held ? daemon::Kept::yes : daemon::Kept::ended;
  }
  Status erase(const std::string& name, const std::vector<daemon::Extent>&, uint64_t offset,
               uint64_t length) override {
    if (fail_erase) return os_error(EIO, "erase", "planted");
    if (pages_held) return Error{.code = ErrorCode::busy, .where = "erase", .detail = "pages are held"};
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find(name);
    if (at == objects_.end()) return {};
    uint64_t& left = kept_[name];
    if (offset + length < left)
      return Error{
          .code = ErrorCode::internal, .where = "erase", .detail = "bytes after it are not erased yet"};
    left = std::min(left, offset);
    ++erasures;
    return {};
  }
  Status resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                const std::vector<daemon::Extent>&) override {
    if (fail_resize) return os_error(ENOSPC, "resize", "no room");
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find(name);
    if (at == objects_.end()) return Error{.code = ErrorCode::not_found, .where = "resize", .detail = name};
    const uint64_t now = observe(name, at->second.get()).bytes;
    if (now == 0 || now < std::min(from_bytes, to_bytes))
      return Error{.code = ErrorCode::busy, .where = "resize", .detail = name};
    if (::ftruncate(at->second.get(), static_cast<off_t>(to_bytes)) != 0)
      return os_error(errno, "resize", name);
    return {};
  }
  Status rebind(const std::string& from, const std::string& to, uint64_t bytes,
                const std::vector<daemon::Extent>& extents) override {
    if (fail_rebind) return os_error(EIO, "rebind", "planted");
    if (!usage(from).ok()) {
      const auto done = usage(to);
      if (done.ok() && done->bytes == bytes) return {};
      return Error{.code = ErrorCode::corrupt, .where = "rebind", .detail = from};
    }
    if (!usage(to).ok()) TERRACE_RETURN_IF_ERROR(carve(to, bytes, extents));
    TERRACE_RETURN_IF_ERROR(copy(from, to, bytes));
    const std::lock_guard lock(mutex_);
    if (::ftruncate(objects_[from].get(), 0) != 0) return os_error(errno, "rebind", from);
    objects_.erase(from);
    return {};
  }
  Status copy(const std::string& from, const std::string& to, uint64_t bytes) override {
    if (during_copy) during_copy();
    const std::lock_guard lock(mutex_);
    const auto source = objects_.find(from);
    const auto target = objects_.find(to);
    if (source == objects_.end() || target == objects_.end())
      return Error{.code = ErrorCode::not_found, .where = "copy", .detail = from};
    std::vector<char> buffer(bytes);
    const auto size = static_cast<ssize_t>(bytes);
    if (::pread(source->second.get(), buffer.data(), bytes, 0) != size ||
        ::pwrite(target->second.get(), buffer.data(), bytes, 0) != size)
      return Error{.code = ErrorCode::corrupt, .where = "copy", .detail = from};
    return {};
  }
  bool quick(std::string_view, uint64_t bytes) const override { return bytes <= quick_bytes; }
  std::string describe_memory() const override { return "memfd"; }
  bool huge_pages(std::string_view) const override { return false; }

  uint64_t device_bytes = 64 * mib;
  std::atomic<bool> pins_outlast{false};  // its memory is for tenants who trust each other
  std::atomic<bool> pages_held{false};    // memory of fenced objects cannot be erased yet
  std::atomic<int> kept_asked{0};
  std::atomic<bool> fail_carve{false}, fail_scrub{false}, fail_erase{false};
  std::atomic<bool> fail_resize{false}, fail_rebind{false};
  std::atomic<uint64_t> quick_bytes{0};
  bool in_place = false;              // set before any lease is granted
  std::function<void()> during_copy;  // on the worker's thread; set before any move begins
  std::atomic<int> erasures{0};
  std::atomic<bool> blind{false};         // devices cannot be looked at
  std::atomic<bool> lasting{false};       // objects outlast the absence of their device
  std::atomic<bool> hide_objects{false};  // as when their device is not there
  std::atomic<bool> used{false};          // a device that is to be taken over
  std::atomic<int> refreshes{0}, take_overs{0};
  std::atomic<int> fence_errno{0};
  std::atomic<bool> foreign{false};        // what there is belongs to another store
  std::vector<daemon::StoreClaim> claims;  // to be looked at while no start is under way

 private:
  Status in_use() const {
    if (!used) return {};
    return Error{.code = ErrorCode::busy, .where = "take_over", .detail = "held by process 12 (vllm)"};
  }
  static daemon::ObservedObject observe(const std::string& name, int fd) {
    struct stat info {};
    ::fstat(fd, &info);
    return {name, static_cast<uint64_t>(info.st_size), static_cast<uint64_t>(info.st_blocks) * 512};
  }

  std::mutex mutex_;
  std::set<std::string> unplugged_, handed_out_;
  std::map<std::string, UniqueFd> objects_;
  std::map<std::string, uint64_t> kept_;  // of fenced objects: bytes from the start that were not erased yet
};

}  // namespace terrace::test
