// SPDX-License-Identifier: Apache-2.0
// The store with the knobs that its tests turn; open_store() in store.h is what the daemon calls.
//
// Invariants
//   S1  A commit that commit() acknowledged is in every later load(): its journal record is synced before it
//       returns, and the mark file says how many commits must be found.
//   S2  A store that held something never loads as an empty or an older one: missing, shortened or older files,
//       dropped records and vanished rows are `corrupt`.
//   S3  Rows that load() returns were written by commit(): crc of each record and row, seal over all rows.
//   S4  A refused commit changes nothing, unless it says io_error; then the store takes no further commits
//       until load() has read back the real state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/base/units.h"
#include "daemon/store/schema.h"
#include "daemon/store/store.h"

namespace terrace::daemon {

struct StoreOptions {
  std::span<const Migration> migrations = store_migrations();
  // Log frames (4 KiB each) after which a fold also moves them into the database file: 4 MiB is a fraction of a
  // second to replay at start.
  int checkpoint_frames = 1024;
  // Of each of the two journal files: 2,000 commits on a disk. Smaller ones are folded more often, larger ones
  // take longer to replay at start.
  uint64_t segment_bytes = 8 * mib;
  // After this long without a commit the journal is folded, so that little is left to replay.
  uint64_t idle_fold_ns = 1 * ns_per_s;
  // Where there is one, the store has no thread that folds: it hands out what that would do next, to be called once, on
  // the thread of the store's other calls and not within one, while the store lives; or never.
  std::function<void(std::function<void()>)> fold_later = {};
  // Where there is one, the files of a store of an older version are kept before it is migrated, and this is told in
  // which folder (backup/older_version.h).
  std::function<void(const std::string& folder, int64_t version)> keep_older = {};
};

Result<std::unique_ptr<Store>> open_store(const std::string& path, const StoreOptions& options);

}  // namespace terrace::daemon
