// SPDX-License-Identifier: Apache-2.0
// What an act would do (--dry-run), for people and as JSON.
//
// Place     Between statuses.h and output.h.
#pragma once

#include "cli/client/statuses.h"
#include "cli/terminal/output.h"

namespace terrace::cli {

inline constexpr const char* dry_run_help = "Say what it would do, and do nothing";

// Prints it, and fails as the act itself would: a script learns from the exit code whether it would be refused.
void show_preview(Context& context, const PreviewStatus& preview);

}  // namespace terrace::cli
