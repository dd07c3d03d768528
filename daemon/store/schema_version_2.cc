#include "daemon/store/schema_version_2.h"

#include <string>

#include "daemon/store/image_reader.h"
#include "daemon/store/row_writer.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "migrate_to_version_2";

constexpr const char* tables = R"(
DROP TABLE meta;
DROP TABLE device;
DROP TABLE pool;
DROP TABLE lease;
CREATE TABLE meta (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  store_id INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  rows INTEGER NOT NULL,
  digest INTEGER NOT NULL,
  journal INTEGER NOT NULL,
  next_device INTEGER NOT NULL,
  next_pool INTEGER NOT NULL,
  next_lease INTEGER NOT NULL,
  next_epoch INTEGER NOT NULL,
  next_reservation INTEGER NOT NULL,
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
  state INTEGER NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
CREATE TABLE pool (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  placement INTEGER NOT NULL,
  stripe_bytes INTEGER NOT NULL,
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
  cause INTEGER NOT NULL,
  movable INTEGER NOT NULL,
  target_bytes INTEGER NOT NULL,
  next_object TEXT NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
CREATE TABLE quota (
  tenant TEXT PRIMARY KEY,
  bytes_max INTEGER NOT NULL,
  leases_max INTEGER NOT NULL,
  crc INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE reservation (
  id INTEGER PRIMARY KEY,
  pool INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  ttl_ns INTEGER NOT NULL,
  expiry_ns INTEGER NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
CREATE TABLE audit (
  sequence INTEGER PRIMARY KEY,
  wall_ns INTEGER NOT NULL,
  actor TEXT NOT NULL,
  tenant TEXT NOT NULL,
  verb TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
)";

}  // namespace

Status migrate_to_version_2(Connection& connection) {
  // A store that is being created has no meta row yet, nor any other.
  TERRACE_ASSIGN_OR_RETURN(
      const std::string rows,
      connection.query_text(
          "SELECT (SELECT count(*) FROM meta) + (SELECT count(*) FROM device) + (SELECT count(*) FROM pool) + "
          "(SELECT count(*) FROM lease)",
          where));
  if (rows == "0") return connection.exec(tables, where);

  TERRACE_ASSIGN_OR_RETURN(StoredImage stored, read_image(connection, RowFormat::version_1));
  TERRACE_RETURN_IF_ERROR(connection.exec(tables, where));
  Delta delta;
  for (DeviceRow& row : stored.image.devices) delta.devices[row.id] = std::move(row);
  for (PoolRow& row : stored.image.pools) delta.pools[row.id] = std::move(row);
  for (LeaseRow& row : stored.image.leases) delta.leases[row.id] = std::move(row);
  StoreSeal seal{.store_id = stored.seal.store_id, .sequence = stored.seal.sequence};
  RowWriter writer;
  TERRACE_RETURN_IF_ERROR(writer.prepare(connection, RowFormat::version_2));
  return writer.write(delta, stored.image.meta, seal);
}

}  // namespace terrace::daemon
