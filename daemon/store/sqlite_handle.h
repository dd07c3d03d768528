// SPDX-License-Identifier: Apache-2.0
// Owners of SQLite's two handles, and its result codes as Errors. Nothing else of SQLite is wrapped.
//
// Place     daemon/store only.
// Threads   One at a time; the connection is opened without SQLite's own mutexes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace terrace::daemon {

// A prepared statement. Bound blobs must live until the next reset(); text is copied.
class Statement {
 public:
  Statement() = default;
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&& other) noexcept;
  ~Statement();

  // Parameters in the order of their question marks; 64-bit values keep their bits through the sign.
  void bind_start() { next_parameter_ = 1; }
  void bind(uint64_t value);
  void bind(std::string_view text);
  void bind(std::span<const std::byte> blob);

  // true: a row is there; false: done. The Error names `where`.
  Result<bool> step(const char* where);
  void reset();
  // One step of a statement that gives no rows, and the reset.
  Status run(const char* where);

  // Columns of the current row. Each says whether the stored type and length are what they should be.
  bool read(int column, uint64_t& value) const;
  bool read_text(int column, size_t bytes_max, std::string& value) const;
  bool read_blob(int column, size_t bytes_max, std::span<const std::byte>& value) const;

 private:
  sqlite3_stmt* statement_ = nullptr;
  int next_parameter_ = 1;
};

class Connection {
 public:
  Connection() = default;
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;
  ~Connection() { close(); }

  // Opens `path` (":memory:" too) with defensive settings and without any write to it. Closing leaves the
  // write-ahead log as it is unless keep_log(false) was called, so that evidence of damage survives.
  static Result<Connection> open(const std::string& path, bool create);

  Status exec(const char* sql, const char* where);
  Result<Statement> prepare(const char* sql, const char* where);
  // The first column of the first row, as text.
  Result<std::string> query_text(const char* sql, const char* where);

  bool in_transaction() const;
  void keep_log(bool keep);
  void close();

  sqlite3* raw() const { return database_; }

 private:
  sqlite3* database_ = nullptr;
};

// What the last failed call on `database` means to a caller of the store.
//   SQLITE_FULL  capacity_exhausted     BUSY, LOCKED  busy          CORRUPT, NOTADB  corrupt
//   NOMEM        out_of_memory          PERM, READONLY  permission_denied
//   IOERR, CANTOPEN  from the kernel's errno    everything else  internal
Error sqlite_error(sqlite3* database, int code, const char* where);

}  // namespace terrace::daemon
