// SPDX-License-Identifier: Apache-2.0
// The operations of the kernel's CXL core on memdevs, decoders and regions, for the region maker. The seam
// between the two: tests put a made-up kernel behind it that can fail or die at any step.
//
// Place     daemon/memory/region; region_kernel_cxl.cc is this machine's, through libcxl and, for what version 76.1
//           lacks (volatile regions), sysfs.
// Threads   One call at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace terrace::daemon {

struct CxlMemdev {
  std::string serial;                                // inventory::memdev_serial
  std::string name;                                  // "mem0", of this boot
  uint64_t pmem_bytes = 0, ram_bytes = 0;            // in all
  uint64_t pmem_free_bytes = 0, ram_free_bytes = 0;  // in no region
  unsigned free_decoders = 0;                        // of its own; a region takes one
};

// A CXL window: a root decoder.
struct CxlRoot {
  std::string name;  // "decoder0.0"
  bool pmem = false, ram = false;
  uint64_t free_bytes = 0;   // the longest free run of addresses
  unsigned granularity = 0;  // of its own interleaving, over its targets
  // By position, the serials of the memdevs below that host bridge.
  std::vector<std::vector<std::string>> targets;
};

struct CxlRegion {
  std::string name;  // "region0"
  std::string root;
  bool ram = false;
  std::string uuid;  // of a persistent one; all zeros: none yet
  uint64_t start = 0, bytes = 0;
  unsigned granularity = 0, ways = 0;
  bool committed = false, enabled = false;
  std::vector<std::string> memdevs;  // serials by position; empty where nothing is attached
  // Where it begins on the first of them, counted from where memory of its kind does (inventory/serials.h).
  uint64_t position_bytes = 0;
};

struct CxlView {
  std::vector<CxlMemdev> memdevs;
  std::vector<CxlRoot> roots;
  std::vector<CxlRegion> regions;
  // A region that is there and is not shown, or not whole, for want of descriptors or memory: what is missing
  // here need not be gone. Empty: all was seen.
  std::string unseen;
};

struct RegionShape {
  std::string uuid;
  unsigned ways = 1, granularity = 0;
  uint64_t bytes = 0;
};

class CxlKernel {
 public:
  virtual ~CxlKernel() = default;

  virtual Result<CxlView> look() = 0;
  // A new region without anything, in that window: its name.
  virtual Result<std::string> create(const std::string& root, bool ram) = 0;
  virtual Status shape(const std::string& region, const RegionShape& shape) = 0;
  // Takes `bytes` of the memdev by a free decoder of its own and makes that the region's target.
  virtual Status attach(const std::string& region, unsigned position, const std::string& memdev,
                        uint64_t bytes) = 0;
  virtual Status commit(const std::string& region) = 0;
  virtual Status enable(const std::string& region) = 0;
  // Whatever state it is in: disabled, reset, its memdevs' capacity given back, gone. Not there: done.
  virtual Status remove(const std::string& region) = 0;
};

std::unique_ptr<CxlKernel> make_cxl_kernel();

}  // namespace terrace::daemon
