// SPDX-License-Identifier: Apache-2.0
// Which processes map or hold open which memory object, as /proc tells: also objects that have no name any
// more.
//
// Threads   Any; only reads. Processes come and go meanwhile: what is told was true a moment ago.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

struct LiveMapping {
  pid_t pid = 0;
  std::string command;   // its name, printable ASCII
  std::string object;    // the object's name, without ".obj"
  bool deleted = false;  // the object was removed; this process alone keeps what is left of it
  bool open = false;     // through a descriptor
  uint64_t mapped_bytes = 0;
};

struct ProcessScan {
  std::vector<LiveMapping> mappings;  // one for each process and object, by pid; never this process
  uint64_t processes = 0;             // that were looked at
  uint64_t unreadable = 0;            // of other users: to be seen by root alone
  bool complete = true;               // false: the time was over first
};

// Looks at each process for objects in `object_directory`. That one need not exist: then nobody has any. With
// `dax_devices` also for dax devices that were destroyed ("dax0.3", deleted), whosever they were.
// Errors    unsupported   there is no /proc to read
Result<ProcessScan> scan_processes(const std::string& object_directory,
                                   std::chrono::milliseconds time_max = std::chrono::seconds(5),
                                   bool dax_devices = false);

// The same without the circumstances, for those who only look for what they find; an error finds nothing.
std::vector<LiveMapping> scan_mappings(const std::string& object_directory, bool dax_devices = false);

// Whether leases may be dax devices: one of the adopted devices is of a kind whose objects are.
bool has_dax_devices(const Image& image);

}  // namespace terrace::daemon
