// A copy of the audit log outside the store: one JSON object a line, appended, never cut, never removed.
//
// Place     daemon/role_manager.cc makes one where the configuration names a file ([audit]) and gives it the rows of
//           each commit. The store's own log (daemon/store) is what `terrace audit` shows; it is bounded.
// Threads   append() from one thread, and never waits. A thread of its own writes, and calls fdatasync once for all
//           that came meanwhile.
// Crash     A line follows the commit of its entry: a crash in between loses the last ones here, not in the store.
//
// A file that was renamed away (logrotate) is made anew. At `rotate_bytes` the file becomes FILE.0001, and so on. What
// cannot be written waits, within a bound, and is tried again; lines left out beyond the bound are counted in the log.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/audit/audit_queue.h"

namespace terrace::daemon {

struct AuditFileOptions {
  std::string path;
  uint64_t rotate_bytes = 64ull << 20;
  uint64_t waiting_bytes_max = 16ull << 20;
  uint64_t retry_ms = 1000;
};

class AuditFile {
 public:
  explicit AuditFile(AuditFileOptions options);

  void append(const std::vector<AuditRow>& rows) { queue_.append(rows); }

 private:
  Status write(std::string& lines);  // all of it, or none counts as written
  Status open();
  Status rotate();

  const AuditFileOptions options_;
  UniqueFd file_;  // this and the next: the writing thread's
  uint64_t bytes_ = 0;
  AuditQueue queue_;  // last: its thread uses the others
};

}  // namespace terrace::daemon
