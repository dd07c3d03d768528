// SPDX-License-Identifier: Apache-2.0
// A copy of the audit log outside the store: one JSON object a line, appended, never cut, never removed.
//
// Place     daemon/role_manager.cc makes one where the configuration names a file ([audit]) and gives it the rows of
//           each commit. The store's own log (daemon/store) is what `terrace audit` shows; it is bounded.
// Threads   As LineFile.
// Crash     A line follows the commit of its entry: a crash in between loses the last ones here, not in the store.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/audit/audit_line.h"
#include "daemon/lines/line_file.h"

namespace terrace::daemon {

struct AuditFileOptions {
  std::string path;
  uint64_t rotate_bytes = 64ull << 20;
  uint64_t waiting_bytes_max = 16ull << 20;
  uint64_t retry_ms = 1000;
};

class AuditFile {
 public:
  explicit AuditFile(AuditFileOptions options)
      : file_({.path = std::move(options.path),
               .what = "the audit file",
               .lines = "entries of the audit log",
               .meanwhile = ", and are in the store",
               .rotate_bytes = options.rotate_bytes,
               .waiting_bytes_max = options.waiting_bytes_max,
               .retry_ms = options.retry_ms}) {}

  void append(const std::vector<AuditRow>& rows) { file_.append(audit_lines(rows), rows.size()); }

 private:
  LineFile file_;
};

}  // namespace terrace::daemon
