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
  bool truth() {
    const uint64_t value = integer();
    sound_ &= value <= 1;
    return value == 1;
  }
  bool sound() const { return sound_; }

 private:
  const Statement& statement_;
  int column_ = 0;
  bool sound_ = true;
};

// A number of an enumeration that is kept in one byte.
template <typename Enum>
Enum enumeration(Columns& columns) {
  return static_cast<Enum>(columns.small());
}

std::string key_text(uint64_t id) {
  return std::to_string(id);
}
std::string key_text(const std::string& tenant) {
  return "'" + tenant + "'";
}

// How each table is read: its columns, and where a row goes. A column of version 2 keeps its default in a
// store of version 1.
struct Devices {
  static constexpr const char* name = "device";
  static constexpr const char* columns = "id, serial, backend, capacity_bytes, granule_bytes, pool";
  static constexpr const char* columns_2 = ", state";
  static constexpr uint64_t rows_max = limits::devices_max;
  static uint64_t key(const DeviceRow& row) { return row.id.value; }
  static DeviceRow read(Columns& from, RowFormat format) {
    DeviceRow row;
    row.id = DeviceId{from.integer()};
    row.serial = from.text(limits::name_bytes_max);
    row.backend = from.text(limits::name_bytes_max);
    row.capacity_bytes = from.integer();
    row.granule_bytes = from.integer();
    row.pool = PoolId{from.integer()};
    if (format != RowFormat::version_1) row.state = enumeration<DeviceState>(from);
    return row;
  }
};

struct Pools {
  static constexpr const char* name = "pool";
  static constexpr const char* columns = "id, name";
  static constexpr const char* columns_2 = ", placement, stripe_bytes";
  static constexpr const char* columns_3 = ", coherence";
  static constexpr uint64_t rows_max = limits::pools_max;
  static uint64_t key(const PoolRow& row) { return row.id.value; }
  static PoolRow read(Columns& from, RowFormat format) {
    PoolRow row;
    row.id = PoolId{from.integer()};
    row.name = from.text(limits::name_bytes_max);
    if (format != RowFormat::version_1) {
      row.placement = enumeration<Placement>(from);
      row.stripe_bytes = from.integer();
    }
    if (format == RowFormat::current) row.coherence = enumeration<PoolCoherence>(from);
    return row;
  }
};

struct Leases {
  static constexpr const char* name = "lease";
  static constexpr const char* columns =
      "id, pool, tenant, host, label, object, reason, extents, epoch, mode, phase, bytes, ttl_ns, expiry_ns, "
      "deadline_ns, request_high, request_low";
  static constexpr const char* columns_2 = ", cause, movable, target_bytes, next_object";
  static constexpr uint64_t rows_max = limits::leases_max;
  static uint64_t key(const LeaseRow& row) { return row.id.value; }
  static LeaseRow read(Columns& from, RowFormat format) {
    LeaseRow row;
    row.id = LeaseId{from.integer()};
    row.pool = PoolId{from.integer()};
    row.tenant = from.text(limits::name_bytes_max);
    row.host = from.text(limits::name_bytes_max);
    row.label = from.text(limits::label_bytes_max);
    row.object = from.text(limits::name_bytes_max);
    row.reason = from.text(limits::reason_bytes_max);
    row.extents = from.extents();
    row.epoch = LeaseEpoch{from.integer()};
    row.mode = enumeration<LeaseMode>(from);
    row.phase = enumeration<LeasePhase>(from);
    row.bytes = from.integer();
    row.ttl_ns = from.integer();
    row.expiry_ns = from.integer();
    row.deadline_ns = from.integer();
    row.request_high = from.integer();
    row.request_low = from.integer();
    if (format != RowFormat::version_1) {
      row.cause = enumeration<LeaseCause>(from);
      row.movable = from.truth();
      row.target_bytes = from.integer();
      row.next_object = from.text(limits::name_bytes_max);
    }
    return row;
  }
};

struct Quotas {
  static constexpr const char* name = "quota";
  static constexpr const char* columns = "tenant, bytes_max, leases_max";
  static constexpr const char* columns_2 = "";
  static constexpr uint64_t rows_max = limits::quotas_max;
  static const std::string& key(const QuotaRow& row) { return row.tenant; }
  static QuotaRow read(Columns& from, RowFormat) {
    QuotaRow row;
    row.tenant = from.text(limits::name_bytes_max);
    row.bytes_max = from.integer();
    row.leases_max = from.integer();
    return row;
  }
};

struct Reservations {
  static constexpr const char* name = "reservation";
  static constexpr const char* columns = "id, pool, tenant, bytes, ttl_ns, expiry_ns";
  static constexpr const char* columns_2 = "";
  static constexpr uint64_t rows_max = limits::reservations_max;
  static uint64_t key(const ReservationRow& row) { return row.id.value; }
  static ReservationRow read(Columns& from, RowFormat) {
    ReservationRow row;
    row.id = ReservationId{from.integer()};
    row.pool = PoolId{from.integer()};
    row.tenant = from.text(limits::name_bytes_max);
    row.bytes = from.integer();
    row.ttl_ns = from.integer();
    row.expiry_ns = from.integer();
    return row;
  }
};

