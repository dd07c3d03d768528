// SPDX-License-Identifier: Apache-2.0
// The tables of the SQLite store, as an ordered list of migrations: a fresh store runs all of them, an older
// one the rest. The first one makes the tables from the field lists of the rows (daemon/model/row_fields.h); no
// build reads stores from before it any more.
//
// Place     daemon/store; docs/formats/store.md describes the columns.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/result.h"
#include "daemon/store/sqlite_handle.h"

namespace terrace::daemon {

// PRAGMA application_id of a Terrace store: "TRCS".
inline constexpr int64_t store_application_id = 0x54524353;

// Versions 1 to 3 were of builds before any release.
inline constexpr int64_t store_version_first = 4;

// One step of the schema. `apply` runs inside the transaction that also sets user_version and verifies the
// result, so that a migration happens whole or not at all.
struct Migration {
  int64_t version = 0;  // user_version afterwards; the list counts up from store_version_first
  const char* summary = "";
  Status (*apply)(Connection& connection) = nullptr;
};

// This build's list. Entries are never changed once released: a new one is appended.
std::span<const Migration> store_migrations();

// Runs what lies after version `from`, within the caller's transaction, and sets user_version.
Status migrate(Connection& connection, std::span<const Migration> migrations, int64_t from);

// Every CREATE statement of the database, in order of name: equal for two databases of one version.
Result<std::string> schema_text(Connection& connection);

// The schema_text that `migrations` up to `version` give, made by running them in memory.
Result<std::string> expected_schema_text(std::span<const Migration> migrations, int64_t version);

}  // namespace terrace::daemon
