// Where the manager's state survives a crash. One transaction per Delta; commit() returns only when the
// Delta is on stable storage, so that a reply sent afterwards cannot be undone.
//
// Place     daemon/event_loop commits batches from its store thread; daemon/state knows nothing of it.
// Threads   One thread at a time; the caller serialises.
// Crash     A commit is all or nothing: after a crash at any instruction load() gives the state before or
//           after it.
#pragma once

#include <memory>
#include <string>

#include "core/base/result.h"
#include "daemon/state/rows.h"

namespace terrace::daemon {

class Store {
 public:
  virtual ~Store() = default;

  // Reads everything. An empty store gives a default Image.
  // Errors    corrupt           a row or page contradicts itself; names the row. Never an empty Image instead
  //           version_mismatch  written by a newer Terrace
  //           io_error          the file cannot be read
  virtual Result<Image> load() = 0;

  // Makes `delta` durable.
  // Errors    capacity_exhausted  the disk is full; nothing of the delta is there
  //           io_error            nothing is known: the caller must stop and recover by loading again
  virtual Status commit(const Delta& delta) = 0;
};

// Opens or creates the SQLite store at `path` (WAL, synchronous=FULL: one fdatasync a commit). An
// exclusive lock keeps a second daemon out. Schema versions older than this build's are migrated.
// Errors    busy              another daemon has it open; names the file
//           corrupt, version_mismatch, io_error, permission_denied   as for load()
Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path);

}  // namespace terrace::daemon
