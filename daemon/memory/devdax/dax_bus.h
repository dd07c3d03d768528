// SPDX-License-Identifier: Apache-2.0
// The kernel's dynamic DAX regions as the devdax backend uses them: look, make a device, give it ranges, bind
// and unbind it, destroy it. One implementation is sysfs (dax_sysfs.h), one a made-up kernel (tests/support).
//
// Changes go through sysfs, not libdaxctl, for three reasons. A device of daxctl_region_create_dev is seen only
// by a context that reads everything again (215 ms with 300 devices). daxctl_dev_enable_devdax writes to the
// driver's new_id: kernel 6.1 then binds every unbound device, also one between its fence and its end, and old
// mappings of that one work again. libdaxctl 76.1 takes the first device of a region for one that can be
// destroyed.
//
// Behaviour of the kernel, and of the made-up one:
//   - sizes and ranges change only while no driver is bound (EBUSY); lengths are multiples of the alignment
//   - a range that another device has is refused with ENOMEM
//   - the ranges of a device follow each other in its mapping in the order in which they were given
//   - a device is destroyed only without driver and ranges; the region's first (daxX.0) never
//   - unbinding takes every mapping away: SIGBUS, and ENXIO for a new mmap of an old descriptor. Binding the
//     same device again brings the old mappings back: a fenced device must be destroyed instead
//   - nothing is zeroed
//
// Threads   Any; changes to one region follow each other (the backend sees to it).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {

// Physical addresses.
struct DaxRange {
  uint64_t start = 0;
  uint64_t bytes = 0;

  uint64_t end() const { return start + bytes; }
  bool overlaps(const DaxRange& other) const { return start < other.end() && other.start < end(); }
  bool operator==(const DaxRange&) const = default;
};

enum class DaxDriver : uint8_t {
  none,        // disabled
  device_dax,  // /dev/daxX.Y can be mapped
  kmem,        // the kernel's own memory ("system-ram")
  other,
};

struct DaxDevice {
  std::string name;  // "dax0.3", for now only: the kernel deals numbers out again
  DaxDriver driver = DaxDriver::none;
  uint64_t bytes = 0;
  uint64_t align_bytes = 0;
  dev_t number = 0;
  std::vector<DaxRange> ranges;  // in the order of its mapping

  bool is_first() const { return name.ends_with(".0"); }  // of its region: cannot be destroyed
};

struct DaxRegion {
  std::string serial;  // inventory/serials.h: the same memory, the same name
  std::string path;    // of the region in sysfs
  std::string name;    // in words: "hmem.0", "region1"
  uint64_t start = 0;
  uint64_t bytes = 0;
  uint64_t align_bytes = 0;
  int target_node = -1;
  std::vector<DaxDevice> devices;  // by number

  DaxRange range() const { return {start, bytes}; }
};

// A device's bytes in this process, until destroyed.
class DaxMemory {
 public:
  virtual ~DaxMemory() = default;
  virtual std::span<std::byte> bytes() const = 0;
};

// A process that has a dax device open or mapped.
struct DaxHolder {
  pid_t pid = 0;
  std::string command;
  std::string device;
};

// Errors, everywhere   not_found   no such device or region (any more)
//                      busy        a driver, a holder or another device's range stands against it
//                      io_error    whatever else the kernel said
class DaxBus {
 public:
  virtual ~DaxBus() = default;

  // The dynamic regions with all their devices. One that goes while it is read is left out; where something
  // could not be read it is an error, so that nobody takes it for gone.
  virtual Result<std::vector<DaxRegion>> regions() = 0;
  virtual Result<DaxDevice> device(const std::string& name) = 0;

  // A device without ranges and driver; its name.
  // Errors    capacity_exhausted   the region has no room left
  virtual Result<std::string> create(const DaxRegion& region) = 0;
  virtual Status set_align(const std::string& name, uint64_t align_bytes) = 0;
  virtual Status add_range(const std::string& name, DaxRange range) = 0;
  virtual Status release_ranges(const std::string& name) = 0;
  virtual Status enable(const std::string& name) = 0;  // by device_dax
  virtual Status disable(const std::string& name) = 0;
  virtual Status destroy(const DaxRegion& region, const std::string& name) = 0;

  // The device's node.
  // Errors    corrupt   /dev has another device under that name
  virtual Result<UniqueFd> open(const DaxDevice& device, bool writable) = 0;
  virtual Result<std::unique_ptr<DaxMemory>> map(const DaxDevice& device) = 0;

  // Who has any of these devices, as far as this process may see. Looks through all processes.
  virtual Result<std::vector<DaxHolder>> holders(const std::vector<DaxDevice>& devices) = 0;
};

}  // namespace terrace::daemon
