#include "daemon/store/sqlite_store.h"

#include <sqlite3.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/failpoint.h"
#include "core/base/limits.h"
#include "daemon/store/image_reader.h"
#include "daemon/store/mark_file.h"
#include "daemon/store/row_codec.h"
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

 private:
  // A row's new share of the digest, known to the maps only once its transaction is durable.
  struct Change {
    Table table;
    uint64_t id;
    std::optional<uint64_t> share;
  };

  void detach();
  Status attach_unexplained();
  Status verify_or_migrate();
  Status prepare();
  Status check_delta(const Delta& delta) const;
  Status write(const Delta& delta, StoreSeal& seal, std::vector<Change>& changes);
  Status put(Statement& statement, Table table, uint64_t id, uint32_t crc, StoreSeal& seal,
             std::vector<Change>& changes);
  Status erase(Table table, uint64_t id, StoreSeal& seal, std::vector<Change>& changes);
  Status run(Statement& statement);
  void replace_share(Table table, uint64_t id, std::optional<uint64_t> share, StoreSeal& seal,
                     std::vector<Change>& changes);
  // Undoes the open transaction. Only a full disk leaves the store usable.
  Error give_up(Error cause);
  void checkpoint_when_due();

  std::string path_;
  SqliteStoreOptions options_;
  MarkFile mark_;
  Connection connection_;
  Statement begin_, commit_, put_meta_;
  std::array<Statement, table_count> put_, erase_;
  MetaRow meta_;
  StoreSeal seal_;
  RowShares shares_;
  std::optional<Image> verified_;
  std::vector<std::byte> extents_;
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
  TERRACE_RETURN_IF_ERROR(prepare());
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
  shares_ = std::move(stored->shares);
  meta_ = stored->image.meta;
  verified_ = std::move(stored->image);
  return {};
}

Status SqliteStore::prepare() {
  constexpr const char* where = "SqliteStore::prepare";
  TERRACE_ASSIGN_OR_RETURN(begin_, connection_.prepare("BEGIN IMMEDIATE", where));
  TERRACE_ASSIGN_OR_RETURN(commit_, connection_.prepare("COMMIT", where));
  TERRACE_ASSIGN_OR_RETURN(
      put_meta_, connection_.prepare("UPDATE meta SET store_id=?, sequence=?, rows=?, digest=?, next_device=?, "
                                     "next_pool=?, next_lease=?, next_epoch=?, boot_id=?, crc=? WHERE id=1",
                                     where));
  struct Sql {
    Table table;
    const char* put;
    const char* erase;
  };
  constexpr Sql statements[] = {
      {Table::device,
       "INSERT OR REPLACE INTO device (serial, backend, capacity_bytes, granule_bytes, pool, id, crc) "
       "VALUES (?,?,?,?,?,?,?)",
       "DELETE FROM device WHERE id=?"},
      {Table::pool, "INSERT OR REPLACE INTO pool (name, id, crc) VALUES (?,?,?)",
       "DELETE FROM pool WHERE id=?"},
      {Table::lease,
       "INSERT OR REPLACE INTO lease (pool, tenant, host, label, object, reason, extents, epoch, mode, phase, "
       "bytes, ttl_ns, expiry_ns, deadline_ns, request_high, request_low, id, crc) "
       "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
       "DELETE FROM lease WHERE id=?"},
  };
  for (const Sql& sql : statements) {
    const auto index = static_cast<size_t>(sql.table);
    TERRACE_ASSIGN_OR_RETURN(put_[index], connection_.prepare(sql.put, where));
    TERRACE_ASSIGN_OR_RETURN(erase_[index], connection_.prepare(sql.erase, where));
  }
  return {};
}

