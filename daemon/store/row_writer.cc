#include "daemon/store/row_writer.h"

#include <span>
#include <string>

#include "core/base/limits.h"

namespace terrace::daemon {
namespace {

constexpr const char* where_write = "RowWriter::write";

uint64_t bindable(DeviceId id) {
  return id.value;
}
uint64_t bindable(PoolId id) {
  return id.value;
}
uint64_t bindable(LeaseId id) {
  return id.value;
}
uint64_t bindable(ReservationId id) {
  return id.value;
}
uint64_t bindable(PartId id) {
  return id.value;
}
const std::string& bindable(const std::string& tenant) {
  return tenant;
}

DeviceId key_of(const DeviceRow& row) {
  return row.id;
}
PoolId key_of(const PoolRow& row) {
  return row.id;
}
LeaseId key_of(const LeaseRow& row) {
  return row.id;
}
const std::string& key_of(const QuotaRow& row) {
  return row.tenant;
}
ReservationId key_of(const ReservationRow& row) {
  return row.id;
}
PartId key_of(const OwnerRow& row) {
  return row.id;
}

template <typename Rows>
Status check_rows(const Rows& rows) {
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
  TERRACE_RETURN_IF_ERROR(check_rows(delta.devices));
  TERRACE_RETURN_IF_ERROR(check_rows(delta.pools));
  TERRACE_RETURN_IF_ERROR(check_rows(delta.leases));
  TERRACE_RETURN_IF_ERROR(check_rows(delta.quotas));
  TERRACE_RETURN_IF_ERROR(check_rows(delta.reservations));
  TERRACE_RETURN_IF_ERROR(check_rows(delta.owners));
  if (delta.meta.has_value()) return validate(*delta.meta);
  return {};
}

}  // namespace

Status RowWriter::prepare(Connection& connection, RowFormat format) {
  constexpr const char* where = "RowWriter::prepare";
  struct Sql {
    Table table;
    const char* key;
    const char* name;
    const char* put;
  };
  format_ = format;
  const bool older = format != RowFormat::current;
  const Sql statements[] = {
      {Table::device, "id", "device",
       "(id, serial, backend, capacity_bytes, granule_bytes, pool, state, crc) VALUES (?,?,?,?,?,?,?,?)"},
      {Table::pool, "id", "pool",
       older ? "(id, name, placement, stripe_bytes, crc) VALUES (?,?,?,?,?)"
             : "(id, name, placement, stripe_bytes, coherence, crc) VALUES (?,?,?,?,?,?)"},
      {Table::lease, "id", "lease",
       "(id, pool, tenant, host, label, object, reason, extents, epoch, mode, phase, bytes, ttl_ns, expiry_ns, "
       "deadline_ns, request_high, request_low, cause, movable, target_bytes, next_object, crc) "
       "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"},
      {Table::quota, "tenant", "quota", "(tenant, bytes_max, leases_max, crc) VALUES (?,?,?,?)"},
      {Table::reservation, "id", "reservation",
       "(id, pool, tenant, bytes, ttl_ns, expiry_ns, crc) VALUES (?,?,?,?,?,?,?)"},
      {Table::owner, "id", "owner",
       "(id, epoch, request, pid, started, space, holder, crc) VALUES (?,?,?,?,?,?,?,?)"},
  };
  for (const Sql& sql : statements) {
    if (older && sql.table == Table::owner) continue;
    Statements& table = tables_[static_cast<size_t>(sql.table)];
    const std::string of_row = std::string(" FROM ") + sql.name + " WHERE " + sql.key + "=?";
    const std::string put = std::string("INSERT OR REPLACE INTO ") + sql.name + " " + sql.put;
    TERRACE_ASSIGN_OR_RETURN(table.old_crc, connection.prepare(("SELECT crc" + of_row).c_str(), where));
    TERRACE_ASSIGN_OR_RETURN(table.put, connection.prepare(put.c_str(), where));
    TERRACE_ASSIGN_OR_RETURN(table.erase, connection.prepare(("DELETE" + of_row).c_str(), where));
  }
  TERRACE_ASSIGN_OR_RETURN(
      put_meta_,
      connection.prepare("INSERT OR REPLACE INTO meta (id, store_id, sequence, rows, digest, journal, "
                         "next_device, next_pool, next_lease, next_epoch, next_reservation, boot_id, crc) "
                         "VALUES (1,?,?,?,?,?,?,?,?,?,?,?,?)",
                         where));
  TERRACE_ASSIGN_OR_RETURN(newest_audit_,
                           connection.prepare("SELECT coalesce(max(sequence), 0) FROM audit", where));
  TERRACE_ASSIGN_OR_RETURN(
      put_audit_,
      connection.prepare("INSERT INTO audit (sequence, wall_ns, actor, tenant, verb, subject, detail, crc) "
                         "VALUES (?,?,?,?,?,?,?,?)",
                         where));
  TERRACE_ASSIGN_OR_RETURN(cut_audit_, connection.prepare("DELETE FROM audit WHERE sequence<=?", where));
  return {};
}

Status RowWriter::check(const Delta& delta) {
  const Status status = check_all(delta);
  if (status.ok()) return status;
  return Error{.code = ErrorCode::internal,
               .where = "RowWriter::check",
               .detail = "refused to store a row: " + status.error().detail};
}

Status RowWriter::write(const Delta& delta, const MetaRow& meta, StoreSeal& seal) {
  TERRACE_RETURN_IF_ERROR(write_table(Table::device, delta.devices, seal));
  TERRACE_RETURN_IF_ERROR(write_table(Table::pool, delta.pools, seal));
  TERRACE_RETURN_IF_ERROR(write_table(Table::lease, delta.leases, seal));
  TERRACE_RETURN_IF_ERROR(write_table(Table::quota, delta.quotas, seal));
  TERRACE_RETURN_IF_ERROR(write_table(Table::reservation, delta.reservations, seal));
  TERRACE_RETURN_IF_ERROR(write_table(Table::owner, delta.owners, seal));
  TERRACE_RETURN_IF_ERROR(append_audit(delta.audit));
  return put(delta.meta.has_value() ? *delta.meta : meta, seal);
}

template <typename Key>
Result<bool> RowWriter::take_out(Table table, const Key& key, StoreSeal& seal) {
  Statement& select = tables_[static_cast<size_t>(table)].old_crc;
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

template <typename Rows>
Status RowWriter::write_table(Table table, const Rows& rows, StoreSeal& seal) {
  for (const auto& [key, row] : rows) {
    TERRACE_ASSIGN_OR_RETURN(const bool stored, take_out(table, bindable(key), seal));
    if (row.has_value()) {
      const uint32_t crc = row_crc(*row, format_);
      TERRACE_RETURN_IF_ERROR(put(*row, crc));
      seal.digest += row_share(row_key(bindable(key)), crc);
      ++seal.rows;
    } else if (stored) {
      Statement& erase = tables_[static_cast<size_t>(table)].erase;
      erase.bind_start();
      erase.bind(bindable(key));
      TERRACE_RETURN_IF_ERROR(erase.run(where_write));
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
  // More than the log keeps: the first ones would be gone again at once, but they count.
  const size_t skipped = rows.size() > limits::audit_rows_max ? rows.size() - limits::audit_rows_max : 0;
  newest += skipped;
  AuditRow row;
  for (size_t i = skipped; i < rows.size(); ++i) {
    row = rows[i];
    row.sequence = ++newest;
    for (std::string* text : {&row.actor, &row.tenant, &row.verb, &row.subject, &row.detail})
      text->resize(clip_audit_text(*text).size());
    put_audit_.bind_start();
    put_audit_.bind(row.sequence);
    put_audit_.bind(row.wall_ns);
    for (const std::string* text : {&row.actor, &row.tenant, &row.verb, &row.subject, &row.detail})
      put_audit_.bind(*text);
    put_audit_.bind(uint64_t{row_crc(row)});
    TERRACE_RETURN_IF_ERROR(put_audit_.run(where_write));
  }
  if (newest <= limits::audit_rows_max) return {};
  cut_audit_.bind_start();
  cut_audit_.bind(newest - limits::audit_rows_max);
  return cut_audit_.run(where_write);
}

Statement& RowWriter::start_put(Table table) {
  Statement& statement = tables_[static_cast<size_t>(table)].put;
  statement.bind_start();
  return statement;
}

Status RowWriter::put(const DeviceRow& row, uint32_t crc) {
  Statement& statement = start_put(Table::device);
  statement.bind(row.id.value);
  statement.bind(row.serial);
  statement.bind(row.backend);
  for (const uint64_t value :
       {row.capacity_bytes, row.granule_bytes, row.pool.value, static_cast<uint64_t>(row.state)})
    statement.bind(value);
  return finish(Table::device, crc);
}

Status RowWriter::put(const PoolRow& row, uint32_t crc) {
  Statement& statement = start_put(Table::pool);
  statement.bind(row.id.value);
  statement.bind(row.name);
  statement.bind(static_cast<uint64_t>(row.placement));
  statement.bind(row.stripe_bytes);
  if (format_ == RowFormat::current) statement.bind(static_cast<uint64_t>(row.coherence));
  return finish(Table::pool, crc);
}

Status RowWriter::put(const LeaseRow& row, uint32_t crc) {
  encode_extents(row.extents, extents_);
  Statement& statement = start_put(Table::lease);
  statement.bind(row.id.value);
  statement.bind(row.pool.value);
  for (const std::string* text : {&row.tenant, &row.host, &row.label, &row.object, &row.reason})
    statement.bind(*text);
  statement.bind(std::span<const std::byte>(extents_));
  for (const uint64_t value :
       {row.epoch.value, static_cast<uint64_t>(row.mode), static_cast<uint64_t>(row.phase), row.bytes,
        row.ttl_ns, row.expiry_ns, row.deadline_ns, row.request_high, row.request_low,
        static_cast<uint64_t>(row.cause), uint64_t{row.movable}, row.target_bytes})
    statement.bind(value);
  statement.bind(row.next_object);
  return finish(Table::lease, crc);
}

Status RowWriter::put(const QuotaRow& row, uint32_t crc) {
  Statement& statement = start_put(Table::quota);
  statement.bind(row.tenant);
  statement.bind(row.bytes_max);
  statement.bind(row.leases_max);
  return finish(Table::quota, crc);
}

Status RowWriter::put(const ReservationRow& row, uint32_t crc) {
  Statement& statement = start_put(Table::reservation);
  statement.bind(row.id.value);
  statement.bind(row.pool.value);
  statement.bind(row.tenant);
  for (const uint64_t value : {row.bytes, row.ttl_ns, row.expiry_ns}) statement.bind(value);
  return finish(Table::reservation, crc);
}

Status RowWriter::put(const OwnerRow& row, uint32_t crc) {
  Statement& statement = start_put(Table::owner);
  for (const uint64_t value :
       {row.id.value, row.epoch, row.request, row.process.pid, row.process.started, row.process.space})
    statement.bind(value);
  statement.bind(row.holder);
  return finish(Table::owner, crc);
}

Status RowWriter::put(const MetaRow& row, const StoreSeal& seal) {
  put_meta_.bind_start();
  for (const uint64_t value :
       {seal.store_id, seal.sequence, seal.rows, seal.digest, uint64_t{seal.journal}, row.next_device,
        row.next_pool, row.next_lease, row.next_epoch, row.next_reservation})
    put_meta_.bind(value);
  put_meta_.bind(row.boot_id);
  put_meta_.bind(uint64_t{row_crc(row, seal)});
  return put_meta_.run(where_write);
}

// Every table's statement ends with the checksum.
Status RowWriter::finish(Table table, uint32_t crc) {
  Statement& statement = tables_[static_cast<size_t>(table)].put;
  statement.bind(uint64_t{crc});
  return statement.run(where_write);
}

}  // namespace terrace::daemon
