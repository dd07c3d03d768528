// SPDX-License-Identifier: Apache-2.0
// Touches memory ahead of a transfer into it. The first store to a page of fresh shared memory makes the kernel
// find and zero it; done inside the transfer that waits for it, that takes as long as reading the page from a
// fast disk.
#pragma once

#include <cstddef>
#include <span>
#include <thread>
#include <vector>

namespace terrace {

// Populates `memory` front to back on a thread of its own, without changing its contents. Ends early when
// destroyed. It only saves time: where the kernel cannot (before 5.14), or no thread starts, nothing happens.
//
// Ownership  Borrows the memory until destroyed.
class Prefault {
 public:
  explicit Prefault(std::span<std::byte> memory);
  // One after the other.
  explicit Prefault(std::span<const std::span<std::byte>> parts);

 private:
  std::jthread thread_;
};

}  // namespace terrace
