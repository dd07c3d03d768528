// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/database.h"

#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/failpoint.h"
#include "daemon/store/audit_reader.h"

namespace terrace::daemon {
namespace {

constexpr const char* where_open = "Database::open";
constexpr const char* where_fold = "Database::fold";
constexpr const char* where_copy_piece = "Database::copy";

Error error_of(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "Database", .detail = std::move(detail)};
}

int count_log_frames(void* frames, sqlite3*, const char*, int count) {
  *static_cast<int*>(frames) = count;
  return SQLITE_OK;
}

}  // namespace

Result<StoredImage> Database::begin_open() {
  close();
  Result<Connection> connection = Connection::open(path_, false);
  if (!connection.ok()) return query_failed(connection.error());
  connection_ = std::move(connection).value();
  Result<StoredImage> stored = verify_or_migrate();
  if (stored.ok()) {
    seal_ = stored->seal;
    meta_ = stored->image.meta;
    return stored;
  }
  return explain(std::move(stored).error());
}

Status Database::finish_open(const Delta& delta, const FoldPoint& point) {
  if (Status status = fold_first(delta, point); !status.ok()) return explain(status.error());
  return {};
}

// Closes: what is refused stays as it was found.
Error Database::explain(Error error) {
  // SQLite takes a damaged header byte for a read-only format; the file's mode says otherwise.
  if (error.code == ErrorCode::permission_denied && ::access(path_.c_str(), W_OK) == 0)
    error.code = ErrorCode::corrupt;
  close();
  return error;
}

Result<StoredImage> Database::verify_or_migrate() {
  const int64_t newest = options_.migrations.back().version;
  TERRACE_ASSIGN_OR_RETURN(const std::string version_text,
                           connection_.query_text("PRAGMA user_version", where_open));
  const int64_t version = std::strtoll(version_text.c_str(), nullptr, 10);
  if (version > newest) {
    return error_of(ErrorCode::version_mismatch, "store " + path_ + " has version " + version_text +
                                                     ", this build knows up to " + std::to_string(newest) +
                                                     "; run the newer terraced that wrote it");
  }
  if (version < 1) return error_of(ErrorCode::corrupt, "schema version " + version_text + " never existed");
  if (version < store_version_first)
    return error_of(ErrorCode::version_mismatch,
                    "store " + path_ + " has version " + version_text +
                        ", of a build before the first release; this build reads from " +
                        std::to_string(store_version_first) + " on");
  const Result<std::string> checked = connection_.query_text("PRAGMA quick_check(1)", where_open);
  if (!checked.ok()) return query_failed(checked.error());
  const std::string& found = *checked;
  if (found != "ok") return error_of(ErrorCode::corrupt, "damaged pages: " + found);
  const Result<std::string> schema = schema_text(connection_);
  if (!schema.ok()) return query_failed(schema.error());
  TERRACE_ASSIGN_OR_RETURN(const std::string expected, expected_schema_text(options_.migrations, version));
  if (*schema != expected)
    return error_of(ErrorCode::corrupt, "its tables are not those of version " + version_text);

  TERRACE_RETURN_IF_ERROR(connection_.exec("BEGIN IMMEDIATE", where_open));
  TERRACE_RETURN_IF_ERROR(migrate(connection_, options_.migrations, version));
  changed_ = version != newest;
  return read_image(connection_);
}

Status Database::fold_first(const Delta& delta, const FoldPoint& point) {
  changed_ = changed_ || !delta.empty() || point.sequence != seal_.sequence || point.journal != seal_.journal;
  if (changed_) {
    TERRACE_RETURN_IF_ERROR(writer_.prepare(connection_));
    const bool folding = point.sequence != seal_.sequence;
    if (const int code = folding ? TERRACE_FAILPOINT(fold_before_commit) : 0; code != 0)
      return os_error(code, "fold_before_commit", "store " + path_ + ": cannot fold the journal");
    TERRACE_RETURN_IF_ERROR(write(delta, point));
    TERRACE_RETURN_IF_ERROR(connection_.exec("COMMIT", where_open));
    if (const int code = folding ? TERRACE_FAILPOINT(fold_after_commit) : 0; code != 0)
      return os_error(code, "fold_after_commit",
                      "store " + path_ + ": folded the journal, without confirmation");
  } else {
    TERRACE_RETURN_IF_ERROR(connection_.exec("ROLLBACK", where_open));
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string mode,
                           connection_.query_text("PRAGMA journal_mode=WAL", where_open));
  if (mode != "wal") return error_of(ErrorCode::unsupported, "SQLite cannot keep a write-ahead log there");
  // From here on the store is known to be whole; an empty log makes the next start independent of it.
  TERRACE_RETURN_IF_ERROR(connection_.exec("PRAGMA wal_checkpoint(TRUNCATE)", where_open));
  return prepare();
}

Status Database::prepare() {
  sqlite3_wal_hook(connection_.raw(), count_log_frames, &log_frames_);
  TERRACE_ASSIGN_OR_RETURN(begin_, connection_.prepare("BEGIN IMMEDIATE", where_open));
  TERRACE_ASSIGN_OR_RETURN(commit_, connection_.prepare("COMMIT", where_open));
  TERRACE_RETURN_IF_ERROR(writer_.prepare(connection_));
  doubtful_ = false;
  return {};
}

