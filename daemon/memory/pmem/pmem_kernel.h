// SPDX-License-Identifier: Apache-2.0
// The kernel's operations (libnvdimm) on persistent regions and their namespaces, for the pmem backend.
// The seam between the two: tests put a made-up kernel behind it that can fail or die at any step.
//
// Place     daemon/memory/pmem; pmem_kernel_ndctl.cc is this machine's, through libndctl.
// Names     Regions go by the physical address they begin at, namespaces by their uuid, which is in their
//           label: regionN, namespaceN.M and daxN.M are dealt out anew by each boot.
// Threads   One call at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {

struct PmemNamespace {
  std::string name;    // "namespace1.0"
  std::string uuid;    // as in its label, 36 characters
  std::string label;   // its alternative name; empty: none
  uint64_t start = 0;  // physical; its metadata comes first
  uint64_t bytes = 0;  // that it takes of its region, metadata included
  std::string mode;  // "devdax", "fsdax", "raw", "sector"; of one that is disabled: what it would be, or "raw"
  bool enabled = false;
  std::string device;         // its character device, "/dev/dax1.0"; empty: it has none now
  uint64_t device_bytes = 0;  // of that
  uint64_t device_start = 0;  // physical: behind the metadata
  uint64_t device_align_bytes = 0;
  dev_t device_number = 0;
  std::string block;  // its block device, "/dev/pmem1"; empty: none
};

struct PmemRegion {
  std::string name;  // "region1"
  uint64_t start = 0, bytes = 0;
  uint64_t free_bytes = 0, largest_free_bytes = 0;
  uint64_t unit_bytes = 0;  // sizes of namespaces are multiples of it
  unsigned ways = 1;
  int node = -1;  // of the memory; -1: the kernel does not say
  std::vector<PmemNamespace> namespaces;
};

// Devices are aligned to this; the metadata of one whose page structures are in DRAM takes exactly as much.
inline constexpr uint64_t pmem_align_bytes = 2 * 1024 * 1024;
// The kernel refuses to make a device of a smaller namespace.
inline constexpr uint64_t pmem_namespace_bytes_min = 16 * 1024 * 1024;

class PmemKernel {
 public:
  virtual ~PmemKernel() = default;

  // Changes when a device of the CXL or the persistent-memory bus appears or goes; much cheaper than a look.
  virtual Result<std::string> fingerprint() = 0;
  // Every region of persistent memory that is enabled, as it is now.
  // Errors    one of them could not be read
  virtual Result<std::vector<PmemRegion>> regions() = 0;
  // Sets a region's unit_bytes. It does not outlive the region's device; namespaces of any unit do.
  virtual Status set_unit(uint64_t region_start, uint64_t bytes) = 0;

  // A new namespace, disabled and without a label's name. The kernel chooses where: at the lowest address where
  // all of it fits. Returns its uuid.
  // Errors    capacity_exhausted   no contiguous room
  virtual Result<std::string> allocate(uint64_t region_start, uint64_t bytes) = 0;
  virtual Status set_label(const std::string& uuid, const std::string& label) = 0;  // of a disabled one
  // Makes a disabled namespace that never was one a devdax device, page structures in DRAM, and enables it.
  virtual Status make_device(const std::string& uuid) = 0;
  // Enables one as what it was made. A devdax one gets a new device: what held an earlier one stays dead.
  virtual Status enable(const std::string& uuid) = 0;
  // Takes the device away: mappings of it give SIGBUS, its descriptors ENXIO. The bytes stay.
  virtual Status disable(const std::string& uuid) = 0;
  // Cuts a disabled one's end off. Its device will be as much shorter.
  virtual Status shrink(const std::string& uuid, uint64_t bytes) = 0;
  // Removes a disabled one with its label.
  virtual Status remove(const std::string& uuid) = 0;
  // Takes the region's driver away, before the region itself is.
  virtual Status disable_region(uint64_t region_start) = 0;

  // Of a region of volatile memory: the dax device that all of it is at first, enabled to be tried; and back.
  // Errors    not_found   it has become no dax device
  virtual Result<PmemNamespace> enable_volatile(uint64_t region_start) = 0;
  virtual Status disable_volatile(uint64_t region_start) = 0;

  // Opens its character device, and makes sure that it is this one and no other of that name.
  // Errors    not_found   it has none
  virtual Result<UniqueFd> open(const PmemNamespace& one, int flags) = 0;
  // Who uses it, in words ("process 12 (vllm)", "mounted at /mnt"); empty: nobody that can be seen. This and
  // the next only look, and may be called at any time.
  // Errors    as os_error   it could not be looked at
  virtual Result<std::string> users(const PmemNamespace& one) = 0;
  // The same of all dax devices that lie in a region of volatile memory.
  virtual Result<std::string> volatile_users(uint64_t region_start, uint64_t bytes) = 0;
};

std::unique_ptr<PmemKernel> make_pmem_kernel();

}  // namespace terrace::daemon
