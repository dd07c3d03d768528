// Writes a Delta's rows within a transaction and carries the seal along.
//
// Threads   One at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/model/rows.h"
#include "daemon/store/row_codec.h"
#include "daemon/store/sqlite_handle.h"

namespace terrace::daemon {

enum class Table : uint8_t { device = 0, pool = 1, lease = 2, quota = 3, reservation = 4, owner = 5 };
inline constexpr size_t table_count = 6;

class RowWriter {
 public:
  // `format`: that of the tables, which a migration to an older version than the newest has made.
  Status prepare(Connection& connection, RowFormat format = RowFormat::current);

  // Errors    internal   a row that load() would refuse: a defect of the caller's
  static Status check(const Delta& delta);

  // Writes the rows, and the meta row (`meta` unless the delta has one) with the seal that follows from the
  // rows. Appends to the audit log and cuts it to its bound. The caller begins and ends the transaction.
  Status write(const Delta& delta, const MetaRow& meta, StoreSeal& seal);

 private:
  // The same statements for every table: the old row's checksum, its replacement, its removal.
  struct Statements {
    Statement old_crc, put, erase;
  };

  Status put(const DeviceRow& row, uint32_t crc);
  Status put(const PoolRow& row, uint32_t crc);
  Status put(const LeaseRow& row, uint32_t crc);
  Status put(const QuotaRow& row, uint32_t crc);
  Status put(const ReservationRow& row, uint32_t crc);
  Status put(const OwnerRow& row, uint32_t crc);
  Status put(const MetaRow& row, const StoreSeal& seal);
  Status append_audit(const std::vector<AuditRow>& rows);
  Statement& start_put(Table table);
  Status finish(Table table, uint32_t crc);
  // Whether a row is stored under `key`; takes its share out of the seal.
  template <typename Key>
  Result<bool> take_out(Table table, const Key& key, StoreSeal& seal);
  template <typename Rows>
  Status write_table(Table table, const Rows& rows, StoreSeal& seal);

  std::array<Statements, table_count> tables_;
  Statement put_meta_, newest_audit_, put_audit_, cut_audit_;
  std::vector<std::byte> extents_;
  RowFormat format_ = RowFormat::current;
};

}  // namespace terrace::daemon
