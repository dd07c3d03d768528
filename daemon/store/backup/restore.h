// SPDX-License-Identifier: Apache-2.0
// Puts a backup in the place of a stopped store.
//
//   FILE -> STATE-restoring, verified, sealed as a copy -> STATE-restored        the decision: one rename
//        -> the present files into the folder STATE.before-restore-TIME -> an empty mark -> STATE   finish_restore()
//
// Crash     Before the decision the present store is as it was. After it the restored one is whole: what is left to do
//           can be done again from any point, and every open of the store does that first, under the mark's lock.
// Threads   One.
#pragma once

#include <string>

#include "core/base/result.h"
#include "daemon/store/commit_mark_file.h"
#include "daemon/store/store.h"
#include "daemon/store/store_options.h"

namespace terrace::daemon {

struct RestoredStore {
  StoreContents contents;
  std::string set_aside;  // the folder with the files that were there; empty: there were none
};

// Errors    busy        a terraced serves from it
//           corrupt, invalid_argument, version_mismatch   the backup cannot be used; nothing was changed
//           capacity_exhausted, io_error, permission_denied
Result<RestoredStore> restore_store(const std::string& backup, const std::string& state_path,
                                    const StoreOptions& options = {});

// Ends a restore that was cut off after its decision. `mark` is locked and not loaded yet.
// Returns   the folder with the files that were there; empty: nothing was to be done, or there were none.
Result<std::string> finish_restore(const std::string& state_path, CommitMarkFile& mark);

}  // namespace terrace::daemon
