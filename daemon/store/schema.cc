// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/schema.h"

#include "core/base/check.h"
#include "core/base/prng.h"
#include "daemon/store/row_sql.h"

namespace terrace::daemon {
namespace {

// STRICT makes SQLite itself refuse a value of another type. 64-bit fields keep their bits through the
// sign. `crc` covers the whole row (row_codec.h).
std::string table_sql(const char* table, const std::string& definitions, const char* options) {
  return std::string("CREATE TABLE ") + table + " (\n" + definitions + "  crc INTEGER NOT NULL\n) STRICT" +
         options + ";\n";
}

// A table of rows with keys. A text as key is its own index. With the first release this text is to be written out
// here: a later field comes by a step of its own, and the tables of an earlier version stay as they were made.
template <typename Row>
std::string table_sql() {
  const ColumnTexts key = key_texts<Row>();
  ColumnTexts rest;
  const Row row;
  Stored<Row>::fields(rest, row);
  const bool text = key.definitions.find(" TEXT ") != std::string::npos;
  const std::string first = "  " + key.names + (text ? " TEXT" : " INTEGER") + " PRIMARY KEY,\n";
  return table_sql(Stored<Row>::table, first + rest.definitions, text ? ", WITHOUT ROWID" : "");
}

// Leases as version 4 made them; rename_movable came later.
constexpr const char* lease_columns_4 =
    "  id INTEGER PRIMARY KEY,\n  pool INTEGER NOT NULL,\n  tenant TEXT NOT NULL,\n  host TEXT NOT NULL,\n"
    "  label TEXT NOT NULL,\n  object TEXT NOT NULL,\n  reason TEXT NOT NULL,\n  extents BLOB NOT NULL,\n"
    "  epoch INTEGER NOT NULL,\n  mode INTEGER NOT NULL,\n  phase INTEGER NOT NULL,\n  bytes INTEGER NOT "
    "NULL,\n"
    "  ttl_ns INTEGER NOT NULL,\n  expiry_ns INTEGER NOT NULL,\n  deadline_ns INTEGER NOT NULL,\n"
    "  request_high INTEGER NOT NULL,\n  request_low INTEGER NOT NULL,\n  cause INTEGER NOT NULL,\n"
    "  movable INTEGER NOT NULL,\n  target_bytes INTEGER NOT NULL,\n  next_object TEXT NOT NULL,\n";

// Pools as version 4 made them; rename_coherence came later.
constexpr const char* pool_columns_4 =
    "  id INTEGER PRIMARY KEY,\n  name TEXT NOT NULL,\n  placement INTEGER NOT NULL,\n"
    "  stripe_bytes INTEGER NOT NULL,\n  coherence INTEGER NOT NULL,\n";

// Owners of parts as version 4 made them; rename_holder came later.
constexpr const char* owner_columns_4 =
    "  id INTEGER PRIMARY KEY,\n  epoch INTEGER NOT NULL,\n  request INTEGER NOT NULL,\n  pid INTEGER NOT "
    "NULL,\n"
    "  started INTEGER NOT NULL,\n  space INTEGER NOT NULL,\n  holder TEXT NOT NULL,\n";

Status create_tables(Connection& connection) {
  const std::string sql =
      table_sql(
          "meta",
          "  id INTEGER PRIMARY KEY CHECK (id = 1),\n" + older_meta_column_texts<SealFields4>().definitions,
          "") +
      table_sql<DeviceRow>() + table_sql("pool", pool_columns_4, "") + table_sql("lease", lease_columns_4, "") +
      table_sql<QuotaRow>() + table_sql<ReservationRow>() + table_sql("owner", owner_columns_4, "") +
      table_sql<AuditRow>();
  return connection.exec(sql.c_str(), "create_tables");
}

// The meta row of an older version, whose checksum a migration replaces: it is verified first. false: there is none, as
// in a store that is being made.
template <typename Seal>
Result<bool> read_older_meta(Connection& connection, uint32_t (*crc_of)(const MetaRow&, const StoreSeal&),
                             StoreSeal& seal, MetaRow& meta) {
  constexpr const char* where = "read_older_meta";
  const std::string sql = "SELECT " + older_meta_column_texts<Seal>().names + ", crc FROM meta";
  TERRACE_ASSIGN_OR_RETURN(Statement select, connection.prepare(sql.c_str(), where));
  TERRACE_ASSIGN_OR_RETURN(const bool found, select.step(where));
  if (!found) return false;
  uint64_t crc = 0;
  ColumnReader columns(select);
  Seal::fields(columns, seal);
  Stored<MetaRow>::fields(columns, meta);
  columns.integer("crc", crc);
  if (columns.sound() && crc == crc_of(meta, seal)) return true;
  return Error{
      .code = ErrorCode::corrupt, .where = where, .detail = "the meta row does not match its checksum"};
}

// The id of a store gets 128 bits: the other half is drawn here.
Status add_store_high(Connection& connection) {
  constexpr const char* where = "add_store_high";
  TERRACE_RETURN_IF_ERROR(
      connection.exec("ALTER TABLE meta ADD COLUMN store_high INTEGER NOT NULL DEFAULT 0", where));
  StoreSeal seal;
  MetaRow meta;
  TERRACE_ASSIGN_OR_RETURN(const bool found, read_older_meta<SealFields4>(connection, row_crc_4, seal, meta));
  if (!found) return {};
  // From the other half, so that every copy of one store becomes the same store.
  seal.store_high = Prng(seal.store_id).next();
  TERRACE_ASSIGN_OR_RETURN(Statement update, connection.prepare("UPDATE meta SET store_high=?, crc=?", where));
  update.bind_start();
  update.bind(seal.store_high);
  update.bind(uint64_t{row_crc_5(meta, seal)});
  return update.run(where);
}

Status add_restored(Connection& connection) {
  constexpr const char* where = "add_restored";
  TERRACE_RETURN_IF_ERROR(
      connection.exec("ALTER TABLE meta ADD COLUMN restored INTEGER NOT NULL DEFAULT 0", where));
  StoreSeal seal;
  MetaRow meta;
  TERRACE_ASSIGN_OR_RETURN(const bool found, read_older_meta<SealFields>(connection, row_crc_5, seal, meta));
  if (!found) return {};
  TERRACE_ASSIGN_OR_RETURN(Statement update, connection.prepare("UPDATE meta SET crc=?", where));
  update.bind_start();
  update.bind(uint64_t{row_crc(meta, seal)});
  return update.run(where);
}

// The byte got room for more of what operators say. What it held means the same in it, so that checksums stay; its
// new name, and the version, keep an older program from reading the rest as damage.
Status rename_coherence(Connection& connection) {
  return connection.exec("ALTER TABLE pool RENAME COLUMN coherence TO words", "rename_coherence");
}

// As rename_coherence.
Status rename_movable(Connection& connection) {
  return connection.exec("ALTER TABLE lease RENAME COLUMN movable TO words", "rename_movable");
}

// As rename_coherence, of a text.
Status rename_holder(Connection& connection) {
  return connection.exec("ALTER TABLE owner RENAME COLUMN holder TO who", "rename_holder");
}

Status add_views(Connection& connection) {
  return connection.exec(table_sql<ViewRow>().c_str(), "add_views");
}

constexpr Migration all_migrations[] = {
    {store_version_first, "all tables", create_tables},
    {5, "128 bits of store id", add_store_high},
    {6, "whether the store is a restored copy", add_restored},
    {7, "whether a pool's tenants trust each other", rename_coherence},
    {8, "what becomes of a lease's holders at a fence", rename_movable},
    {9, "memory objects of a lease on further hosts", add_views},
    {10, "hosts of the owners of parts", rename_holder},
};

}  // namespace

std::span<const Migration> store_migrations() {
  return all_migrations;
}

Status migrate(Connection& connection, std::span<const Migration> migrations, int64_t from) {
  for (size_t i = 0; i < migrations.size(); ++i) {
    const Migration& step = migrations[i];
    TERRACE_CHECK(step.version == static_cast<int64_t>(i) + store_version_first,
                  "migrations are numbered without a gap");
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
  TERRACE_RETURN_IF_ERROR(
      migrate(memory, migrations.first(static_cast<size_t>(version - store_version_first + 1)), 0));
  return schema_text(memory);
}

}  // namespace terrace::daemon
