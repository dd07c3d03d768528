// Writes a Delta's rows within a transaction and carries the seal along.
//
// Threads   One at a time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "daemon/state/rows.h"
#include "daemon/store/image_reader.h"
#include "daemon/store/row_codec.h"
#include "daemon/store/sqlite_handle.h"

namespace terrace::daemon {

// A row's new share of the digest; nullopt: the row is gone. Kept apart until its transaction is durable.
struct ShareChange {
  Table table;
  uint64_t id;
  std::optional<uint64_t> share;
};

void apply_changes(const std::vector<ShareChange>& changes, RowShares& shares);

class RowWriter {
 public:
  Status prepare(Connection& connection);

  // Errors    internal   a row that load() would refuse: a defect of the caller's
  static Status check(const Delta& delta);

  // Writes the rows, and the meta row (`meta` unless the delta has one) with the seal that follows from
  // `shares` and the rows. The caller begins and ends the transaction.
  Status write(const Delta& delta, const MetaRow& meta, const RowShares& shares, StoreSeal& seal,
               std::vector<ShareChange>& changes);

 private:
  Status put(const DeviceRow& row);
  Status put(const PoolRow& row);
  Status put(const LeaseRow& row);
  Status put(const MetaRow& row, const StoreSeal& seal);
  Status finish(Table table, uint64_t id, uint32_t crc);
  Status erase(Table table, uint64_t id);
  Statement& start_put(Table table);
  template <typename Rows>
  Status write_table(Table table, const Rows& rows, const RowShares& shares, StoreSeal& seal,
                     std::vector<ShareChange>& changes);

  Statement put_meta_;
  std::array<Statement, table_count> put_, erase_;
  std::vector<std::byte> extents_;
};

}  // namespace terrace::daemon
