// Writes a Delta's rows within a transaction and carries the seal along.
//
// Threads   One at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/base/result.h"
#include "daemon/model/rows.h"
#include "daemon/store/row_codec.h"
#include "daemon/store/sqlite_handle.h"

namespace terrace::daemon {

class RowWriter {
 public:
  Status prepare(Connection& connection);

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
  template <typename Row>
  struct Of : Statements {};

  template <typename Row>
  Status prepare_table(Connection& connection);
  // Whether a row is stored under `key`; takes its share out of the seal.
  template <typename Key>
  Result<bool> take_out(Statements& table, const Key& key, StoreSeal& seal);
  template <typename Row>
  Status put(const Row& row, uint32_t crc);
  template <typename Key, typename Row>
  Status write_table(const std::map<Key, std::optional<Row>>& rows, StoreSeal& seal);
  Status put_meta(const MetaRow& row, const StoreSeal& seal);
  Status append_audit(const std::vector<AuditRow>& rows);

  std::tuple<Of<DeviceRow>, Of<PoolRow>, Of<LeaseRow>, Of<QuotaRow>, Of<ReservationRow>, Of<OwnerRow>> tables_;
  Statement put_meta_, newest_audit_, put_audit_, cut_audit_;
  std::vector<std::byte> extents_;
};

}  // namespace terrace::daemon
