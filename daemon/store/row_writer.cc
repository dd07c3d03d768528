#include "daemon/store/row_writer.h"

#include <span>
#include <string>

namespace terrace::daemon {
namespace {

constexpr const char* where_write = "RowWriter::write";

}  // namespace

void apply_changes(const std::vector<ShareChange>& changes, RowShares& shares) {
  for (const ShareChange& change : changes) {
    auto& of_table = shares[static_cast<size_t>(change.table)];
    if (change.share.has_value()) {
      of_table[change.id] = *change.share;
    } else {
      of_table.erase(change.id);
    }
  }
}

Status RowWriter::prepare(Connection& connection) {
  constexpr const char* where = "RowWriter::prepare";
  TERRACE_ASSIGN_OR_RETURN(
      put_meta_, connection.prepare("UPDATE meta SET store_id=?, sequence=?, rows=?, digest=?, next_device=?, "
                                    "next_pool=?, next_lease=?, next_epoch=?, boot_id=?, crc=? WHERE id=1",
                                    where));
  struct Sql {
    Table table;
    const char* put;
    const char* erase;
  };
  constexpr Sql statements[] = {
      {Table::device,
       "INSERT OR REPLACE INTO device (serial, backend, capacity_bytes, granule_bytes, pool, id, crc) "
       "VALUES (?,?,?,?,?,?,?)",
       "DELETE FROM device WHERE id=?"},
      {Table::pool, "INSERT OR REPLACE INTO pool (name, id, crc) VALUES (?,?,?)",
       "DELETE FROM pool WHERE id=?"},
      {Table::lease,
       "INSERT OR REPLACE INTO lease (pool, tenant, host, label, object, reason, extents, epoch, mode, phase, "
       "bytes, ttl_ns, expiry_ns, deadline_ns, request_high, request_low, id, crc) "
       "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
       "DELETE FROM lease WHERE id=?"},
  };
  for (const Sql& sql : statements) {
    const auto index = static_cast<size_t>(sql.table);
    TERRACE_ASSIGN_OR_RETURN(put_[index], connection.prepare(sql.put, where));
    TERRACE_ASSIGN_OR_RETURN(erase_[index], connection.prepare(sql.erase, where));
  }
  return {};
}

Status RowWriter::check(const Delta& delta) {
  Status status;
  const auto check_rows = [&status](const auto& rows) {
    for (const auto& [id, row] : rows) {
      if (!status.ok()) return;
      if (!row.has_value()) continue;
      status = validate(*row);
      if (status.ok() && row->id != id)
        status = Error{
            .code = ErrorCode::internal, .where = "RowWriter::check", .detail = "a row under another's id"};
    }
  };
  check_rows(delta.devices);
  check_rows(delta.pools);
  check_rows(delta.leases);
  if (status.ok() && delta.meta.has_value()) status = validate(*delta.meta);
  if (status.ok()) return status;
  return Error{.code = ErrorCode::internal,
               .where = "RowWriter::check",
               .detail = "refused to store a row: " + status.error().detail};
}

Status RowWriter::write(const Delta& delta, const MetaRow& meta, const RowShares& shares, StoreSeal& seal,
                        std::vector<ShareChange>& changes) {
  TERRACE_RETURN_IF_ERROR(write_table(Table::device, delta.devices, shares, seal, changes));
  TERRACE_RETURN_IF_ERROR(write_table(Table::pool, delta.pools, shares, seal, changes));
  TERRACE_RETURN_IF_ERROR(write_table(Table::lease, delta.leases, shares, seal, changes));
  return put(delta.meta.has_value() ? *delta.meta : meta, seal);
}

template <typename Rows>
Status RowWriter::write_table(Table table, const Rows& rows, const RowShares& shares, StoreSeal& seal,
                              std::vector<ShareChange>& changes) {
  const auto& of_table = shares[static_cast<size_t>(table)];
  for (const auto& [id, row] : rows) {
    std::optional<uint64_t> share;
    if (row.has_value()) {
      TERRACE_RETURN_IF_ERROR(put(*row));
      share = row_share(id.value, row_crc(*row));
    } else {
      TERRACE_RETURN_IF_ERROR(erase(table, id.value));
    }
    if (const auto old = of_table.find(id.value); old != of_table.end()) {
      seal.digest -= old->second;
      --seal.rows;
    }
    if (share.has_value()) {
      seal.digest += *share;
      ++seal.rows;
    }
    changes.push_back({table, id.value, share});
  }
  return {};
}

Statement& RowWriter::start_put(Table table) {
  Statement& statement = put_[static_cast<size_t>(table)];
  statement.bind_start();
  return statement;
}

Status RowWriter::put(const DeviceRow& row) {
  Statement& statement = start_put(Table::device);
  statement.bind(row.serial);
  statement.bind(row.backend);
  for (const uint64_t value : {row.capacity_bytes, row.granule_bytes, row.pool.value}) statement.bind(value);
  return finish(Table::device, row.id.value, row_crc(row));
}

Status RowWriter::put(const PoolRow& row) {
  start_put(Table::pool).bind(row.name);
  return finish(Table::pool, row.id.value, row_crc(row));
}

Status RowWriter::put(const LeaseRow& row) {
  encode_extents(row.extents, extents_);
  Statement& statement = start_put(Table::lease);
  statement.bind(row.pool.value);
  for (const std::string* text : {&row.tenant, &row.host, &row.label, &row.object, &row.reason})
    statement.bind(*text);
  statement.bind(std::span<const std::byte>(extents_));
  for (const uint64_t value :
       {row.epoch.value, static_cast<uint64_t>(row.mode), static_cast<uint64_t>(row.phase), row.bytes,
        row.ttl_ns, row.expiry_ns, row.deadline_ns, row.request_high, row.request_low})
    statement.bind(value);
  return finish(Table::lease, row.id.value, row_crc(row));
}

Status RowWriter::put(const MetaRow& row, const StoreSeal& seal) {
  put_meta_.bind_start();
  for (const uint64_t value : {seal.store_id, seal.sequence, seal.rows, seal.digest, row.next_device,
                               row.next_pool, row.next_lease, row.next_epoch})
    put_meta_.bind(value);
  put_meta_.bind(row.boot_id);
  put_meta_.bind(uint64_t{row_crc(row, seal)});
  return put_meta_.run(where_write);
}

// Every table's statement ends with the id and the checksum.
Status RowWriter::finish(Table table, uint64_t id, uint32_t crc) {
  Statement& statement = put_[static_cast<size_t>(table)];
  statement.bind(id);
  statement.bind(uint64_t{crc});
  return statement.run(where_write);
}

Status RowWriter::erase(Table table, uint64_t id) {
  Statement& statement = erase_[static_cast<size_t>(table)];
  statement.bind_start();
  statement.bind(id);
  return statement.run(where_write);
}

}  // namespace terrace::daemon
