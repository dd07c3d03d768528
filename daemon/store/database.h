// SPDX-License-Identifier: Apache-2.0
// The SQLite side of the store: the rows as of some commit, verified when opened, and brought forward by folds.
//
// Place     below JournaledStore, which knows the commits since. docs/formats/store.md describes the file.
// Threads   One at a time; the owner locks.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "daemon/store/image_reader.h"
#include "daemon/store/row_writer.h"
#include "daemon/store/sqlite_handle.h"
#include "daemon/store/store.h"
#include "daemon/store/store_options.h"

struct sqlite3_backup;

namespace terrace::daemon {

// What a fold leaves in the seal besides its rows.
struct FoldPoint {
  uint64_t sequence = 0;  // the newest commit whose changes are among the rows now
  bool journal = true;    // whether further commits may lie in the journal
};

class Database {
 public:
  Database() = default;
  Database(std::string path, const StoreOptions& options) : path_(std::move(path)), options_(options) {}
  Database(Database&&) = delete;
  ~Database() { close(); }

  // Opens the file, verifies every page, row and the seal, and migrates an older one: all within a transaction
  // that is still open afterwards, so that a store that is refused is left as it was found.
  Result<StoredImage> begin_open();
  // Ends begin_open's transaction with a first fold, and prepares for more.
  Status finish_open(const Delta& delta, const FoldPoint& point);

  // Reads the rows again.
  Result<StoredImage> read();

  // Makes `delta` durable in one transaction. A commit that is in the database already is not folded again.
  // After a failure that leaves the file in doubt, the next fold opens and verifies it anew.
  // Errors    capacity_exhausted  the disk is full; nothing changed, try again
  //           others              nothing is known
  Status fold(const Delta& delta, const FoldPoint& point);

  Result<AuditPage> audit(const AuditQuery& query);

  // Copies the database into the empty file at `path`, some pages at a time. Between two pieces folds may go on: SQLite
  // brings what they change into the copy as well.
  Status begin_copy(const std::string& path);
  // Returns   whether that was the last piece. end_copy() closes the copy in any case.
  // Errors    unavailable   the database was closed meanwhile (a fold had failed): begin again
  Result<bool> copy_piece();
  void end_copy();

  // `whole`: the log is moved into the file first; else the files stay as they are.
  void close(bool whole = false);

  const StoreSeal& seal() const { return seal_; }

 private:
  Result<StoredImage> verify_or_migrate();
  Status fold_first(const Delta& delta, const FoldPoint& point);
  Error explain(Error error);
  Status prepare();
  Status reopen();
  Status write(const Delta& delta, const FoldPoint& point);
  Status undo(Error cause);
  void checkpoint_when_due();

  std::string path_;
  StoreOptions options_;
  Connection connection_;
  Statement begin_, commit_;
  RowWriter writer_;
  MetaRow meta_;
  StoreSeal seal_;
  int log_frames_ = 0;
  bool changed_ = false;  // begin_open migrated
  bool doubtful_ = true;
  Connection copy_target_;
  sqlite3_backup* copy_ = nullptr;
};

}  // namespace terrace::daemon
