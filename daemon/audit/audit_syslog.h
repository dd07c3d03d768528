// SPDX-License-Identifier: Apache-2.0
// The audit log as messages to the machine's logging service (journald, rsyslog): from there they go to other machines,
// where nobody who administers this one can change them.
//
// Place     daemon/role_manager.cc makes one where the configuration says so ([audit] syslog), beside AuditFile.
// Threads   As LineQueue.
//
// A datagram an entry, as RFC 3164 has it: facility authpriv; severity notice for what was denied, info for the rest; the
// text is audit_line(). A service that is away or takes nothing is tried again; meanwhile entries wait, within a bound.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/audit/audit_line.h"
#include "daemon/lines/datagram_socket.h"
#include "daemon/lines/line_queue.h"

namespace terrace::daemon {

struct AuditSyslogOptions {
  std::string socket = "/dev/log";
  uint64_t waiting_bytes_max = 16ull << 20;
  uint64_t retry_ms = 1000;
};

class AuditSyslog {
 public:
  explicit AuditSyslog(AuditSyslogOptions options);

  void append(const std::vector<AuditRow>& rows) { queue_.append(audit_lines(rows), rows.size()); }

 private:
  Status write(std::string& lines);

  const AuditSyslogOptions options_;
  DatagramSocket socket_;  // the writing thread's
  LineQueue queue_;        // last: its thread uses the others
};

}  // namespace terrace::daemon
