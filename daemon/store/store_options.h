// The SQLite store with the knobs that its tests turn; open_sqlite_store() in store.h is what the daemon
// calls.
//
// Invariants
//   S1  What commit() acknowledged is in every later load(): the write-ahead log is synced before it
//       returns, and the mark file says how many commits must be found.
//   S2  A store that held something never loads as an empty or an older one: missing or shortened files,
//       dropped log frames and vanished rows are `corrupt`.
//   S3  What load() returns was written by commit(): each row by its crc, all rows together by the seal.
//   S4  A refused commit left nothing behind, unless it says io_error; then the store takes no further
//       commits until load() has read back what is really there.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "daemon/store/schema.h"
#include "daemon/store/store.h"

namespace terrace::daemon {

struct SqliteStoreOptions {
  std::span<const Migration> migrations = store_migrations();
  // Log frames (4 KiB each) after which a commit also moves them into the database file: 4 MiB is a
  // fraction of a second to replay at start, and rare enough not to show in the commit rate.
  int checkpoint_frames = 1024;
};

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path, const SqliteStoreOptions& options);

}  // namespace terrace::daemon
