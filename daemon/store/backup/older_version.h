// SPDX-License-Identifier: Apache-2.0
// Keeps a store of an older version as it is before this build migrates it: the one way back to the older build.
//
//   STATE, its logs, journals, mark and hosts -> STATE.version-N-TIME.part -> synced -> STATE.version-N-TIME
//
// TIME is that of STATE's last change, so that a start that fails and is repeated keeps one copy, not one a try.
//
// Crash     A folder without `.part` is whole; one with it is made anew.
// Threads   One, under the mark's lock, before SQLite opens the store.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"

namespace terrace::daemon {

struct KeptVersion {
  std::string folder = {};  // empty: the store is of this build's version, and nothing was kept
  int64_t version = 0;
};

// `newest`: the version of this build. A newer store is not touched either.
// Errors    io_error, capacity_exhausted, permission_denied   the copy cannot be made; what there was is as before
Result<KeptVersion> keep_older_version(const std::string& state_path, int64_t newest);

}  // namespace terrace::daemon
