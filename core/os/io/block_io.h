// SPDX-License-Identifier: Apache-2.0
// Bulk transfers between a file and memory: many blocks in flight through io_uring, past the page cache
// (O_DIRECT) where the file system and the alignment allow it, through pread/pwrite where the kernel
// refuses io_uring. The report says which way was used, and why no faster one.
//
// Place     core/os; libclient/io imports and exports tensors with it.
// Threads   Each call owns its ring; calls on different files may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/base/units.h"

namespace terrace {

struct BlockIoOptions {
  uint32_t queue_depth = 16;       // requests in flight, 1 to 1024
  uint64_t block_bytes = 1 * mib;  // bytes a request at most; a multiple of 4096, 4 KiB to 64 MiB
  bool direct = true;              // try O_DIRECT
  bool io_uring = true;            // false: pread and pwrite, one request at a time
  // Called on the calling thread as data arrives: the first `done` of `total` bytes are complete.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
  // Asked between requests; true gives the transfer up. What is in flight is waited for first.
  std::function<bool()> cancelled = {};
};

struct BlockIoReport {
  uint64_t bytes = 0;           // all that was asked for
  uint64_t straight_bytes = 0;  // between device and caller's memory, without a copy
  uint64_t staged_bytes = 0;    // O_DIRECT through an aligned buffer
  uint64_t buffered_bytes = 0;  // through the page cache
  bool io_uring = false;
  std::string io_uring_reason;  // why not io_uring; empty when it was used
  std::string direct_reason;    // why not O_DIRECT (for some of it); empty when it was used

  // With another part of the same transfer, later than this one.
  BlockIoReport& operator+=(const BlockIoReport& part) {
    bytes += part.bytes;
    straight_bytes += part.straight_bytes;
    staged_bytes += part.staged_bytes;
    buffered_bytes += part.buffered_bytes;
    io_uring = part.io_uring;
    io_uring_reason = part.io_uring_reason;
    if (!part.direct_reason.empty()) direct_reason = part.direct_reason;
    return *this;
  }
};

// Reads the file's bytes from `file_offset` on into `segments`, one after the other. `name` is what error
// texts call the file. `fd` must be open for reading; it is not closed.
//
// Errors    io_error          the device or kernel failed (errno kept), or the file ended early
//           cancelled         options.cancelled said so; the memory holds a part
//           out_of_memory     no staging buffer
//           invalid_argument  block_bytes or queue_depth out of bounds
// Ownership After return, also a failed one, nothing is in flight: the memory is the caller's again.
Result<BlockIoReport> read_blocks(int fd, std::string_view name, uint64_t file_offset,
                                  std::span<const std::span<std::byte>> segments,
                                  const BlockIoOptions& options = {});

// Writes `segments`, one after the other, to the file from `file_offset` on. Not synced: fsync is the
// caller's. Errors as for read_blocks, and capacity_exhausted when the file system is full.
Result<BlockIoReport> write_blocks(int fd, std::string_view name, uint64_t file_offset,
                                   std::span<const std::span<const std::byte>> segments,
                                   const BlockIoOptions& options = {});

}  // namespace terrace
