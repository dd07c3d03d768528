// SPDX-License-Identifier: Apache-2.0
// The store that keeps the manager's state over a crash. One transaction per Delta; commit() returns only when
// the Delta is on stable storage, so that a reply sent afterwards cannot be undone.
//
// Place     daemon/event_loop commits batches from its store thread; daemon/state knows nothing of it.
// Threads   One thread at a time; the caller serialises.
// Crash     A commit is all or nothing: after a crash at any instruction load() gives the state before or
//           after it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/model/rows.h"
#include "daemon/model/store_id.h"

namespace terrace::daemon {

// Which entries of the audit log; empty texts match all.
struct AuditQuery {
  uint64_t after = 0;     // sequence; newer ones
  uint64_t since_ns = 0;  // wall clock
  uint32_t limit = 0;     // 0: limits::audit_rows_per_page_max
  std::string tenant = {};
  std::string verb = {};  // a prefix
  std::string subject = {};
  bool newest_first = false;
};
struct AuditPage {
  std::vector<AuditRow> rows;
  uint64_t oldest = 0;  // of the whole log; 0: it is empty
  uint64_t newest = 0;
};

// What one file that is a whole store holds.
struct StoreContents {
  StoreId id;
  uint64_t sequence = 0;  // commits that it has
  uint64_t bytes = 0;     // of the file
  uint64_t leases = 0, devices = 0, pools = 0;
};
struct StoreBackup {
  StoreContents contents;
  UniqueFd file;  // open for reading; it has no name, and is gone once closed
};

// Of the files that take commits before the database has them.
struct JournalRoom {
  uint64_t bytes = 0;       // 0: the store has none
  uint64_t used_bytes = 0;  // by commits that the database does not have yet
};

class Store {
 public:
  virtual ~Store() = default;

  // Reads everything. An empty store gives a default Image.
  // Errors    corrupt           a row or page contradicts itself; names the row. Never an empty Image instead
  //           version_mismatch  written by a newer Terrace, or by one before the first release
  //           io_error          a file cannot be read or written
  //           capacity_exhausted  what the journal holds cannot be folded: the disk is full
  virtual Result<Image> load() = 0;

  // Makes `delta` durable.
  // Errors    capacity_exhausted  the disk is full, and so is the journal; nothing of the delta is there
  //           io_error            nothing is known: the caller must stop and recover by loading again
  virtual Status commit(const Delta& delta) = 0;

  // Durable entries of the audit log, ascending unless asked otherwise. The log keeps
  // limits::audit_rows_max, of everybody the newest (row_writer.h).
  virtual Result<AuditPage> audit(const AuditQuery& query) {
    (void)query;
    return AuditPage{};
  }

  // A copy of the store as it is now in one file, verified as a start would verify it. It has every commit that was
  // acknowledged before the call, maybe later ones. Unlike all other calls it may run beside them, on a thread of its
  // own: commits go on meanwhile. One at a time.
  // Errors    capacity_exhausted  no room for the copy in the store's folder; the store goes on
  //           io_error, corrupt   what was read back is not what was written
  virtual Result<StoreBackup> backup() {
    return Error{.code = ErrorCode::unsupported, .where = "Store::backup", .detail = "this store has no file"};
  }

  // Keeps the number of the newest acknowledged commit in a further file as well, in the directory of the memory that
  // the commits are about, from now on; empty: in none any more. From the event loop's thread, beside other calls.
  virtual Status mark_also(const std::string& path) {
    (void)path;
    return {};
  }
  // Whether such a file knows of commits of this store that it does not have: it is an older copy. Before mark_also().
  virtual bool older_than_mark(const std::string& path) const {
    (void)path;
    return false;
  }

  // Who the store is, for as long as it lives; a copy of its files has the same id. One in memory has none.
  virtual StoreId id() const { return {}; }

  // Removes the files of a store that open_store() made just now and that is not to be: its manager did not get to
  // serve. One that was there before stays. Nothing else may be called afterwards.
  // Returns   whether they were removed.
  virtual bool discard_if_fresh() { return false; }

  // Whether a commit takes only microseconds now (state on a memory file system), so that the event loop may do
  // it itself instead of handing it to the store's worker.
  virtual bool quick() const { return false; }

  // Threads: any, beside other calls; a moment old then.
  virtual JournalRoom journal_room() const { return {}; }
};

// Opens or creates the store at `path`: an SQLite database, and in front of it a journal that takes the commits
// (one write and one fdatasync each). An exclusive lock keeps a second daemon out. Older schema versions, from
// store_version_first on, are migrated. Destruction folds the journal and leaves one whole SQLite file.
// Errors    busy              another daemon has it open; names the file
//           corrupt, version_mismatch, io_error, permission_denied   as for load()
Result<std::unique_ptr<Store>> open_store(const std::string& path);

}  // namespace terrace::daemon
