#include "daemon/store/schema.h"

#include "core/base/check.h"
#include "daemon/store/schema_version_2.h"
#include "daemon/store/schema_version_3.h"

namespace terrace::daemon {
namespace {

// STRICT makes SQLite itself refuse a value of another type. 64-bit fields keep their bits through the
// sign. `crc` covers the whole row (row_codec.h).
Status create_tables(Connection& connection) {
  return connection.exec(R"(
CREATE TABLE meta (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  store_id INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  rows INTEGER NOT NULL,
  digest INTEGER NOT NULL,
  next_device INTEGER NOT NULL,
  next_pool INTEGER NOT NULL,
  next_lease INTEGER NOT NULL,
  next_epoch INTEGER NOT NULL,
  boot_id TEXT NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
CREATE TABLE device (
  id INTEGER PRIMARY KEY,
  serial TEXT NOT NULL,
  backend TEXT NOT NULL,
  capacity_bytes INTEGER NOT NULL,
  granule_bytes INTEGER NOT NULL,
  pool INTEGER NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
CREATE TABLE pool (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
CREATE TABLE lease (
  id INTEGER PRIMARY KEY,
  pool INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  host TEXT NOT NULL,
  label TEXT NOT NULL,
  object TEXT NOT NULL,
  reason TEXT NOT NULL,
  extents BLOB NOT NULL,
  epoch INTEGER NOT NULL,
  mode INTEGER NOT NULL,
  phase INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  ttl_ns INTEGER NOT NULL,
  expiry_ns INTEGER NOT NULL,
  deadline_ns INTEGER NOT NULL,
  request_high INTEGER NOT NULL,
  request_low INTEGER NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
)",
                         "create_tables");
}

constexpr Migration all_migrations[] = {
    {1, "devices, pools, leases and the counters", create_tables},
    {2, "composition, quotas, reservations, the audit log", migrate_to_version_2},
    {3, "the coherence of pools, owners of parts of leases", migrate_to_version_3},
};

}  // namespace

std::span<const Migration> store_migrations() {
  return all_migrations;
}

Status migrate(Connection& connection, std::span<const Migration> migrations, int64_t from) {
  for (size_t i = 0; i < migrations.size(); ++i) {
    const Migration& step = migrations[i];
    TERRACE_CHECK(step.version == static_cast<int64_t>(i) + 1, "migrations are numbered 1, 2, 3, ...");
    if (step.version <= from) continue;
    TERRACE_RETURN_IF_ERROR(step.apply(connection));
    const std::string set_version = "PRAGMA user_version=" + std::to_string(step.version);
    TERRACE_RETURN_IF_ERROR(connection.exec(set_version.c_str(), "migrate"));
  }
  return {};
}

Result<std::string> schema_text(Connection& connection) {
  return connection.query_text(
      "SELECT group_concat(type || ' ' || name || ' ' || tbl_name || ': ' || coalesce(sql, ''), ';' || "
      "char(10)) "
      "FROM (SELECT * FROM sqlite_schema ORDER BY type, name)",
      "schema_text");
}

Result<std::string> expected_schema_text(std::span<const Migration> migrations, int64_t version) {
  TERRACE_ASSIGN_OR_RETURN(Connection memory, Connection::open(":memory:", true));
  TERRACE_RETURN_IF_ERROR(migrate(memory, migrations.first(static_cast<size_t>(version)), 0));
  return schema_text(memory);
}

}  // namespace terrace::daemon
