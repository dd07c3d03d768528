// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/salvage/damaged_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/base/unique_fd.h"
#include "daemon/store/backup/store_copy_file.h"
#include "daemon/store/commit_mark_file.h"
#include "daemon/store/image_reader.h"
#include "daemon/store/journal/journal_replay.h"
#include "daemon/store/journal/journal_segment.h"
#include "daemon/store/row_sql.h"
#include "daemon/store/schema.h"
#include "daemon/store/sqlite_handle.h"
#include "daemon/store/store_files.h"

namespace terrace::daemon {
namespace {

constexpr const char* where_salvage = "salvage";

using Lost = std::vector<std::string>;

Error unreadable(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = where_salvage, .detail = std::move(detail)};
}

std::string shown_key(auto id) {
  return std::to_string(id.value);
}
std::string shown_key(const std::string& tenant) {
  return "'" + tenant + "'";
}

// --- the database

template <typename Row>
using RowsByKey = std::map<std::decay_t<decltype(key_of(std::declval<const Row&>()))>, Row>;

// Reads a table in the order of its keys, or from its other end, as far as SQLite can. Whether that was to the end.
template <typename Row>
bool read_sound_rows(Connection& connection, bool backwards, RowsByKey<Row>& rows,
                     std::set<std::string>& damaged) {
  const std::string sql = select_sql<Row>() + " ORDER BY 1" + (backwards ? " DESC" : "");
  Result<Statement> select = connection.prepare(sql.c_str(), where_salvage);
  if (!select.ok()) return false;
  for (;;) {
    const Result<bool> more = select->step(where_salvage);
    if (!more.ok()) return false;
    if (!*more) return true;
    ColumnReader columns(*select);
    Row row;
    uint64_t stored_crc = 0;
    Stored<Row>::key(columns, row);
    Stored<Row>::fields(columns, row);
    columns.integer("crc", stored_crc);
    const auto key = key_of(row);
    if (!columns.sound() || row_crc(row) != stored_crc || !validate(row).ok()) {
      damaged.insert(std::string(Stored<Row>::table) + " row " + shown_key(key) +
                     " does not match its checksum");
    } else if (rows.size() < Stored<Row>::rows_max) {
      rows.emplace(key, std::move(row));
    }
  }
}

template <typename Row>
void read_damaged_table(Connection& connection, std::vector<Row>& out, Lost& lost) {
  RowsByKey<Row> rows;
  std::set<std::string> damaged;
  const bool whole = read_sound_rows(connection, false, rows, damaged);
  if (!whole) read_sound_rows(connection, true, rows, damaged);
  if (!whole)
    lost.push_back(std::string(Stored<Row>::table) + ": SQLite cannot read all of it; " +
                   std::to_string(rows.size()) + " rows were read");
  lost.insert(lost.end(), damaged.begin(), damaged.end());
  for (auto& [key, row] : rows) out.push_back(std::move(row));
}

// Whether the row of counters is there and whole.
bool read_sound_meta(Connection& connection, MetaRow& meta, StoreSeal& seal) {
  Result<Statement> select = connection.prepare(select_sql<MetaRow>().c_str(), where_salvage);
  if (!select.ok()) return false;
  const Result<bool> found = select->step(where_salvage);
  if (!found.ok() || !*found) return false;
  ColumnReader columns(*select);
  uint64_t stored_crc = 0;
  MetaFields::fields(columns, seal, meta);
  columns.integer("crc", stored_crc);
  return columns.sound() && stored_crc == row_crc(meta, seal) && validate(meta).ok();
}

struct DatabaseRows {
  Image image;
  std::optional<StoreSeal> seal;  // none: the row of counters is damaged
  StoreSeal damaged_seal;         // what it says then
};

Result<DatabaseRows> read_damaged_database(const std::string& path, const StoreOptions& options, Lost& lost) {
  TERRACE_RETURN_IF_ERROR(check_store_file(path));
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::open(path, false));
  TERRACE_ASSIGN_OR_RETURN(const std::string text, connection.query_text("PRAGMA user_version", where_salvage));
  const int64_t version = std::strtoll(text.c_str(), nullptr, 10);
  if (version < store_version_first || version > options.migrations.back().version)
    return unreadable(ErrorCode::version_mismatch, "store " + path + " has version " + text +
                                                       ", which this build does "
                                                       "not read: use the terraced that wrote it");
  TERRACE_RETURN_IF_ERROR(connection.exec("BEGIN IMMEDIATE", where_salvage));
  TERRACE_RETURN_IF_ERROR(migrate(connection, options.migrations, version));
  DatabaseRows rows;
  StoreSeal seal;
  if (read_sound_meta(connection, rows.image.meta, seal)) {
    rows.seal = seal;
  } else {
    rows.image.meta = {};
    rows.damaged_seal = seal;
    lost.push_back("the row of counters (meta): numbers are given from beyond all that are known");
  }
  each_table(rows.image, [&](auto& table) { read_damaged_table(connection, table, lost); });
  (void)connection.exec("ROLLBACK", where_salvage);
  return rows;
}

// --- the journal

