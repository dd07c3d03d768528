// SPDX-License-Identifier: Apache-2.0
#include "daemon/audit/audit_line.h"

#include "daemon/lines/json_line.h"

namespace terrace::daemon {

std::string audit_line(const AuditRow& row) {
  JsonLine line;
  line.number("time_ns", row.wall_ns);
  line.text("actor", row.actor);
  line.text("tenant", row.tenant);
  line.text("verb", row.verb);
  line.text("subject", row.subject);
  line.text("detail", row.detail);
  return line.object() + "\n";
}

std::string audit_lines(const std::vector<AuditRow>& rows) {
  std::string lines;
  for (const AuditRow& row : rows) lines += audit_line(row);
  return lines;
}

}  // namespace terrace::daemon
