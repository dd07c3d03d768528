// SPDX-License-Identifier: Apache-2.0
// The manager's own accesses to the bytes of a dax device: to find out whether it keeps them, to erase them,
// and to copy them.
//
// Place     daemon/memory/pmem; over descriptors that the kernel's seam opened.
// Threads   Any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"

namespace terrace::daemon {

// A shared mapping of part of a device.
class DaxMapping {
 public:
  DaxMapping() = default;
  DaxMapping(DaxMapping&& other) noexcept;
  DaxMapping& operator=(DaxMapping&& other) noexcept;
  DaxMapping(const DaxMapping&) = delete;
  DaxMapping& operator=(const DaxMapping&) = delete;
  ~DaxMapping();

  // Units     offset and length: multiples of the device's alignment.
  static Result<DaxMapping> map(int fd, uint64_t offset, uint64_t length, bool writable);
  std::span<std::byte> bytes() const { return {data_, length_}; }

 private:
  std::byte* data_ = nullptr;
  size_t length_ = 0;
};

// Writes words at some places through one descriptor, and reads them through another; what was there is put
// back. Every memdev of an interleaving of up to 16 by up to 16 KiB is reached.
// Errors    io_error   what was read is not what was written, or only zeros: the text says which
Status check_memory(int write_fd, int read_fd, uint64_t device_bytes);

// Zeroes that part of a device and reads a sample back.
Status erase_memory(int fd, uint64_t offset, uint64_t length);

// Copies `bytes` from the beginning of one to the beginning of the other, as durably as the hardware can.
Status copy_memory(int from_fd, int to_fd, uint64_t bytes);

}  // namespace terrace::daemon
