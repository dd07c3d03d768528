// SPDX-License-Identifier: Apache-2.0
// The findings of `terrace fsck` as text, and the question whether they need a repair. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/client/statuses.h"
#include "core/base/result.h"

namespace terrace::cli {

// Errors first, then warnings, notes, and what a newer daemon calls otherwise; each with what fixes it.
std::string findings_text(const std::vector<FindingStatus>& findings);

// Whether something must be fixed: an error or a warning; notes only tell.
bool needs_repair(const std::vector<FindingStatus>& findings);

// Findings as `terraced --fsck --json` prints them: {"findings": [{"severity", "subject", "what", "repair"}]}.
// Errors    corrupt  it is not that
Result<std::vector<FindingStatus>> parse_findings(const std::string& text);

}  // namespace terrace::cli