std::vector<std::byte> bytes_of(const std::string& path) {
  std::vector<std::byte> bytes;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return bytes;
  bytes.resize(static_cast<size_t>(std::min<int64_t>(status.st_size, int64_t{1} << 30)));
  size_t done = 0;
  for (ssize_t n; done < bytes.size(); done += static_cast<size_t>(n)) {
    n = ::pread(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n <= 0) break;
  }
  bytes.resize(done);
  return bytes;
}

// Without the database's number nobody knows which commits it has. Those of each file's last round are its newest, and
// to put them in once more changes nothing; what lies behind them is of earlier rounds.
void keep_last_round(std::vector<FoundRecord>& records) {
  const auto fall = std::adjacent_find(
      records.begin(), records.end(),
      [](const FoundRecord& one, const FoundRecord& next) { return next.sequence <= one.sequence; });
  if (fall != records.end()) records.erase(std::next(fall), records.end());
}

void tell_missing(uint64_t first, uint64_t last, Lost& lost) {
  if (first > last) return;
  lost.push_back(first == last ? "commit " + std::to_string(first)
                               : "commits " + std::to_string(first) + " to " + std::to_string(last));
}

// The changes of all whole commits behind `folded`, later ones over earlier ones. The newest one's number.
uint64_t read_commits(std::vector<FoundRecord> records, uint64_t folded, uint64_t known, Delta& delta,
                      Lost& lost) {
  std::sort(records.begin(), records.end(),
            [](const FoundRecord& a, const FoundRecord& b) { return a.sequence < b.sequence; });
  uint64_t newest = folded;
  for (const FoundRecord& record : records) {
    if (record.sequence <= newest) continue;
    if (newest != 0) tell_missing(newest + 1, record.sequence - 1, lost);
    newest = record.sequence;
    Delta one;
    if (decode_delta(record.payload, one).ok())
      delta.merge(std::move(one));
    else
      tell_missing(record.sequence, record.sequence, lost);
  }
  tell_missing(newest + 1, known, lost);
  return std::max(newest, known);
}

}  // namespace

Result<SalvagedStore> read_damaged_store(const std::string& path, const StoreOptions& options) {
  SalvagedStore store;
  TERRACE_ASSIGN_OR_RETURN(DatabaseRows rows, read_damaged_database(path, options, store.lost));
  const std::vector<std::byte> files[] = {bytes_of(path + "-journal-a"), bytes_of(path + "-journal-b")};
  const auto mark = CommitMarkFile::peek(path + "-mark");
  if (rows.seal.has_value()) {
    store.id = {rows.seal->store_high, rows.seal->store_id};
  } else {
    std::optional<uint64_t> low;
    for (const auto& file : files)
      if (!low.has_value()) low = store_of_segment(file);
    if (!low.has_value() && mark.has_value()) low = mark->store_id;
    if (!low.has_value())
      return unreadable(ErrorCode::corrupt, "neither " + path +
                                                " nor its journal and mark say any more which store it "
                                                "is: restore a backup (terrace state restore)");
    // One bit is wrong somewhere in that row, and hardly in this number if the other half is right.
    if (rows.damaged_seal.store_id != *low)
      return unreadable(ErrorCode::corrupt, path +
                                                " does not say any more which store it is: restore a backup "
                                                "(terrace state restore)");
    store.id = {rows.damaged_seal.store_high, *low};
  }
  std::vector<FoundRecord> records;
  for (const auto& file : files) {
    std::vector<FoundRecord> found = find_records(file, store.id.low);
    if (!rows.seal.has_value()) keep_last_round(found);
    records.insert(records.end(), found.begin(), found.end());
  }
  const uint64_t folded = rows.seal.has_value() ? rows.seal->sequence : 0;
  const uint64_t known = mark.has_value() && mark->store_id == store.id.low ? mark->sequence : 0;
  Delta delta;
  store.sequence = read_commits(std::move(records), folded, known, delta, store.lost);
  store.image = std::move(rows.image);
  apply_delta(std::move(delta), store.image);
  store.image.meta.restored = true;
  return store;
}

Status write_salvaged_store(const std::string& path, const SalvagedStore& store, const StoreOptions& options) {
  {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid() && errno == EEXIST)
      return Error{
          .code = ErrorCode::already_exists, .where = where_salvage, .detail = path + " is there already"};
    if (!file.valid()) return os_error(errno, where_salvage, "cannot make the file " + path);
  }
  Delta all;
  for (const DeviceRow& row : store.image.devices) all.devices[row.id] = row;
  for (const PoolRow& row : store.image.pools) all.pools[row.id] = row;
  for (const LeaseRow& row : store.image.leases) all.leases[row.id] = row;
  for (const QuotaRow& row : store.image.quotas) all.quotas[row.tenant] = row;
  for (const ReservationRow& row : store.image.reservations) all.reservations[row.id] = row;
  for (const OwnerRow& row : store.image.owners) all.owners[row.id] = row;
  for (const ViewRow& row : store.image.views) all.views[row.id] = row;
  all.meta = store.image.meta;
  const StoreSeal seal{.store_id = store.id.low, .sequence = store.sequence, .store_high = store.id.high};
  Status made = fill_store_file(path, options.migrations, all, seal);
  if (made.ok()) {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!file.valid() || ::fsync(file.get()) != 0) made = os_error(errno, where_salvage, "cannot sync " + path);
  }
  if (made.ok()) return {};
  remove_database(path);
  return made;
}

}  // namespace terrace::daemon
