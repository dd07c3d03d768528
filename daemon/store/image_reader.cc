// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/image_reader.h"

#include <string>

#include "daemon/store/row_sql.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "read_image";

Error corrupt(std::string detail) {
  return Error{.code = ErrorCode::corrupt, .where = where, .detail = std::move(detail)};
}

std::string key_text(auto id) {
  return std::to_string(id.value);
}
std::string key_text(const std::string& tenant) {
  return "'" + tenant + "'";
}

uint64_t share_key(auto id) {
  return row_key(id.value);
}
uint64_t share_key(const std::string& tenant) {
  return row_key(tenant);
}

template <typename Row>
Status read_table(Connection& connection, std::vector<Row>& rows, StoreSeal& found) {
  Result<Statement> select = connection.prepare((select_sql<Row>() + " ORDER BY 1").c_str(), where);
  if (!select.ok()) return query_failed(select.error());
  for (;;) {
    Result<bool> more = select->step(where);
    if (!more.ok()) return query_failed(more.error());
    if (!*more) return {};
    ColumnReader columns(*select);
    Row row;
    uint64_t stored_crc = 0;
    Stored<Row>::key(columns, row);
    Stored<Row>::fields(columns, row);
    columns.integer("crc", stored_crc);
    const auto name = [&row] { return std::string(Stored<Row>::table) + " row " + key_text(key_of(row)); };
    if (!columns.sound()) return corrupt(name() + " has a column of a wrong type or length");
    const uint32_t crc = row_crc(row);
    if (crc != stored_crc) return corrupt(name() + " does not match its checksum");
    TERRACE_RETURN_IF_ERROR(validate(row));
    if (rows.size() >= Stored<Row>::rows_max)
      return corrupt(std::string(Stored<Row>::table) + " holds more rows than a manager can have");
    // SQLite orders by the signed value; ids beyond that range do not come up in a lifetime.
    if (!rows.empty() && !(key_of(rows.back()) < key_of(row)))
      return corrupt(name() + " is there twice or out of order");
    ++found.rows;
    found.digest += row_share(share_key(key_of(row)), crc);
    rows.push_back(std::move(row));
  }
}

Status read_meta(Connection& connection, MetaRow& meta, StoreSeal& seal) {
  Result<Statement> select = connection.prepare(select_sql<MetaRow>().c_str(), where);
  if (!select.ok()) return query_failed(select.error());
  Result<bool> found = select->step(where);
  if (!found.ok()) return query_failed(found.error());
  if (!*found) return corrupt("the meta row is missing");
  ColumnReader columns(*select);
  uint64_t stored_crc = 0;
  MetaFields::fields(columns, seal, meta);
  columns.integer("crc", stored_crc);
  if (!columns.sound()) return corrupt("the meta row has a column of a wrong type or length");
  if (stored_crc != row_crc(meta, seal)) return corrupt("the meta row does not match its checksum");
  TERRACE_RETURN_IF_ERROR(validate(meta));
  Result<bool> second = select->step(where);
  if (!second.ok()) return query_failed(second.error());
  return *second ? Status(corrupt("there are two meta rows")) : Status();
}

}  // namespace

Error query_failed(Error error) {
  if (error.code == ErrorCode::internal) error.code = ErrorCode::corrupt;
  return error;
}

Result<StoredImage> read_image(Connection& connection) {
  StoredImage stored;
  StoreSeal found;
  TERRACE_RETURN_IF_ERROR(read_meta(connection, stored.image.meta, stored.seal));
  Status status;
  each_table(stored.image, [&](auto& rows) {
    if (status.ok()) status = read_table(connection, rows, found);
  });
  TERRACE_RETURN_IF_ERROR(status);
  if (found.rows != stored.seal.rows) {
    return corrupt("it holds " + std::to_string(found.rows) + " rows, but " + std::to_string(stored.seal.rows) +
                   " were written");
  }
  if (found.digest != stored.seal.digest) return corrupt("its rows are not those that were written last");
  return stored;
}

}  // namespace terrace::daemon
