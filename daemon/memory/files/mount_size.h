// SPDX-License-Identifier: Apache-2.0
// Keeps a tmpfs of ours as large as the memory that its objects may have, and no larger. A holder has a writable
// descriptor and can make its file longer; where all blocks of the mount are somebody's, that gives it none: the
// kernel refuses with ENOSPC, or SIGBUS for a store. docs/design/0032-lease-mounts.md says why not a mount each.
//
//   raise   before memory is reserved for an object
//   lower   after an object gave memory up; the mount shrinks behind it
//
// Between the two steps of each there is room for a moment, which whoever tries without a pause may get. So the
// size of the mount is taken to be right only when the kernel has taken it: it refuses one below what is used.
// Then, and where a reservation finds no room, the owner cuts back who has more than it may (CutBack).
//
// Threads   Any, once started. CutBack is called without the lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {

class MountSize {
 public:
  // Cuts back every object that has more memory than allowed() says; false: there was none.
  using CutBack = std::function<bool()>;

  struct Options {
    int directory = -1;      // where the tmpfs is mounted; outlives this
    uint64_t bytes_max = 0;  // however much is raised
  };

  // Takes the mount over with the objects that are there. Does nothing, now and later, where the kernel does not
  // let this process change the size; active() says so.
  void start(const Options& options, std::map<std::string, uint64_t> allowed, CutBack cut_back);
  bool active() const { return active_.load(std::memory_order_relaxed); }
  void set_bytes_max(uint64_t bytes);

  // The object may have at least that much, or at most, or what is given.
  void raise(const std::string& name, uint64_t bytes);
  void lower(const std::string& name, uint64_t bytes);
  void set(const std::string& name, uint64_t bytes);
  // It has no memory any more and its file is gone.
  void forget(const std::string& name);
  // What is charged for an object: whole huge pages. nullopt: one that nobody told of.
  std::optional<uint64_t> allowed(const std::string& name) const;

 private:
  void change(const std::string& name, uint64_t bytes, bool may_raise, bool may_lower);
  // Lets the lock go while cut_back_ is called.
  void apply() TERRACE_REQUIRES(mutex_);
  int set_size(uint64_t bytes) TERRACE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, uint64_t> allowed_ TERRACE_GUARDED_BY(mutex_);  // charged bytes
  uint64_t total_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t applied_ TERRACE_GUARDED_BY(mutex_) = 0;  // 0: not known
  Options options_ TERRACE_GUARDED_BY(mutex_);
  CutBack cut_back_;                             // from start() on the same, and called without the lock
  UniqueFd context_ TERRACE_GUARDED_BY(mutex_);  // of fspick(); a refused change makes it useless
  // relaxed: it only saves calls that would do nothing
  std::atomic<bool> active_{false};
};

}  // namespace terrace::daemon
