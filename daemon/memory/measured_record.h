// SPDX-License-Identifier: Apache-2.0
// Measurements of devices without figures from the firmware, kept beside the store: a device is measured once,
// when it is adopted, and not again by the next process. A device of another size is another memory.
//
// A small text file, replaced as a whole and not synced: one that is lost or torn costs a measurement
// (docs/formats/measured_record.md).
//
// Threads   Any. set() writes a file; find() never waits for that.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/base/sync/mutex.h"
#include "core/os/measure_memory.h"
#include "daemon/memory/tier_attributes.h"

namespace terrace::daemon {

class MeasuredRecord {
 public:
  // Empty: remembered by this object alone.
  explicit MeasuredRecord(std::string path = {});

  // Not known() where that device was not measured.
  os::MemorySpeed find(const std::string& serial, uint64_t device_bytes) const;
  // What is not known() is left out. A file that cannot be written is written with the next one.
  void set(const std::string& serial, uint64_t device_bytes, os::MemorySpeed speed);
  // It was removed: what is adopted under that name next is measured anew.
  void forget(const std::string& serial);

 private:
  struct Entry {
    uint64_t device_bytes = 0;
    os::MemorySpeed speed;
  };

  void load();
  void save() const TERRACE_REQUIRES(writing_);

  const std::string path_;
  Mutex writing_ TERRACE_ACQUIRED_BEFORE(mutex_);  // the file, which is written by one at a time
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ TERRACE_GUARDED_BY(mutex_);  // by serial
};

// What is told of a device, with what was measured of it where the firmware says nothing. No record: nothing
// was.
TierAttributes with_measured_speed(TierAttributes told, const MeasuredRecord* record, const std::string& serial,
                                   uint64_t device_bytes);

}  // namespace terrace::daemon
