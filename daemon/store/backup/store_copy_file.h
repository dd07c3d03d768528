// SPDX-License-Identifier: Apache-2.0
// A whole store in one file: made of the database of an open store, sealed, verified.
//
// Such a file needs no journal and no mark, and says of itself that it is a copy of an earlier state (MetaRow::restored),
// so that whoever starts from it, by `terrace state restore` or by a plain copy, is careful with what it does not know.
//
// Place     Below JournaledStore::backup and restore.h. docs/operations/backup.md is for operators.
// Threads   Any; a file belongs to one caller.
#pragma once

#include <string>

#include "core/base/result.h"
#include "daemon/store/store.h"
#include "daemon/store/store_options.h"

namespace terrace::daemon {

// Removes a file of a database and what SQLite may have left beside it.
void remove_database(const std::string& path);

// Makes the database at `path` a whole store that says that it is a copy: verifies it as a start would (pages, tables,
// every row, the seal), migrates an older version, seals it, syncs it, and verifies what came of that.
// Errors    corrupt           it is damaged, or commits that belong to it lie elsewhere
//           invalid_argument  it is no store
//           version_mismatch  of a newer Terrace, or of before the first release
//           capacity_exhausted, io_error
Result<StoreContents> seal_copy(const std::string& path, const StoreOptions& options);

// What a file that was copied from a store, or made by seal_copy(), holds. `path` is a private copy of it: it is opened
// for writing and may be migrated.
// Errors    as seal_copy
Result<StoreContents> inspect_copy(const std::string& path, const StoreOptions& options);

// Copies the bytes of `from` to the new file `to` (0600), synced.
Status copy_file_bytes(const std::string& from, const std::string& to);

}  // namespace terrace::daemon
