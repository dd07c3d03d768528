// SPDX-License-Identifier: Apache-2.0
// A private copy of a store's files, so that opening it (which takes its lock, folds its logs and migrates its
// schema) changes nothing of the original.
//
// Threads   One.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/model/rows.h"
#include "daemon/model/store_id.h"
#include "daemon/store/store.h"

namespace terrace::daemon {

struct StoredState {
  StoreId id;
  Image image;
};

// What the store at `state_path` holds, without a change to any file there. The copy is made below $TMPDIR or
// /tmp, readable by this user alone, and removed again. A terraced that starts meanwhile is refused as busy.
//
// Errors    busy        a terraced serves from it
//           not_found   there is no store, nor a trace of one
//           corrupt, version_mismatch, io_error, permission_denied   as for Store::load
Result<StoredState> read_store(const std::string& state_path);

// A backup of a stopped store, made from a private copy of its files as an open store makes one.
// Errors    as read_store, and as Store::backup
Result<StoreBackup> back_up_stopped(const std::string& state_path);

struct SalvagedBackup {
  StoreContents contents;
  std::vector<std::string> lost;  // a sentence for each thing that is missing or was changed; empty: nothing
};
// Writes what can be read of a stopped store, damaged as it may be, to the new file `file` (0600): a whole store, as a
// backup is. Changes nothing of the original.
// Errors    as read_damaged_store (daemon/store/salvage), and
//           corrupt   what is left cannot be made to fit together
Result<SalvagedBackup> salvage_stopped(const std::string& state_path, const std::string& file);

// What a backup holds, verified as a start would verify it, without a change to it.
// Errors    as inspect_copy (daemon/store/backup)
Result<StoreContents> verify_backup(const std::string& file);

}  // namespace terrace::daemon
