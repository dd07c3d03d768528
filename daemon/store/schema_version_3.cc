#include "daemon/store/schema_version_3.h"

#include <string>

#include "daemon/store/image_reader.h"
#include "daemon/store/row_writer.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "migrate_to_version_3";

constexpr const char* tables = R"(
DROP TABLE pool;
CREATE TABLE pool (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  placement INTEGER NOT NULL,
  stripe_bytes INTEGER NOT NULL,
  coherence INTEGER NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
CREATE TABLE owner (
  id INTEGER PRIMARY KEY,
  epoch INTEGER NOT NULL,
  request INTEGER NOT NULL,
  pid INTEGER NOT NULL,
  started INTEGER NOT NULL,
  space INTEGER NOT NULL,
  holder TEXT NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
)";

}  // namespace

Status migrate_to_version_3(Connection& connection) {
  // A store that is being created has no meta row yet.
  TERRACE_ASSIGN_OR_RETURN(const std::string rows, connection.query_text("SELECT count(*) FROM meta", where));
  if (rows == "0") return connection.exec(tables, where);

  TERRACE_ASSIGN_OR_RETURN(StoredImage stored, read_image(connection, RowFormat::version_2));
  TERRACE_RETURN_IF_ERROR(connection.exec(tables, where));
  Delta delta;
  for (PoolRow& row : stored.image.pools) {
    stored.seal.digest -= row_share(row_key(row.id.value), row_crc(row, RowFormat::version_2));
    --stored.seal.rows;
    delta.pools[row.id] = std::move(row);
  }
  RowWriter writer;
  TERRACE_RETURN_IF_ERROR(writer.prepare(connection));
  return writer.write(delta, stored.image.meta, stored.seal);
}

}  // namespace terrace::daemon
