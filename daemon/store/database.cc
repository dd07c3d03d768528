#include "daemon/store/sqlite_store.h"

#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/failpoint.h"
#include "core/base/limits.h"
#include "daemon/store/audit_reader.h"
#include "daemon/store/image_reader.h"
#include "daemon/store/mark_file.h"
#include "daemon/store/row_writer.h"
#include "daemon/store/store_files.h"

namespace terrace::daemon {
namespace {

Error error_of(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "SqliteStore", .detail = std::move(detail)};
}

class SqliteStore final : public Store {
 public:
  SqliteStore(std::string path, const SqliteStoreOptions& options)
      : path_(std::move(path)), options_(options) {}
  ~SqliteStore() override { detach(); }

  // Opens, verifies and seals; leaves the image of that verification for the first load().
  Status attach();

  Result<Image> load() override;
  Status commit(const Delta& delta) override;
  Result<AuditPage> audit(const AuditQuery& query) override;

 private:
  void detach();
  Status attach_unexplained();
  Status verify_or_migrate();
  // Undoes the open transaction. Only a full disk leaves the store usable.
  Error give_up(Error cause);
  void checkpoint_when_due();

  std::string path_;
  SqliteStoreOptions options_;
  MarkFile mark_;
  Connection connection_;
  Statement begin_, commit_;
  RowWriter writer_;
  MetaRow meta_;
  StoreSeal seal_;
  std::optional<Image> verified_;
  int log_frames_ = 0;
  bool failed_ = true;  // until attached, and after an outcome that nobody knows
};

int count_log_frames(void* frames, sqlite3*, const char*, int count) {
  *static_cast<int*>(frames) = count;
  return SQLITE_OK;
}

Status SqliteStore::attach() {
  detach();
  Status status = attach_unexplained();
  if (status.ok()) return status;
  detach();
  Error error = status.error();
  if (error.detail.find(path_) == std::string::npos) error.detail = "store " + path_ + ": " + error.detail;
  if (error.code == ErrorCode::busy && error.os_errno == 0 &&
      error.detail.find("terraced") == std::string::npos)
    error.detail += "; another program has the file open, close it first";
  return error;
}

Status SqliteStore::attach_unexplained() {
  constexpr const char* where = "open_sqlite_store";
  TERRACE_RETURN_IF_ERROR(make_parent_folder(path_));
  TERRACE_ASSIGN_OR_RETURN(mark_, MarkFile::open(path_ + "-mark", path_));
  TERRACE_RETURN_IF_ERROR(create_if_fresh(path_, mark_, options_.migrations));
  Result<Connection> connection = Connection::open(path_, false);
  if (!connection.ok()) return query_failed(connection.error());
  connection_ = std::move(connection).value();
  if (Status verified = verify_or_migrate(); !verified.ok()) {
    // SQLite takes a damaged header byte for a read-only format; the file's mode says otherwise.
    Error error = verified.error();
    if (error.code == ErrorCode::permission_denied && ::access(path_.c_str(), W_OK) == 0)
      error.code = ErrorCode::corrupt;
    return error;
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string mode, connection_.query_text("PRAGMA journal_mode=WAL", where));
  if (mode != "wal") return error_of(ErrorCode::unsupported, "SQLite cannot keep a write-ahead log there");

  // From here on the store is known to be whole; an empty log makes the next start independent of it.
  TERRACE_RETURN_IF_ERROR(connection_.exec("PRAGMA wal_checkpoint(TRUNCATE)", where));
  TERRACE_RETURN_IF_ERROR(mark_.record({seal_.store_id, seal_.sequence}));
  TERRACE_RETURN_IF_ERROR(mark_.sync());
  TERRACE_RETURN_IF_ERROR(sync_folder_of(path_));
  sqlite3_wal_hook(connection_.raw(), count_log_frames, &log_frames_);
  TERRACE_ASSIGN_OR_RETURN(begin_, connection_.prepare("BEGIN IMMEDIATE", where));
  TERRACE_ASSIGN_OR_RETURN(commit_, connection_.prepare("COMMIT", where));
  TERRACE_RETURN_IF_ERROR(writer_.prepare(connection_));
  failed_ = false;
  return {};
}

Status SqliteStore::verify_or_migrate() {
  constexpr const char* where = "open_sqlite_store";
  const auto newest = static_cast<int64_t>(options_.migrations.size());
  TERRACE_ASSIGN_OR_RETURN(const std::string version_text,
                           connection_.query_text("PRAGMA user_version", where));
  const int64_t version = std::strtoll(version_text.c_str(), nullptr, 10);
  if (version > newest) {
    return error_of(ErrorCode::version_mismatch, "store " + path_ + " has version " + version_text +
                                                     ", this build knows up to " + std::to_string(newest) +
                                                     "; run the newer terraced that wrote it");
  }
  if (version < 1) return error_of(ErrorCode::corrupt, "schema version " + version_text + " never existed");
  const Result<std::string> checked = connection_.query_text("PRAGMA quick_check(1)", where);
  if (!checked.ok()) return query_failed(checked.error());
  const std::string& found = *checked;
  if (found != "ok") return error_of(ErrorCode::corrupt, "damaged pages: " + found);
  const Result<std::string> schema = schema_text(connection_);
  if (!schema.ok()) return query_failed(schema.error());
  TERRACE_ASSIGN_OR_RETURN(const std::string expected, expected_schema_text(options_.migrations, version));
  if (*schema != expected)
    return error_of(ErrorCode::corrupt, "its tables are not those of version " + version_text);

  TERRACE_RETURN_IF_ERROR(connection_.exec("BEGIN IMMEDIATE", where));
  Status migrated = migrate(connection_, options_.migrations, version);
  if (!migrated.ok()) return give_up(migrated.error());
  Result<StoredImage> stored = read_image(connection_);
  if (!stored.ok()) return give_up(stored.error());
  if (const auto& mark = mark_.mark(); mark.has_value()) {
    if (mark->store_id != stored->seal.store_id) {
      return give_up(
          error_of(ErrorCode::corrupt,
                   path_ + "-mark belongs to another store; to accept this one, move the mark away"));
    }
    if (stored->seal.sequence < mark->sequence) {
      return give_up(
          error_of(ErrorCode::corrupt, std::to_string(mark->sequence - stored->seal.sequence) +
                                           " acknowledged commits are missing: the log was damaged or "
                                           "the file is an older copy"));
    }
  }
  TERRACE_RETURN_IF_ERROR(connection_.exec(version == newest ? "ROLLBACK" : "COMMIT", where));
  seal_ = stored->seal;
  meta_ = stored->image.meta;
  verified_ = std::move(stored->image);
  return {};
}

void SqliteStore::detach() {
  begin_ = Statement();
  commit_ = Statement();
  writer_ = RowWriter();
  // A healthy store leaves one whole file; a doubtful one leaves everything as it was found.
  if (!failed_) {
    if (connection_.exec("PRAGMA wal_checkpoint(TRUNCATE)", "SqliteStore::detach").ok())
      connection_.keep_log(false);
    [[maybe_unused]] const Status synced = mark_.sync();  // a weaker lower bound is still one
  }
  connection_.close();
  mark_ = MarkFile();
  verified_.reset();
  failed_ = true;
}

Result<Image> SqliteStore::load() {
  if (verified_.has_value()) {
    Image image = std::move(*verified_);
    verified_.reset();
    return image;
  }
  if (failed_) {
    TERRACE_RETURN_IF_ERROR(attach());
    return load();
  }
  TERRACE_ASSIGN_OR_RETURN(StoredImage stored, read_image(connection_));
  return std::move(stored.image);
}

Status SqliteStore::commit(const Delta& delta) {
  constexpr const char* where = "SqliteStore::commit";
  if (delta.empty()) return {};
  if (failed_)
    return error_of(ErrorCode::io_error, "store " + path_ + ": an earlier commit ended in doubt; load first");
  TERRACE_RETURN_IF_ERROR(RowWriter::check(delta));
  if (const int code = TERRACE_FAILPOINT(store_before_begin); code != 0)
    return give_up(os_error(code, "store_before_begin", "store " + path_ + ": cannot begin"));

  verified_.reset();
  StoreSeal seal = seal_;
  ++seal.sequence;
  Status written = begin_.run(where);
  if (written.ok()) written = writer_.write(delta, meta_, seal);
  if (!written.ok()) return give_up(written.error());
  if (const int code = TERRACE_FAILPOINT(store_before_commit); code != 0)
    return give_up(os_error(code, "store_before_commit", "store " + path_ + ": cannot commit"));
  Status committed = commit_.run(where);
  if (!committed.ok()) return give_up(committed.error());

  // Durable from here: whatever still fails, the caller must read back rather than try again.
  seal_ = seal;
  if (delta.meta.has_value()) meta_ = *delta.meta;
  Status marked = mark_.record({seal_.store_id, seal_.sequence});
  const int code = TERRACE_FAILPOINT(store_after_commit);
  if (code != 0 || !marked.ok()) {
    failed_ = true;
    return Error{.code = ErrorCode::io_error,
                 .os_errno = code != 0 ? code : marked.error().os_errno,
                 .where = "SqliteStore::commit",
                 .detail = "store " + path_ + ": committed, but the commit could not be confirmed"};
  }
  checkpoint_when_due();
  return {};
}

Result<AuditPage> SqliteStore::audit(const AuditQuery& query) {
  if (failed_) return error_of(ErrorCode::io_error, "store " + path_ + ": a commit ended in doubt; load first");
  return read_audit(connection_, query);
}

Error SqliteStore::give_up(Error cause) {
  bool undone = true;
  if (connection_.in_transaction()) undone = connection_.exec("ROLLBACK", "SqliteStore::give_up").ok();
  const bool known = undone && cause.code == ErrorCode::capacity_exhausted;
  if (!known) failed_ = true;
  if (!undone) cause.code = ErrorCode::io_error;
  if (cause.detail.find(path_) == std::string::npos) cause.detail = "store " + path_ + ": " + cause.detail;
  return cause;
}

void SqliteStore::checkpoint_when_due() {
  if (log_frames_ < options_.checkpoint_frames) return;
  // A checkpoint that fails loses nothing: the log keeps every frame, and the next commit tries again.
  const Status moved = connection_.exec("PRAGMA wal_checkpoint(PASSIVE)", "SqliteStore::checkpoint");
  if (moved.ok() && mark_.sync().ok()) log_frames_ = 0;
}

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path, const SqliteStoreOptions& options) {
  if (path.empty())
    return Error{.code = ErrorCode::invalid_argument, .where = "open_sqlite_store", .detail = "no state path"};
  auto store = std::make_unique<SqliteStore>(path, options);
  TERRACE_RETURN_IF_ERROR(store->attach());
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path) {
  return open_sqlite_store(path, SqliteStoreOptions{});
}

}  // namespace terrace::daemon
