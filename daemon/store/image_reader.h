// SPDX-License-Identifier: Apache-2.0
// Reads every row of an open store and trusts none: types, lengths, ranges, each row's crc, and the seal
// over all of them.
#pragma once

#include "core/base/result.h"
#include "daemon/model/rows.h"
#include "daemon/store/row_codec.h"
#include "daemon/store/sqlite_handle.h"

namespace terrace::daemon {

struct StoredImage {
  Image image;
  StoreSeal seal;
};

// A query of ours that SQLite refuses to run was misled by the file: internal becomes corrupt.
Error query_failed(Error error);

// Errors    corrupt   names the table and row, or says that rows are missing
Result<StoredImage> read_image(Connection& connection);

}  // namespace terrace::daemon
