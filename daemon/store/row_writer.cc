// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/row_writer.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>

#include "core/base/limits.h"
#include "daemon/store/row_sql.h"

namespace terrace::daemon {
namespace {

constexpr const char* where_write = "RowWriter::write";

uint64_t bindable(auto id) {
  return id.value;
}
const std::string& bindable(const std::string& tenant) {
  return tenant;
}

template <typename Row>
std::string put_sql() {
  const ColumnTexts texts = column_texts<Row>();
  return std::string("INTO ") + Stored<Row>::table + " (" + texts.names + ", crc) VALUES (" + texts.marks +
         ",?)";
}

template <typename Key, typename Row>
Status check_rows(const std::map<Key, std::optional<Row>>& rows) {
  for (const auto& [key, row] : rows) {
    if (!row.has_value()) continue;
    TERRACE_RETURN_IF_ERROR(validate(*row));
    if (key_of(*row) != key)
      return Error{
          .code = ErrorCode::internal, .where = "RowWriter::check", .detail = "a row under another's id"};
  }
  return {};
}

Status check_all(const Delta& delta) {
  Status status;
  each_table(delta, [&](const auto& rows) {
    if (status.ok()) status = check_rows(rows);
  });
  TERRACE_RETURN_IF_ERROR(status);
  if (delta.meta.has_value()) return validate(*delta.meta);
  return {};
}

}  // namespace

template <typename Row>
Status RowWriter::prepare_table(Connection& connection) {
  constexpr const char* where = "RowWriter::prepare";
  Statements& table = std::get<Of<Row>>(tables_);
  const std::string of_row =
      std::string(" FROM ") + Stored<Row>::table + " WHERE " + key_texts<Row>().names + "=?";
  TERRACE_ASSIGN_OR_RETURN(table.old_crc, connection.prepare(("SELECT crc" + of_row).c_str(), where));
  TERRACE_ASSIGN_OR_RETURN(table.put,
                           connection.prepare(("INSERT OR REPLACE " + put_sql<Row>()).c_str(), where));
  TERRACE_ASSIGN_OR_RETURN(table.erase, connection.prepare(("DELETE" + of_row).c_str(), where));
  return {};
}

namespace {

// Whom a row of the audit log belongs to; in SQL and here the same. A tenant's name has no '!'.
const std::string audit_owner_sql =
    "(CASE WHEN tenant='' OR substr(actor,1,6)='admin ' THEN '' "
    "WHEN substr(verb,1,7)='denied ' THEN '!'||tenant ELSE tenant END)";

std::string audit_owner(const AuditRow& row) {
  if (row.tenant.empty() || row.actor.starts_with("admin ")) return {};
  return (row.verb.starts_with("denied ") ? "!" : "") + row.tenant;
}

// The oldest rows of an owner are found by a walk: some at once.
constexpr uint64_t audit_cut_rows = 256;

}  // namespace

Status RowWriter::prepare(Connection& connection) {
  constexpr const char* where = "RowWriter::prepare";
  TERRACE_RETURN_IF_ERROR(prepare_table<DeviceRow>(connection));
  TERRACE_RETURN_IF_ERROR(prepare_table<PoolRow>(connection));
  TERRACE_RETURN_IF_ERROR(prepare_table<LeaseRow>(connection));
  TERRACE_RETURN_IF_ERROR(prepare_table<QuotaRow>(connection));
  TERRACE_RETURN_IF_ERROR(prepare_table<ReservationRow>(connection));
  TERRACE_RETURN_IF_ERROR(prepare_table<OwnerRow>(connection));
  TERRACE_RETURN_IF_ERROR(prepare_table<ViewRow>(connection));
  const ColumnTexts meta = column_texts<MetaRow>();
  const std::string put_meta =
      "INSERT OR REPLACE INTO meta (id, " + meta.names + ", crc) VALUES (1," + meta.marks + ",?)";
  TERRACE_ASSIGN_OR_RETURN(put_meta_, connection.prepare(put_meta.c_str(), where));
  TERRACE_ASSIGN_OR_RETURN(newest_audit_,
                           connection.prepare("SELECT coalesce(max(sequence), 0) FROM audit", where));
  TERRACE_ASSIGN_OR_RETURN(put_audit_, connection.prepare(("INSERT " + put_sql<AuditRow>()).c_str(), where));
  TERRACE_ASSIGN_OR_RETURN(
      cut_audit_, connection.prepare(("DELETE FROM audit WHERE sequence IN (SELECT sequence FROM audit WHERE " +
                                      audit_owner_sql + "=? ORDER BY sequence LIMIT ?)")
                                         .c_str(),
                                     where));
  TERRACE_ASSIGN_OR_RETURN(
      count_audit_,
      connection.prepare(
          ("SELECT " + audit_owner_sql + " AS owner, count(*) FROM audit GROUP BY owner").c_str(), where));
  audit_counted_ = false;
  return {};
}

Status RowWriter::check(const Delta& delta) {
  Status status = check_all(delta);
  if (status.ok()) return status;
  return Error{.code = ErrorCode::internal,
               .where = "RowWriter::check",
               .detail = "refused to store a row: " + status.error().detail};
}

Status RowWriter::write(const Delta& delta, const MetaRow& meta, StoreSeal& seal) {
  Status status;
  each_table(delta, [&](const auto& rows) {
    if (status.ok()) status = write_table(rows, seal);
  });
  TERRACE_RETURN_IF_ERROR(status);
  TERRACE_RETURN_IF_ERROR(append_audit(delta.audit));
  return put_meta(delta.meta.has_value() ? *delta.meta : meta, seal);
}

template <typename Key>
Result<bool> RowWriter::take_out(Statements& table, const Key& key, StoreSeal& seal) {
  Statement& select = table.old_crc;
  select.bind_start();
  select.bind(key);
  const Result<bool> found = select.step(where_write);
  uint64_t crc = 0;
  const bool readable = found.ok() && *found && select.read(0, crc);
  select.reset();
  if (!found.ok()) return found.error();
  if (!*found) return false;
  if (!readable || crc > UINT32_MAX) {
    return Error{
        .code = ErrorCode::corrupt, .where = where_write, .detail = "a stored row's checksum cannot be read"};
  }
  seal.digest -= row_share(row_key(key), static_cast<uint32_t>(crc));
  --seal.rows;
  return true;
}

template <typename Row>
Status RowWriter::put(const Row& row, uint32_t crc) {
  Statement& statement = std::get<Of<Row>>(tables_).put;
  statement.bind_start();
  Binder binder(statement, extents_);
  Stored<Row>::key(binder, row);
  Stored<Row>::fields(binder, row);
  statement.bind(uint64_t{crc});
  return statement.run(where_write);
}

template <typename Key, typename Row>
Status RowWriter::write_table(const std::map<Key, std::optional<Row>>& rows, StoreSeal& seal) {
  Statements& table = std::get<Of<Row>>(tables_);
  for (const auto& [key, row] : rows) {
    TERRACE_ASSIGN_OR_RETURN(const bool stored, take_out(table, bindable(key), seal));
    if (row.has_value()) {
      const uint32_t crc = row_crc(*row);
      TERRACE_RETURN_IF_ERROR(put(*row, crc));
      seal.digest += row_share(row_key(bindable(key)), crc);
      ++seal.rows;
    } else if (stored) {
      table.erase.bind_start();
      table.erase.bind(bindable(key));
      TERRACE_RETURN_IF_ERROR(table.erase.run(where_write));
    }
  }
  return {};
}

Status RowWriter::append_audit(const std::vector<AuditRow>& rows) {
  if (rows.empty()) return {};
  TERRACE_RETURN_IF_ERROR(newest_audit_.step(where_write));
  uint64_t newest = 0;
  newest_audit_.read(0, newest);
  newest_audit_.reset();
  if (!audit_counted_) TERRACE_RETURN_IF_ERROR(count_audit());
  audit_counted_ = false;  // until all of it is written
  // More than the log keeps: the first ones would be gone again at once, but they count.
  const size_t skipped = rows.size() > limits::audit_rows_max ? rows.size() - limits::audit_rows_max : 0;
  newest += skipped;
  for (size_t i = skipped; i < rows.size(); ++i) {
    AuditRow row = clipped(rows[i]);
    row.sequence = ++newest;
    put_audit_.bind_start();
    Binder binder(put_audit_, extents_);
    Stored<AuditRow>::key(binder, row);
    Stored<AuditRow>::fields(binder, row);
    put_audit_.bind(uint64_t{row_crc(row)});
    TERRACE_RETURN_IF_ERROR(put_audit_.run(where_write));
    ++audit_counts_[audit_owner(row)];
  }
  TERRACE_RETURN_IF_ERROR(cut_audit());
  audit_counted_ = true;
  return {};
}

Status RowWriter::count_audit() {
  audit_counts_.clear();
  count_audit_.bind_start();
  for (;;) {
    TERRACE_ASSIGN_OR_RETURN(const bool more, count_audit_.step(where_write));
    if (!more) break;
    std::string owner;
    uint64_t rows = 0;
    count_audit_.read_text(0, limits::audit_text_bytes_max + 1, owner);
    count_audit_.read(1, rows);
    audit_counts_[owner] = rows;
  }
  count_audit_.reset();
  audit_counted_ = true;
  return {};
}

// From whoever has most, down to the next one's.
Status RowWriter::cut_audit() {
  constexpr uint64_t operators_share = limits::audit_rows_max / 2;
  uint64_t rows = 0;
  for (const auto& [owner, count] : audit_counts_) rows += count;
  while (rows > limits::audit_rows_max) {
    auto most = audit_counts_.end();
    uint64_t next = 0;
    for (auto at = audit_counts_.begin(); at != audit_counts_.end(); ++at) {
      const uint64_t over = at->first.empty() && at->second <= operators_share ? 0 : at->second;
      if (most != audit_counts_.end() && over <= most->second) {
        next = std::max(next, over);
      } else if (over != 0) {
        next = most == audit_counts_.end() ? 0 : most->second;
        most = at;
      }
    }
    uint64_t cut = std::min(std::max(rows - limits::audit_rows_max, audit_cut_rows),
                            std::max(most->second - next, audit_cut_rows));
    cut = std::min(cut, most->first.empty() ? most->second - operators_share : most->second);
    cut_audit_.bind_start();
    cut_audit_.bind(most->first);
    cut_audit_.bind(cut);
    TERRACE_RETURN_IF_ERROR(cut_audit_.run(where_write));
    rows -= cut;
    if ((most->second -= cut) == 0) audit_counts_.erase(most);
  }
  return {};
}

Status RowWriter::put_meta(const MetaRow& row, const StoreSeal& seal) {
  put_meta_.bind_start();
  Binder binder(put_meta_, extents_);
  MetaFields::fields(binder, seal, row);
  put_meta_.bind(uint64_t{row_crc(row, seal)});
  return put_meta_.run(where_write);
}

}  // namespace terrace::daemon
