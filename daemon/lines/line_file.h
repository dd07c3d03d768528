// SPDX-License-Identifier: Apache-2.0
// A file of lines that is appended to and never cut, rotated by size: the audit file, the events' file.
//
// Place     daemon/audit and daemon/events/sinks have one each.
// Threads   append() from one thread, and never waits. A thread of its own writes, and calls fdatasync once for all
//           that came meanwhile.
//
// A file that was renamed away (logrotate) is made anew. At `rotate_bytes` the file becomes FILE.0001, and so on. What
// cannot be written waits, within a bound, and is tried again; lines left out beyond the bound are counted in the log.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/lines/line_queue.h"

namespace terrace::daemon {

struct LineFileOptions {
  std::string path;
  std::string what;            // "the audit file"
  std::string lines;           // as LineQueueOptions
  std::string meanwhile = {};  // likewise
  uint64_t rotate_bytes = 64ull << 20;
  uint64_t waiting_bytes_max = 16ull << 20;
  uint64_t retry_ms = 1000;
};

class LineFile {
 public:
  explicit LineFile(LineFileOptions options);

  void append(const std::string& lines, size_t count) { queue_.append(lines, count); }
  uint64_t left_out() { return queue_.left_out(); }

 private:
  Status write(std::string& lines);  // all of it, or none counts as written
  Status open();
  Status rotate();

  const LineFileOptions options_;
  UniqueFd file_;  // this and the next: the writing thread's
  uint64_t bytes_ = 0;
  LineQueue queue_;  // last: its thread uses the others
};

}  // namespace terrace::daemon
