#include "daemon/store/image_reader.h"

#include <string>

#include "core/base/limits.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "read_image";

Error corrupt(std::string detail) {
  return Error{.code = ErrorCode::corrupt, .where = where, .detail = std::move(detail)};
}

// The columns of one row, left to right; remembers whether all were readable.
class Columns {
 public:
  explicit Columns(const Statement& statement) : statement_(statement) {}

  uint64_t integer() {
    uint64_t value = 0;
    sound_ &= statement_.read(column_++, value);
    return value;
  }
  std::string text(size_t bytes_max) {
    std::string value;
    sound_ &= statement_.read_text(column_++, bytes_max, value);
    return value;
  }
  std::vector<Extent> extents() {
    std::span<const std::byte> bytes;
    sound_ &= statement_.read_blob(column_++, limits::lease_extents_max * extent_bytes, bytes);
    Result<std::vector<Extent>> decoded = decode_extents(bytes);
    sound_ &= decoded.ok();
    return decoded.ok() ? std::move(decoded).value() : std::vector<Extent>{};
  }
  // Enumerations are one byte; the value itself is judged by validate().
  uint8_t small() {
    const uint64_t value = integer();
    sound_ &= value <= UINT8_MAX;
    return static_cast<uint8_t>(value);
  }
  bool sound() const { return sound_; }

 private:
  const Statement& statement_;
  int column_ = 0;
  bool sound_ = true;
};

DeviceRow read_device(Columns& columns) {
  DeviceRow row;
  row.id = DeviceId{columns.integer()};
  row.serial = columns.text(limits::name_bytes_max);
  row.backend = columns.text(limits::name_bytes_max);
  row.capacity_bytes = columns.integer();
  row.granule_bytes = columns.integer();
  row.pool = PoolId{columns.integer()};
  return row;
}

PoolRow read_pool(Columns& columns) {
  PoolRow row;
  row.id = PoolId{columns.integer()};
  row.name = columns.text(limits::name_bytes_max);
  return row;
}

LeaseRow read_lease(Columns& columns) {
  LeaseRow row;
  row.id = LeaseId{columns.integer()};
  row.pool = PoolId{columns.integer()};
  row.tenant = columns.text(limits::name_bytes_max);
  row.host = columns.text(limits::name_bytes_max);
  row.label = columns.text(limits::label_bytes_max);
  row.object = columns.text(limits::name_bytes_max);
  row.reason = columns.text(limits::reason_bytes_max);
  row.extents = columns.extents();
  row.epoch = LeaseEpoch{columns.integer()};
  row.mode = static_cast<LeaseMode>(columns.small());
  row.phase = static_cast<LeasePhase>(columns.small());
  row.bytes = columns.integer();
  row.ttl_ns = columns.integer();
  row.expiry_ns = columns.integer();
  row.deadline_ns = columns.integer();
  row.request_high = columns.integer();
  row.request_low = columns.integer();
  return row;
}

struct TableQuery {
  Table table;
  const char* name;
  const char* sql;
  uint64_t rows_max;
};

template <typename Row>
Status read_table(Connection& connection, const TableQuery& query, Row (*read_row)(Columns&),
                  std::vector<Row>& rows, RowShares& all_shares) {
  auto& shares = all_shares[static_cast<size_t>(query.table)];
  Result<Statement> select = connection.prepare(query.sql, where);
  if (!select.ok()) return query_failed(select.error());
  for (;;) {
    Result<bool> more = select->step(where);
    if (!more.ok()) return query_failed(more.error());
    if (!*more) return {};
    Columns columns(*select);
    Row row = read_row(columns);
    const uint64_t stored_crc = columns.integer();
    const std::string name = std::string(query.name) + " row " + std::to_string(row.id.value);
    if (!columns.sound()) return corrupt(name + " has a column of a wrong type or length");
    const uint32_t crc = row_crc(row);
    if (crc != stored_crc) return corrupt(name + " does not match its checksum");
    TERRACE_RETURN_IF_ERROR(validate(row));
    if (rows.size() >= query.rows_max)
      return corrupt(std::string(query.name) + " holds more rows than a manager can have");
    if (!shares.emplace(row.id.value, row_share(row.id.value, crc)).second)
      return corrupt(name + " is there twice");
    rows.push_back(std::move(row));
  }
}

Status read_meta(Connection& connection, MetaRow& meta, StoreSeal& seal) {
  Result<Statement> select = connection.prepare(
      "SELECT store_id, sequence, rows, digest, next_device, next_pool, next_lease, next_epoch, boot_id, crc "
      "FROM meta",
      where);
  if (!select.ok()) return query_failed(select.error());
  Result<bool> found = select->step(where);
  if (!found.ok()) return query_failed(found.error());
  if (!*found) return corrupt("the meta row is missing");
  Columns columns(*select);
  seal.store_id = columns.integer();
  seal.sequence = columns.integer();
  seal.rows = columns.integer();
  seal.digest = columns.integer();
  meta.next_device = columns.integer();
  meta.next_pool = columns.integer();
  meta.next_lease = columns.integer();
  meta.next_epoch = columns.integer();
  meta.boot_id = columns.text(limits::name_bytes_max);
  const uint64_t stored_crc = columns.integer();
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
  TERRACE_RETURN_IF_ERROR(read_meta(connection, stored.image.meta, stored.seal));
  TERRACE_RETURN_IF_ERROR(read_table<DeviceRow>(
      connection,
      {Table::device, "device",
       "SELECT id, serial, backend, capacity_bytes, granule_bytes, pool, crc FROM device ORDER BY id",
       limits::devices_max},
      read_device, stored.image.devices, stored.shares));
  TERRACE_RETURN_IF_ERROR(read_table<PoolRow>(
      connection, {Table::pool, "pool", "SELECT id, name, crc FROM pool ORDER BY id", limits::pools_max},
      read_pool, stored.image.pools, stored.shares));
  TERRACE_RETURN_IF_ERROR(read_table<LeaseRow>(
      connection,
      {Table::lease, "lease",
       "SELECT id, pool, tenant, host, label, object, reason, extents, epoch, mode, phase, bytes, ttl_ns, "
       "expiry_ns, deadline_ns, request_high, request_low, crc FROM lease ORDER BY id",
       limits::leases_max},
      read_lease, stored.image.leases, stored.shares));

  uint64_t rows = 0;
  uint64_t digest = 0;
  for (const auto& shares : stored.shares) {
    rows += shares.size();
    for (const auto& [id, share] : shares) digest += share;
  }
  if (rows != stored.seal.rows) {
    return corrupt("it holds " + std::to_string(rows) + " rows, but " + std::to_string(stored.seal.rows) +
                   " were written");
  }
  if (digest != stored.seal.digest) return corrupt("its rows are not those that were written last");
  return stored;
}

}  // namespace terrace::daemon
