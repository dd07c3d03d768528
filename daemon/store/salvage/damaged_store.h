// SPDX-License-Identifier: Apache-2.0
// What can still be read of a damaged store: each row that matches its checksum, and each whole commit of the journal
// whatever is missing before it. A start reads none of that, since it would drop what was acknowledged without a word;
// here an operator has asked, and is told what is missing.
//
// What comes of it need not fit together: settle_rows.h sees to that.
//
// Place     Below `terraced --salvage-state`. docs/operations/backup.md is for operators.
// Threads   One.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/model/rows.h"
#include "daemon/model/store_id.h"
#include "daemon/store/store_options.h"

namespace terrace::daemon {

struct SalvagedStore {
  StoreId id;
  uint64_t sequence = 0;  // the newest commit of which anything is known
  Image image;            // with meta.restored: it is no state that a manager ended with
  std::vector<std::string> lost;
};

// `path` names private copies of the store's files, its mark among them: they are opened, and may be changed.
// Errors    corrupt            nothing says whose store it is, or SQLite does not open the file at all
//           version_mismatch   of a newer Terrace, or of before the first release
Result<SalvagedStore> read_damaged_store(const std::string& path, const StoreOptions& options = {});

// Makes the new file `path` (0600), synced, a whole store with these rows: what `terrace state verify` and `restore`
// take. Its audit log is empty.
// Errors    already_exists, capacity_exhausted, io_error
Status write_salvaged_store(const std::string& path, const SalvagedStore& store,
                            const StoreOptions& options = {});

}  // namespace terrace::daemon
