// SPDX-License-Identifier: Apache-2.0
#include "libclient/io/transfer.h"

namespace terrace {

BlockIoOptions block_io_options(const TransferOptions& options) {
  return {.queue_depth = options.queue_depth,
          .block_bytes = options.block_bytes,
          .direct = options.direct,
          .io_uring = options.io_uring,
          .progress = options.progress,
          .cancelled = options.cancelled};
}

void fill_in(TransferReport& report, const BlockIoReport& io) {
  report.straight_bytes = io.straight_bytes;
  report.staged_bytes = io.staged_bytes;
  report.buffered_bytes = io.buffered_bytes;
  report.io_uring = io.io_uring;
  const bool moved = io.straight_bytes + io.staged_bytes + io.buffered_bytes > 0;  // else no reason matters
  if (moved && !io.io_uring_reason.empty()) report.note = "no io_uring: " + io.io_uring_reason;
  if (moved && !io.direct_reason.empty()) {
    report.note += (report.note.empty() ? "no O_DIRECT: " : "; no O_DIRECT: ") + io.direct_reason;
  }
}

Error cancelled_error(const char* where, const std::string& path) {
  return {.code = ErrorCode::cancelled, .where = where, .detail = path + ": given up"};
}

Error memory_gone(const char* where, const std::string& path) {
  return {.code = ErrorCode::lease_expired,
          .where = where,
          .detail = path + ": the tensors' memory is gone: the lease has ended, or the file was cut"};
}

size_t run_length(std::span<const SafetensorsEntry> entries) {
  size_t count = 1;
  while (count < entries.size() &&
         entries[count].file_offset == entries[count - 1].file_offset + entries[count - 1].bytes)
    ++count;
  return count;
}

}  // namespace terrace
