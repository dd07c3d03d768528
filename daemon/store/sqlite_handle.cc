// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/sqlite_handle.h"

#include <sqlite3.h>

#include <cerrno>
#include <utility>

namespace terrace::daemon {

Error sqlite_error(sqlite3* database, int code, const char* where) {
  const int os_errno = database != nullptr ? sqlite3_system_errno(database) : 0;
  Error error{.code = ErrorCode::internal, .os_errno = 0, .where = where, .detail = sqlite3_errstr(code)};
  if (database != nullptr && sqlite3_extended_errcode(database) == code)
    error.detail = sqlite3_errmsg(database);
  switch (code & 0xff) {
    case SQLITE_FULL:
      error.code = ErrorCode::capacity_exhausted;
      error.os_errno = ENOSPC;
      break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: error.code = ErrorCode::busy; break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT: error.code = ErrorCode::corrupt; break;
    case SQLITE_NOMEM: error.code = ErrorCode::out_of_memory; break;
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_READONLY: error.code = ErrorCode::permission_denied; break;
    case SQLITE_CANTOPEN: return os_error(os_errno == 0 ? EIO : os_errno, where, std::move(error.detail));
    case SQLITE_IOERR:
      error.code = code == SQLITE_IOERR_SHORT_READ ? ErrorCode::corrupt : ErrorCode::io_error;
      error.os_errno = os_errno == 0 ? EIO : os_errno;
      break;
    default: break;
  }
  return error;
}

Statement::Statement(Statement&& other) noexcept
    : statement_(std::exchange(other.statement_, nullptr)), next_parameter_(other.next_parameter_) {}

Statement& Statement::operator=(Statement&& other) noexcept {
  if (this == &other) return *this;
  sqlite3_finalize(statement_);
  statement_ = std::exchange(other.statement_, nullptr);
  next_parameter_ = other.next_parameter_;
  return *this;
}

Statement::~Statement() {
  sqlite3_finalize(statement_);
}

// A bind fails only for an index or size that the code got wrong, or without memory: both end here.
void Statement::bind(uint64_t value) {
  const int code = sqlite3_bind_int64(statement_, next_parameter_++, static_cast<sqlite3_int64>(value));
  TERRACE_CHECK(code == SQLITE_OK, "binding an integer");
}

void Statement::bind(std::string_view text) {
  const int code =
      sqlite3_bind_text64(statement_, next_parameter_++, text.data() == nullptr ? "" : text.data(), text.size(),
                          SQLITE_TRANSIENT, SQLITE_UTF8);  // a field of a row may be made for the call
  TERRACE_CHECK(code == SQLITE_OK, "binding a text");
}

void Statement::bind(std::span<const std::byte> blob) {
  const int code = blob.empty() ? sqlite3_bind_zeroblob(statement_, next_parameter_++, 0)
                                : sqlite3_bind_blob64(statement_, next_parameter_++, blob.data(), blob.size(),
                                                      SQLITE_STATIC);
  TERRACE_CHECK(code == SQLITE_OK, "binding a blob");
}

Result<bool> Statement::step(const char* where) {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return sqlite_error(sqlite3_db_handle(statement_), code, where);
}

void Statement::reset() {
  sqlite3_reset(statement_);
}

Status Statement::run(const char* where) {
  const Result<bool> row = step(where);
  reset();
  if (!row.ok()) return row.error();
  return {};
}

bool Statement::read(int column, uint64_t& value) const {
  if (sqlite3_column_type(statement_, column) != SQLITE_INTEGER) return false;
  value = static_cast<uint64_t>(sqlite3_column_int64(statement_, column));
  return true;
}

bool Statement::read_text(int column, size_t bytes_max, std::string& value) const {
  if (sqlite3_column_type(statement_, column) != SQLITE_TEXT) return false;
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  const auto bytes = static_cast<size_t>(sqlite3_column_bytes(statement_, column));
  if (text == nullptr || bytes > bytes_max) return false;
  value.assign(text, bytes);
  return true;
}

bool Statement::read_blob(int column, size_t bytes_max, std::span<const std::byte>& value) const {
  if (sqlite3_column_type(statement_, column) != SQLITE_BLOB) return false;
  const void* blob = sqlite3_column_blob(statement_, column);
  const auto bytes = static_cast<size_t>(sqlite3_column_bytes(statement_, column));
  if (bytes > bytes_max || (blob == nullptr && bytes != 0)) return false;
  value = {static_cast<const std::byte*>(blob), bytes};
  return true;
}

Connection::Connection(Connection&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}

Connection& Connection::operator=(Connection&& other) noexcept {
  if (this == &other) return *this;
  close();
  database_ = std::exchange(other.database_, nullptr);
  return *this;
}

Result<Connection> Connection::open(const std::string& path, bool create) {
  constexpr const char* where = "Connection::open";
  Connection connection;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE |
                    SQLITE_OPEN_EXRESCODE | (create ? SQLITE_OPEN_CREATE : 0);
  const int code = sqlite3_open_v2(path.c_str(), &connection.database_, flags, nullptr);
  if (code != SQLITE_OK) return sqlite_error(connection.database_, code, where);
  connection.keep_log(true);
  sqlite3_db_config(connection.database_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(connection.database_, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(connection.database_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  // A row is a few KiB; nothing in a store of ours comes near a mebibyte.
  sqlite3_limit(connection.database_, SQLITE_LIMIT_LENGTH, 1 << 20);
  TERRACE_RETURN_IF_ERROR(
      connection.exec("PRAGMA mmap_size=0; PRAGMA cell_size_check=ON;"
                      "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=FULL;",
                      where));
  return connection;
}

Status Connection::exec(const char* sql, const char* where) {
  const int code = sqlite3_exec(database_, sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return sqlite_error(database_, code, where);
  return {};
}

Result<Statement> Connection::prepare(const char* sql, const char* where) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(database_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return sqlite_error(database_, code, where);
  return Statement(statement);
}

Result<std::string> Connection::query_text(const char* sql, const char* where) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v2(database_, sql, -1, &raw, nullptr);
  if (code != SQLITE_OK) return sqlite_error(database_, code, where);
  Statement statement(raw);
  TERRACE_ASSIGN_OR_RETURN(const bool row, statement.step(where));
  if (!row) return std::string();
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(raw, 0));
  std::string found = text == nullptr ? "" : text;
  // To its end: what a pragma changes is written behind its row, and may fail there.
  for (bool more = true; more;) {
    TERRACE_ASSIGN_OR_RETURN(more, statement.step(where));
  }
  return found;
}

bool Connection::in_transaction() const {
  return sqlite3_get_autocommit(database_) == 0;
}

void Connection::keep_log(bool keep) {
  sqlite3_db_config(database_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep ? 1 : 0, nullptr);
}

void Connection::close() {
  sqlite3_close_v2(std::exchange(database_, nullptr));
}

}  // namespace terrace::daemon