void SqliteStore::detach() {
  for (Statement* statement : {&begin_, &commit_, &put_meta_}) *statement = Statement();
  for (Statement& statement : put_) statement = Statement();
  for (Statement& statement : erase_) statement = Statement();
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
  if (delta.empty()) return {};
  if (failed_)
    return error_of(ErrorCode::io_error, "store " + path_ + ": an earlier commit ended in doubt; load first");
  TERRACE_RETURN_IF_ERROR(check_delta(delta));
  if (const int code = TERRACE_FAILPOINT(store_before_begin); code != 0)
    return give_up(os_error(code, "store_before_begin", "store " + path_ + ": cannot begin"));

  verified_.reset();
  StoreSeal seal = seal_;
  ++seal.sequence;
  std::vector<Change> changes;
  Status written = write(delta, seal, changes);
  if (!written.ok()) return give_up(written.error());
  if (const int code = TERRACE_FAILPOINT(store_before_commit); code != 0)
    return give_up(os_error(code, "store_before_commit", "store " + path_ + ": cannot commit"));
  Status committed = run(commit_);
  if (!committed.ok()) return give_up(committed.error());

  // Durable from here: whatever still fails, the caller must read back rather than try again.
  seal_ = seal;
  if (delta.meta.has_value()) meta_ = *delta.meta;
  for (const Change& change : changes) {
    auto& shares = shares_[static_cast<size_t>(change.table)];
    if (change.share.has_value()) {
      shares[change.id] = *change.share;
    } else {
      shares.erase(change.id);
    }
  }
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

Status SqliteStore::check_delta(const Delta& delta) const {
  // A row that load() would refuse must not get in: that would be a defect of the caller's.
  Status status;
  const auto check = [&status](uint64_t key, const auto& row) {
    if (!status.ok() || !row.has_value()) return;
    status = validate(*row);
    if (status.ok() && row->id.value != key) status = error_of(ErrorCode::corrupt, "a row under another's id");
  };
  for (const auto& [id, row] : delta.devices) check(id.value, row);
  for (const auto& [id, row] : delta.pools) check(id.value, row);
  for (const auto& [id, row] : delta.leases) check(id.value, row);
  if (status.ok() && delta.meta.has_value()) status = validate(*delta.meta);
  if (status.ok()) return status;
  return error_of(ErrorCode::internal, "refused to store a row: " + status.error().detail);
}

Status SqliteStore::write(const Delta& delta, StoreSeal& seal, std::vector<Change>& changes) {
  TERRACE_RETURN_IF_ERROR(run(begin_));
  for (const auto& [id, row] : delta.devices) {
    if (!row.has_value()) {
      TERRACE_RETURN_IF_ERROR(erase(Table::device, id.value, seal, changes));
      continue;
    }
    Statement& statement = put_[static_cast<size_t>(Table::device)];
    statement.bind_start();
    statement.bind(row->serial);
    statement.bind(row->backend);
    statement.bind(row->capacity_bytes);
    statement.bind(row->granule_bytes);
    statement.bind(row->pool.value);
    TERRACE_RETURN_IF_ERROR(put(statement, Table::device, id.value, row_crc(*row), seal, changes));
  }
  for (const auto& [id, row] : delta.pools) {
    if (!row.has_value()) {
      TERRACE_RETURN_IF_ERROR(erase(Table::pool, id.value, seal, changes));
      continue;
    }
    Statement& statement = put_[static_cast<size_t>(Table::pool)];
    statement.bind_start();
    statement.bind(row->name);
    TERRACE_RETURN_IF_ERROR(put(statement, Table::pool, id.value, row_crc(*row), seal, changes));
  }
  for (const auto& [id, row] : delta.leases) {
    if (!row.has_value()) {
      TERRACE_RETURN_IF_ERROR(erase(Table::lease, id.value, seal, changes));
      continue;
    }
    encode_extents(row->extents, extents_);
    Statement& statement = put_[static_cast<size_t>(Table::lease)];
    statement.bind_start();
    statement.bind(row->pool.value);
    for (const std::string* text : {&row->tenant, &row->host, &row->label, &row->object, &row->reason})
      statement.bind(*text);
    statement.bind(std::span<const std::byte>(extents_));
    for (const uint64_t value :
         {row->epoch.value, static_cast<uint64_t>(row->mode), static_cast<uint64_t>(row->phase), row->bytes,
          row->ttl_ns, row->expiry_ns, row->deadline_ns, row->request_high, row->request_low})
      statement.bind(value);
    TERRACE_RETURN_IF_ERROR(put(statement, Table::lease, id.value, row_crc(*row), seal, changes));
  }
  const MetaRow& meta = delta.meta.has_value() ? *delta.meta : meta_;
  put_meta_.bind_start();
  for (const uint64_t value : {seal.store_id, seal.sequence, seal.rows, seal.digest, meta.next_device,
                               meta.next_pool, meta.next_lease, meta.next_epoch})
    put_meta_.bind(value);
  put_meta_.bind(meta.boot_id);
  put_meta_.bind(uint64_t{row_crc(meta, seal)});
  return run(put_meta_);
}

Status SqliteStore::put(Statement& statement, Table table, uint64_t id, uint32_t crc, StoreSeal& seal,
                        std::vector<Change>& changes) {
  statement.bind(id);
  statement.bind(uint64_t{crc});
  TERRACE_RETURN_IF_ERROR(run(statement));
  replace_share(table, id, row_share(id, crc), seal, changes);
  return {};
}

Status SqliteStore::erase(Table table, uint64_t id, StoreSeal& seal, std::vector<Change>& changes) {
  Statement& statement = erase_[static_cast<size_t>(table)];
  statement.bind_start();
  statement.bind(id);
  TERRACE_RETURN_IF_ERROR(run(statement));
  replace_share(table, id, std::nullopt, seal, changes);
  return {};
}

Status SqliteStore::run(Statement& statement) {
  Result<bool> row = statement.step("SqliteStore::commit");
  statement.reset();
  if (!row.ok()) return row.error();
  return {};
}

void SqliteStore::replace_share(Table table, uint64_t id, std::optional<uint64_t> share, StoreSeal& seal,
                                std::vector<Change>& changes) {
  const auto& shares = shares_[static_cast<size_t>(table)];
  if (const auto old = shares.find(id); old != shares.end()) {
    seal.digest -= old->second;
    --seal.rows;
  }
  if (share.has_value()) {
    seal.digest += *share;
    ++seal.rows;
  }
  changes.push_back({table, id, share});
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
