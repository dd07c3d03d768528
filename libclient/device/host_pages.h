// SPDX-License-Identifier: Apache-2.0
// Host memory a device is told of: its pages, and that they stay where they are.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/hold.h"

namespace terrace::device {

inline uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// Under `terrace run` the preload library moves memory of the program between tiers: not what a device knows.
class HeldPages {
 public:
  explicit HeldPages(std::span<const std::byte> memory) : memory_(memory) {
    held_ = terrace_hold != nullptr && terrace_hold(memory.data(), memory.size()) == 1;
  }
  ~HeldPages() {
    if (held_) terrace_unhold(memory_.data(), memory_.size());
  }
  HeldPages(const HeldPages&) = delete;
  HeldPages& operator=(const HeldPages&) = delete;

 private:
  std::span<const std::byte> memory_;
  bool held_ = false;
};

}  // namespace terrace::device
