// SPDX-License-Identifier: Apache-2.0
// `terraced --backup-state`, `--verify-backup`, `--restore-state`, `--salvage-state`: a stopped manager's store as one file,
// and back.
// `terrace state` runs them.
//
// Place     daemon/main.cc.
// Threads   One.
#pragma once

#include <string>

#include "daemon/config/config.h"

namespace terrace::daemon {

enum class StoreTool : uint8_t { none, backup, verify, restore, salvage };

// Does it, and says on standard output what the file holds; with `json` an error goes there as well, as {"error": ...}.
//   backup    writes the store at config.state_path to the new file `file` (0600), synced
//   verify    reads `file` and changes nothing
//   restore   puts `file` in the place of the store at config.state_path, whose files it moves into a folder beside it
//   salvage   writes what can be read of the damaged store at config.state_path to the new file `file`, and says what not
// Returns   the exit code: 0 done, 1 not; nothing was changed then, but for a restore that says otherwise
int run_store_tool(const DaemonConfig& config, StoreTool tool, const std::string& file, bool json);

}  // namespace terrace::daemon
