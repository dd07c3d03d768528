// SPDX-License-Identifier: Apache-2.0
// The store's files before SQLite opens them: tells a store, a fresh place and a damaged store apart; and
// creates a fresh store, whole or not at all.
//
// Files     <path> the database · <path>-wal its log · <path>-mark (commit_mark_file.h)
//           <path>-journal-a, -b (journal_segment.h) · ...-new of the first and the last two while creating
// Threads   One at a time, under the mark's lock.
#pragma once

#include <span>
#include <string>

#include "core/base/result.h"
#include "daemon/model/rows.h"
#include "daemon/store/commit_mark_file.h"
#include "daemon/store/row_codec.h"
#include "daemon/store/schema.h"

namespace terrace::daemon {

// Makes the folder of `path` (0700) and its parents, if they are missing.
Status make_parent_folder(const std::string& path);

// Creates the store when there is none, after checking that there never was one.
// Returns   whether it created one.
// Errors    corrupt           a mark or a log says that a store existed, but it is gone, empty or damaged
//           invalid_argument  the file is something else than a Terrace store; it is not touched
Result<bool> create_if_fresh(const std::string& path, const CommitMarkFile& mark,
                             std::span<const Migration> migrations);

// Makes the empty file at `path` a store's database with these rows, in one transaction and without a log left over. Its
// meta row is that of `rows`, or that of a fresh store.
Status fill_store_file(const std::string& path, std::span<const Migration> migrations, const Delta& rows,
                       StoreSeal seal);

// Whether `path` can be a store's database, before SQLite sees it.
// Errors    invalid_argument   it is something else
//           corrupt            it was cut short
//           not_found, io_error, permission_denied
Status check_store_file(const std::string& path);

// Removes every file of the store, the mark last. Under the mark's lock.
void remove_store_files(const std::string& path);

Status sync_folder_of(const std::string& path);

}  // namespace terrace::daemon
