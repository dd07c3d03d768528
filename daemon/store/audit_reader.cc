// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/audit_reader.h"

#include <algorithm>
#include <string>

#include "core/base/limits.h"
#include "daemon/store/image_reader.h"
#include "daemon/store/row_sql.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "read_audit";

// SQLite compares signed values; nothing real is beyond their range.
uint64_t as_signed(uint64_t value) {
  return std::min<uint64_t>(value, INT64_MAX);
}

Result<uint64_t> read_bound(Connection& connection, const char* sql) {
  TERRACE_ASSIGN_OR_RETURN(const Statement found, [&]() -> Result<Statement> {
    TERRACE_ASSIGN_OR_RETURN(Statement select, connection.prepare(sql, where));
    TERRACE_RETURN_IF_ERROR(select.step(where));
    return select;
  }());
  uint64_t value = 0;
  found.read(0, value);
  return value;
}

Result<AuditRow> read_row(const Statement& select) {
  AuditRow row;
  uint64_t crc = 0;
  ColumnReader columns(select);
  Stored<AuditRow>::key(columns, row);
  Stored<AuditRow>::fields(columns, row);
  columns.integer("crc", crc);
  if (columns.sound() && crc == row_crc(row)) return row;
  return Error{.code = ErrorCode::corrupt,
               .where = where,
               .detail = "line " + std::to_string(row.sequence) + " of the audit log is damaged"};
}

}  // namespace

Result<AuditPage> read_audit(Connection& connection, const AuditQuery& query) {
  AuditPage page;
  TERRACE_ASSIGN_OR_RETURN(page.oldest, read_bound(connection, "SELECT coalesce(min(sequence), 0) FROM audit"));
  TERRACE_ASSIGN_OR_RETURN(page.newest, read_bound(connection, "SELECT coalesce(max(sequence), 0) FROM audit"));
  std::string sql =
      select_sql<AuditRow>() +
      " WHERE sequence > ?1 AND wall_ns >= ?2 AND (?3 = '' OR tenant = ?3) "
      "AND (?4 = '' OR substr(verb, 1, length(?4)) = ?4) AND (?5 = '' OR subject = ?5) ORDER BY sequence ";
  sql += query.newest_first ? "DESC LIMIT ?6" : "LIMIT ?6";
  TERRACE_ASSIGN_OR_RETURN(Statement select, connection.prepare(sql.c_str(), where));
  select.bind(as_signed(query.after));
  select.bind(as_signed(query.since_ns));
  select.bind(query.tenant);
  select.bind(query.verb);
  select.bind(query.subject);
  const uint32_t limit = query.limit == 0 ? limits::audit_rows_per_page_max : query.limit;
  select.bind(uint64_t{std::min(limit, limits::audit_rows_per_page_max)});
  for (;;) {
    const Result<bool> more = select.step(where);
    if (!more.ok()) return query_failed(more.error());
    if (!*more) return page;
    TERRACE_ASSIGN_OR_RETURN(AuditRow row, read_row(select));
    page.rows.push_back(std::move(row));
  }
}

}  // namespace terrace::daemon