void Database::close(bool whole) {
  end_copy();
  begin_ = Statement();
  commit_ = Statement();
  writer_ = RowWriter();
  if (whole && !doubtful_ && connection_.exec("PRAGMA wal_checkpoint(TRUNCATE)", "Database::close").ok())
    connection_.keep_log(false);
  connection_.close();
  doubtful_ = true;
}

Result<StoredImage> Database::read() {
  if (doubtful_) TERRACE_RETURN_IF_ERROR(reopen());
  return read_image(connection_);
}

// After a failed fold either the rows before it or those after it are there, and the seal says which.
Status Database::reopen() {
  const StoreSeal before = seal_;
  TERRACE_ASSIGN_OR_RETURN(const StoredImage stored, begin_open());
  if (stored.seal.store_id != before.store_id || stored.seal.sequence < before.sequence)
    return error_of(ErrorCode::corrupt, "store " + path_ + ": another file took the database's place");
  return finish_open(Delta{}, {.sequence = seal_.sequence, .journal = seal_.journal});
}

Status Database::write(const Delta& delta, const FoldPoint& point) {
  StoreSeal seal = seal_;
  seal.sequence = point.sequence;
  seal.journal = point.journal;
  TERRACE_RETURN_IF_ERROR(writer_.write(delta, meta_, seal));
  seal_ = seal;
  if (delta.meta.has_value()) meta_ = *delta.meta;
  return {};
}

Status Database::fold(const Delta& delta, const FoldPoint& point) {
  if (doubtful_) TERRACE_RETURN_IF_ERROR(reopen());
  if (point.sequence < seal_.sequence || (point.sequence == seal_.sequence && point.journal == seal_.journal))
    return {};
  const StoreSeal old_seal = seal_;
  const MetaRow old_meta = meta_;
  Status done = begin_.run(where_fold);
  if (done.ok()) done = write(delta, point);
  if (done.ok()) {
    if (const int code = TERRACE_FAILPOINT(fold_before_commit); code != 0)
      done = os_error(code, "fold_before_commit", "cannot fold the journal");
  }
  if (done.ok()) done = commit_.run(where_fold);
  if (!done.ok()) {
    seal_ = old_seal;
    meta_ = old_meta;
    return undo(done.error());
  }
  if (const int code = TERRACE_FAILPOINT(fold_after_commit); code != 0) {
    doubtful_ = true;
    return os_error(code, "fold_after_commit", "store " + path_ + ": folded the journal, without confirmation");
  }
  checkpoint_when_due();
  return {};
}

// Only a full disk leaves the connection trusted.
Status Database::undo(Error cause) {
  writer_.undone();
  bool undone = true;
  if (connection_.in_transaction()) undone = connection_.exec("ROLLBACK", "Database::undo").ok();
  if (!undone || cause.code != ErrorCode::capacity_exhausted) doubtful_ = true;
  if (!undone) cause.code = ErrorCode::io_error;
  if (cause.detail.find(path_) == std::string::npos) cause.detail = "store " + path_ + ": " + cause.detail;
  return cause;
}

void Database::checkpoint_when_due() {
  if (log_frames_ < options_.checkpoint_frames) return;
  // A checkpoint that fails loses nothing: the log keeps every frame, and the next fold tries again.
  if (connection_.exec("PRAGMA wal_checkpoint(PASSIVE)", "Database::checkpoint").ok()) log_frames_ = 0;
}

// Nothing of it has to survive a crash before it is whole.
Status Database::begin_copy(const std::string& path) {
  if (doubtful_) TERRACE_RETURN_IF_ERROR(reopen());
  end_copy();
  TERRACE_ASSIGN_OR_RETURN(copy_target_, Connection::open(path, true));
  TERRACE_RETURN_IF_ERROR(
      copy_target_.exec("PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF", where_copy_piece));
  copy_ = sqlite3_backup_init(copy_target_.raw(), "main", connection_.raw(), "main");
  if (copy_ != nullptr) return {};
  return sqlite_error(copy_target_.raw(), sqlite3_extended_errcode(copy_target_.raw()), where_copy_piece);
}

Result<bool> Database::copy_piece() {
  constexpr int pages = 256;  // 1 MiB: a fold that waits for it waits a millisecond or two
  if (copy_ == nullptr || doubtful_) {
    end_copy();
    return error_of(ErrorCode::unavailable,
                    "store " + path_ + ": a write failed while it was copied; try again");
  }
  const int code = sqlite3_backup_step(copy_, pages);
  if (code == SQLITE_OK) return false;
  if (code != SQLITE_DONE) return sqlite_error(copy_target_.raw(), code, where_copy_piece);
  return true;
}

void Database::end_copy() {
  sqlite3_backup_finish(std::exchange(copy_, nullptr));
  copy_target_.close();
}

Result<AuditPage> Database::audit(const AuditQuery& query) {
  if (doubtful_) TERRACE_RETURN_IF_ERROR(reopen());
  return read_audit(connection_, query);
}

}  // namespace terrace::daemon
