// SPDX-License-Identifier: Apache-2.0
// The files of a spill folder: making them, checking whose they are, locks, mappings.
//
//   kv-spill.map, kv-spill.data, kv-spill.NN.index
//
// A lock (flock) on the map says that the folder is in use; one on an index, that its slot is owned. Both end with the
// process, and so does every claim: there is nothing to clean up before the next one begins.
//
// Threads   Any; making a mapping takes a mutex, looking at one does not.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"
#include "core/os/memory_map.h"
#include "libclient/kv/spill/spill_map.h"

namespace terrace::kv {

// A mapped file has all its blocks before it is stored to: a full disk is an error here, not a SIGBUS later. The caller
// has SignalsBlocked around it.
Status give_file_length(int fd, uint64_t bytes, const std::string& name);

class SpillFolder {
 public:
  // Errors    as KvSpill::open
  static Result<std::unique_ptr<SpillFolder>> open(const std::string& path, const KvSpillOptions& options);
  ~SpillFolder();

  const SpillGeometry& geometry() const { return geometry_; }
  SpillMap& map() { return *map_; }
  int data() const { return data_.get(); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  bool direct() const { return direct_.load(std::memory_order_relaxed); }
  std::string direct_reason() const;
  // After a request that O_DIRECT refused: everything goes through the page cache from now on.
  void give_up_direct(int os_errno);

  // Of a slot that somebody has owned; nullptr: nobody has, or its file is not whole.
  SlotIndex* index(uint32_t slot);
  // Owns a slot that nobody has, first those with blocks of the dead. Nothing: all are owned.
  // Errors    capacity_exhausted and others: the index cannot be made
  Result<std::optional<uint32_t>> take_slot();
  void leave_slot(uint32_t slot);
  // The lock of a slot whose owner is dead or left; false: somebody has it. For a moment: unlock_slot().
  bool lock_slot(uint32_t slot);
  void unlock_slot(uint32_t slot);

 private:
  SpillFolder() = default;
  struct Slot {
    std::atomic<SlotIndex*> index = nullptr;
    std::unique_ptr<SlotIndex> held;
    os::MemoryMap memory;
    UniqueFd file;
    uint64_t failed_epoch = 0;  // mapping it was tried in vain
  };

  Status open_map(const KvSpillOptions& options);
  Status make_map(const KvSpillOptions& options, bool replaces);
  Status open_data(bool direct);
  Result<UniqueFd> open_file(const std::string& name, int flags) const;
  Status check_owner(int fd, const std::string& name) const;
  Status make_index(uint32_t slot, int fd);
  bool map_index(uint32_t slot) TERRACE_REQUIRES(mutex_);
  std::string index_name(uint32_t slot) const;

  std::string folder_;
  bool puts_ = true;
  SpillGeometry geometry_;
  UniqueFd map_file_;
  os::MemoryMap map_memory_;
  std::unique_ptr<SpillMap> map_;
  UniqueFd data_;
  std::atomic<bool> direct_ = false;
  mutable Mutex mutex_;
  std::string direct_reason_ TERRACE_GUARDED_BY(mutex_);
  std::array<Slot, layout::spill_slots> slots_;  // all but `index` under mutex_
};

}  // namespace terrace::kv
