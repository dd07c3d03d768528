// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/files/mount_size.h"

#include <sys/mount.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/units.h"

namespace terrace::daemon {
namespace {

// A file that is shorter than a huge page may still have one.
constexpr uint64_t charged_unit = 2 * mib;

// For what lies beside the objects: whose the directory is, marks of unplugged devices.
constexpr uint64_t beside_bytes = 64 * kib;

// How often a holder that takes room without a pause is cut back before the mount stays too large for now. The
// next change tries again.
constexpr int attempts_max = 32;

uint64_t charged(uint64_t bytes) {
  return bytes > UINT64_MAX - charged_unit ? bytes : (bytes + charged_unit - 1) / charged_unit * charged_unit;
}

}  // namespace

void MountSize::start(const Options& options, std::map<std::string, uint64_t> allowed, CutBack cut_back) {
  const MutexLock lock(mutex_);
  options_ = options;
  cut_back_ = std::move(cut_back);
  allowed_ = std::move(allowed);
  total_ = 0;
  for (auto& [name, bytes] : allowed_) total_ += bytes = charged(bytes);
  active_.store(true, std::memory_order_relaxed);
  apply();
}

void MountSize::set_bytes_max(uint64_t bytes) {
  const MutexLock lock(mutex_);
  options_.bytes_max = bytes;
  applied_ = 0;  // who made it larger changed the mount
  if (active()) apply();
}

void MountSize::raise(const std::string& name, uint64_t bytes) {
  change(name, bytes, true, false);
}

void MountSize::lower(const std::string& name, uint64_t bytes) {
  change(name, bytes, false, true);
}

void MountSize::set(const std::string& name, uint64_t bytes) {
  change(name, bytes, true, true);
}

void MountSize::change(const std::string& name, uint64_t bytes, bool may_raise, bool may_lower) {
  if (!active()) return;
  const MutexLock lock(mutex_);
  uint64_t& now = allowed_[name];
  const uint64_t next = charged(bytes);
  if ((next > now && may_raise) || (next < now && may_lower)) {
    total_ = total_ - now + next;
    now = next;
  }
  apply();
}

void MountSize::forget(const std::string& name) {
  if (!active()) return;
  const MutexLock lock(mutex_);
  const auto found = allowed_.find(name);
  if (found == allowed_.end()) return;
  total_ -= found->second;
  allowed_.erase(found);
  apply();
}

std::optional<uint64_t> MountSize::allowed(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto found = allowed_.find(name);
  return found == allowed_.end() ? std::nullopt : std::optional<uint64_t>(found->second);
}

void MountSize::apply() {
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    const uint64_t wanted = std::min(total_, options_.bytes_max) + beside_bytes;
    if (wanted == applied_) return;
    const int error = set_size(wanted);
    if (error == 0) {
      applied_ = wanted;
      return;
    }
    if (error != EINVAL) {
      // Not this process's to change: the mount stays as it is. Anything else may pass.
      if (applied_ == 0) active_.store(false, std::memory_order_relaxed);
      return;
    }
    // More is used than that: somebody has what it may not have.
    const MutexUnlock unlocked(mutex_);
    cut_back_();
  }
}

// Through the superblock's own context where there is one: a remount tells everybody who watches the mount table,
// which a service manager reads as a whole each time.
int MountSize::set_size(uint64_t bytes) {
  const std::string text = std::to_string(bytes);
  if (!context_.valid()) context_.reset(::fspick(options_.directory, "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC));
  if (context_.valid()) {
    if (::fsconfig(context_.get(), FSCONFIG_SET_STRING, "size", text.c_str(), 0) == 0 &&
        ::fsconfig(context_.get(), FSCONFIG_CMD_RECONFIGURE, nullptr, nullptr, 0) == 0)
      return 0;
    const int error = errno;
    context_.reset();
    if (error != EPERM && error != ENOSYS) return error;
  }
  const std::string target = "/proc/self/fd/" + std::to_string(options_.directory);
  const std::string data = "size=" + text;
  const unsigned long flags = MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC;
  return ::mount("terraced", target.c_str(), "tmpfs", flags, data.c_str()) == 0 ? 0 : errno;
}

}  // namespace terrace::daemon
