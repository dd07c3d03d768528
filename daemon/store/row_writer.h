// SPDX-License-Identifier: Apache-2.0
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
  //
  // The audit log belongs to those whom its rows are about: the operator (rows of administrators, and of no tenant),
  // each tenant, and each tenant's denials. When it is full, whoever has most of it loses the oldest rows, so that
  // nobody's churn takes more than its own; the operator's go only beyond half of the log.
  Status write(const Delta& delta, const MetaRow& meta, StoreSeal& seal);
  // The transaction was undone: what was counted in it is not there.
  void undone() { audit_counted_ = false; }

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
  Status count_audit();
  Status cut_audit();

  std::tuple<Of<DeviceRow>, Of<PoolRow>, Of<LeaseRow>, Of<QuotaRow>, Of<ReservationRow>, Of<OwnerRow>,
             Of<ViewRow>>
      tables_;
  Statement put_meta_, newest_audit_, put_audit_, cut_audit_, count_audit_;
  // Rows of the audit log, by whom they belong to; counted again when a transaction may have been undone.
  std::map<std::string, uint64_t> audit_counts_;
  bool audit_counted_ = false;
  std::vector<std::byte> extents_;
};

}  // namespace terrace::daemon
