// SPDX-License-Identifier: Apache-2.0
// An entry of the audit log as it leaves the store: a JSON object and a line feed.
//
// Threads   Pure functions.
#pragma once

#include <string>
#include <vector>

#include "daemon/model/rows.h"

namespace terrace::daemon {

// `{"time_ns": ..., "actor": ..., "tenant": ..., "verb": ..., "subject": ..., "detail": ...}` and a line feed.
std::string audit_line(const AuditRow& row);

std::string audit_lines(const std::vector<AuditRow>& rows);

}  // namespace terrace::daemon