struct Owners {
  static constexpr const char* name = "owner";
  static constexpr const char* columns = "id, epoch, request, pid, started, space, holder";
  static constexpr const char* columns_2 = "";
  static constexpr uint64_t rows_max = limits::leases_max * lease_parts_max;
  static uint64_t key(const OwnerRow& row) { return row.id.value; }
  static OwnerRow read(Columns& from, RowFormat) {
    OwnerRow row;
    row.id = PartId{from.integer()};
    row.epoch = from.integer();
    row.request = from.integer();
    row.process.pid = from.integer();
    row.process.started = from.integer();
    row.process.space = from.integer();
    row.holder = from.text(limits::label_bytes_max);
    return row;
  }
};

// What came with version 3, of the tables that were there before.
template <typename Kind>
constexpr const char* columns_3() {
  if constexpr (requires { Kind::columns_3; }) return Kind::columns_3;
  return "";
}

std::string select_sql(const char* columns, const char* columns_2, const char* columns_3, const char* table,
                       RowFormat format) {
  std::string sql = std::string("SELECT ") + columns;
  if (format != RowFormat::version_1) sql += columns_2;
  if (format == RowFormat::current) sql += columns_3;
  return sql + ", crc FROM " + table;
}

template <typename Kind, typename Row>
Status read_table(Connection& connection, RowFormat format, std::vector<Row>& rows, StoreSeal& found) {
  const std::string sql =
      select_sql(Kind::columns, Kind::columns_2, columns_3<Kind>(), Kind::name, format) + " ORDER BY 1";
  Result<Statement> select = connection.prepare(sql.c_str(), where);
  if (!select.ok()) return query_failed(select.error());
  for (;;) {
    Result<bool> more = select->step(where);
    if (!more.ok()) return query_failed(more.error());
    if (!*more) return {};
    Columns columns(*select);
    Row row = Kind::read(columns, format);
    const uint64_t stored_crc = columns.integer();
    const auto name = [&row] { return std::string(Kind::name) + " row " + key_text(Kind::key(row)); };
    if (!columns.sound()) return corrupt(name() + " has a column of a wrong type or length");
    const uint32_t crc = row_crc(row, format);
    if (crc != stored_crc) return corrupt(name() + " does not match its checksum");
    TERRACE_RETURN_IF_ERROR(validate(row));
    if (rows.size() >= Kind::rows_max)
      return corrupt(std::string(Kind::name) + " holds more rows than a manager can have");
    // SQLite orders by the signed value; ids beyond that range do not come up in a lifetime.
    if (!rows.empty() && !(Kind::key(rows.back()) < Kind::key(row)))
      return corrupt(name() + " is there twice or out of order");
    ++found.rows;
    found.digest += row_share(row_key(Kind::key(row)), crc);
    rows.push_back(std::move(row));
  }
}

Status read_meta(Connection& connection, RowFormat format, MetaRow& meta, StoreSeal& seal) {
  const std::string sql =
      select_sql("store_id, sequence, rows, digest, next_device, next_pool, next_lease, next_epoch, boot_id",
                 ", journal, next_reservation", "", "meta", format);
  Result<Statement> select = connection.prepare(sql.c_str(), where);
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
  if (format != RowFormat::version_1) {
    seal.journal = columns.truth();
    meta.next_reservation = columns.integer();
  }
  const uint64_t stored_crc = columns.integer();
  if (!columns.sound()) return corrupt("the meta row has a column of a wrong type or length");
  if (stored_crc != row_crc(meta, seal, format)) return corrupt("the meta row does not match its checksum");
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

Result<StoredImage> read_image(Connection& connection, RowFormat format) {
  StoredImage stored;
  Image& image = stored.image;
  StoreSeal found;
  TERRACE_RETURN_IF_ERROR(read_meta(connection, format, image.meta, stored.seal));
  TERRACE_RETURN_IF_ERROR(read_table<Devices>(connection, format, image.devices, found));
  TERRACE_RETURN_IF_ERROR(read_table<Pools>(connection, format, image.pools, found));
  TERRACE_RETURN_IF_ERROR(read_table<Leases>(connection, format, image.leases, found));
  if (format != RowFormat::version_1) {
    TERRACE_RETURN_IF_ERROR(read_table<Quotas>(connection, format, image.quotas, found));
    TERRACE_RETURN_IF_ERROR(read_table<Reservations>(connection, format, image.reservations, found));
  }
  if (format == RowFormat::current)
    TERRACE_RETURN_IF_ERROR(read_table<Owners>(connection, format, image.owners, found));
  if (found.rows != stored.seal.rows) {
    return corrupt("it holds " + std::to_string(found.rows) + " rows, but " + std::to_string(stored.seal.rows) +
                   " were written");
  }
  if (found.digest != stored.seal.digest) return corrupt("its rows are not those that were written last");
  return stored;
}

}  // namespace terrace::daemon
