// Reads every row of an open store and trusts none: types, lengths, ranges, each row's crc, and the seal
// over all of them.
#pragma once

#include <array>
#include <cstddef>
#include <unordered_map>

#include "core/base/result.h"
#include "daemon/state/rows.h"
#include "daemon/store/row_codec.h"
#include "daemon/store/sqlite_handle.h"

namespace terrace::daemon {

enum class Table : uint8_t { device = 0, pool = 1, lease = 2 };
inline constexpr size_t table_count = 3;

// For each table the rows' shares of the digest, by id: a commit takes the old row's share out.
using RowShares = std::array<std::unordered_map<uint64_t, uint64_t>, table_count>;

struct StoredImage {
  Image image;
  StoreSeal seal;
  RowShares shares;
};

// A query of ours that SQLite refuses to run was misled by the file: internal becomes corrupt.
Error query_failed(Error error);

// Errors    corrupt   names the table and row, or says that rows are missing
Result<StoredImage> read_image(Connection& connection);

}  // namespace terrace::daemon
