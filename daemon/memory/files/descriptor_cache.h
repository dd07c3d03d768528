// SPDX-License-Identifier: Apache-2.0
// A few descriptors of objects that were just carved or fenced, so that the next step of a short-lived lease
// opens nothing. Bounded: a slot a hash of the name, the newest object takes it.
//
// A kept descriptor shares its open file description with the holder's (share() duplicates it). A holder can
// thus move its file offset and change its status flags: use it only for calls that depend on neither
// (ftruncate, fallocate, fstat).
//
// Threads   Any.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {

class DescriptorCache {
 public:
  // Enough for every lease whose grant and release are under way at once; each costs a descriptor.
  static constexpr size_t slots = 256;

  struct Entry {
    UniqueFd fd;         // invalid: not kept
    uint64_t bytes = 0;  // what the object occupied when it was carved, resized or fenced
  };

  void put(const std::string& name, Entry entry);
  // Gives the entry to the caller alone.
  Entry take(const std::string& name);
  // A duplicate for a holder, close-on-exec; invalid when none is kept or none can be made.
  UniqueFd share(const std::string& name);
  // Closes all: an open file would keep its mount busy, and descriptors may be short.
  void clear();

 private:
  struct Slot {
    std::string name;
    Entry entry;
  };
  Slot& slot_of(const std::string& name) TERRACE_REQUIRES(mutex_);

  Mutex mutex_;
  std::array<Slot, slots> table_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::daemon
