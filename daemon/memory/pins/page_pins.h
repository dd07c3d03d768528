// SPDX-License-Identifier: Apache-2.0
// Who holds pages without a mapping: references to the struct pages of device memory.
//
// The kernel takes a dax device away without waiting for pages that somebody has pinned (a pipe filled by
// vmsplice, direct I/O, process_vm_writev, RDMA), and the next device over the same range has the same pages: what
// was pinned before a fence reaches the next tenant's bytes. Nothing shows such pins to user space, but each is a
// reference in struct page. Seeing them makes the fence whole: memory is free only once nobody has a page of it.
//
// A block is what the kernel counts as one (a folio): as many bytes as the device's alignment. The reference
// count of a block that nobody has is the same for all blocks, 0 or 1 by the kernel's version: learn() finds it.
//
// Place     Used by the kinds of memory that are dax devices. One implementation is kernel_pins.h, one a made-up
//           kernel's (tests/unit/memory/fake_page_pins.h).
// Threads   Any; calls follow each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/base/result.h"

namespace terrace::daemon {

// Physical addresses.
struct PageRange {
  uint64_t start = 0;
  uint64_t bytes = 0;
};

// What one reference count stands for, and what it is where nobody has the memory.
struct PageBlock {
  uint64_t bytes = 0;
  uint64_t idle = 0;
};

struct PinCount {
  uint64_t blocks = 0;  // that do not have the count of a block that nobody has
  int64_t pins = 0;     // the sum of the differences: below zero where pins older than the block's pages ended

  bool none() const { return blocks == 0; }
};

class PagePins {
 public:
  virtual ~PagePins() = default;

  // Whether pins can be seen on this machine: proved, at the first call, by a pin of its own.
  // Errors    unsupported   says what the kernel lacks
  virtual Status usable() = 0;
  // The idle count of blocks of `bytes`, by memory of a device that nobody else has; a pin of its own must show.
  // `memory`  the whole of `range`, mapped; at least one block
  // Errors    unsupported   counts are not what a known kernel has
  virtual Result<PageBlock> learn(std::span<std::byte> memory, PageRange range, uint64_t bytes) = 0;

  // Pins as they are now. The pages must exist: a device is bound over the ranges.
  virtual Result<PinCount> look(const std::vector<PageRange>& ranges, PageBlock block) = 0;
  // Calls `take_away`, which unbinds the device over the ranges, and returns the pins that were left between the
  // end of its mappings and the end of its pages: from then on none can be added.
  // Errors    as take_away's, which is called in any case; else others, where the pins were not counted
  virtual Result<PinCount> during(const std::vector<PageRange>& ranges, PageBlock block,
                                  const std::function<Status()>& take_away) = 0;
};

}  // namespace terrace::daemon
