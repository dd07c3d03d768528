// SPDX-License-Identifier: Apache-2.0
// Schema versions: older stores move forward whole or not at all, newer ones are refused.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>

#include "core/base/failpoint.h"
#include "daemon/store/row_sql.h"
#include "tests/unit/store/store_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

Status add_table(Connection& connection) {
  return connection.exec("CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT", "test");
}
Status fill_table(Connection& connection) {
  return connection.exec("INSERT INTO note SELECT id, label FROM lease", "test");
}
Status fail_half_way(Connection& connection) {
  TERRACE_RETURN_IF_ERROR(connection.exec("DELETE FROM lease; DROP TABLE note", "test"));
  return connection.exec("INSERT INTO no_such_table VALUES (1)", "test");
}
Status lose_a_row(Connection& connection) {
  return connection.exec("DELETE FROM lease WHERE id=1", "test");
}

std::vector<Migration> with(std::initializer_list<Migration> more) {
  std::vector<Migration> list(store_migrations().begin(), store_migrations().end());
  list.insert(list.end(), more);
  return list;
}

Result<Image> load_with(const std::string& path, const std::vector<Migration>& migrations) {
  StoreOptions options;
  options.migrations = migrations;
  auto store = open_small_store(path, options);
  if (!store.ok()) return store.error();
  return (*store)->load();
}

std::string query(const std::string& path, const char* sql) {
  auto connection = Connection::open(path, false);
  REQUIRE(connection.ok());
  const Result<std::string> text = connection->query_text(sql, "test");
  REQUIRE_MESSAGE(text.ok(), text.error().to_string());
  return *text;
}

// What builds of versions 4 and 5 of the schema would have left: without the other half of the store's id; without
// the word about restored copies.
template <typename Seal>
void make_older(const std::string& path, uint32_t (*crc_of)(const MetaRow&, const StoreSeal&),
                const char* change, uint32_t crc_error) {
  auto connection = Connection::open(path, false);
  REQUIRE(connection.ok());
  StoreSeal seal;
  MetaRow meta;
  {
    auto select =
        connection->prepare(("SELECT " + older_meta_column_texts<Seal>().names + " FROM meta").c_str(), "test");
    REQUIRE(select.ok());
    REQUIRE(select->step("test").ok());
    ColumnReader columns(*select);
    Seal::fields(columns, seal);
    Stored<MetaRow>::fields(columns, meta);
    REQUIRE(columns.sound());
  }
  const std::string sql =
      std::string(change) + "; UPDATE meta SET crc=" + std::to_string(crc_of(meta, seal) ^ crc_error);
  REQUIRE(connection->exec(sql.c_str(), "test").ok());
  connection->keep_log(false);
}
// Before hosts of the owners of parts.
void make_version_9(const std::string& path) {
  auto connection = Connection::open(path, false);
  REQUIRE(connection.ok());
  REQUIRE(
      connection->exec("ALTER TABLE owner RENAME COLUMN who TO holder; PRAGMA user_version=9", "test").ok());
  connection->keep_log(false);
}
// Before views: a lease has its memory on one host.
void make_version_8(const std::string& path) {
  make_version_9(path);
  auto connection = Connection::open(path, false);
  REQUIRE(connection.ok());
  REQUIRE(connection->exec("DROP TABLE host_view; PRAGMA user_version=8", "test").ok());
  connection->keep_log(false);
}
// Before what becomes of a lease's holders at a fence: whether it is movable alone.
void make_version_7(const std::string& path) {
  make_version_8(path);
  auto connection = Connection::open(path, false);
  REQUIRE(connection.ok());
  REQUIRE(
      connection->exec("ALTER TABLE lease RENAME COLUMN words TO movable; PRAGMA user_version=7", "test").ok());
  connection->keep_log(false);
}
// Before a pool's trust: its coherence alone.
void make_version_6(const std::string& path) {
  make_version_7(path);
  auto connection = Connection::open(path, false);
  REQUIRE(connection.ok());
  REQUIRE(connection->exec("ALTER TABLE pool RENAME COLUMN words TO coherence; PRAGMA user_version=6", "test")
              .ok());
  connection->keep_log(false);
}
void make_version_5(const std::string& path, uint32_t crc_error = 0) {
  make_version_6(path);
  make_older<SealFields>(path, row_crc_5, "ALTER TABLE meta DROP COLUMN restored; PRAGMA user_version=5",
                         crc_error);
}
void make_version_4(const std::string& path, uint32_t crc_error = 0) {
  make_version_5(path);
  make_older<SealFields4>(path, row_crc_4, "ALTER TABLE meta DROP COLUMN store_high; PRAGMA user_version=4",
                          crc_error);
}

void commit_lease(const std::string& path, const LeaseRow& row) {
  auto store = open_store(path);
  REQUIRE_MESSAGE(store.ok(), store.error().to_string());
  REQUIRE((*store)->load().ok());
  Delta delta;
  delta.leases[row.id] = row;
  REQUIRE((*store)->commit(delta).ok());
}

void commit_pool(const std::string& path, const PoolRow& row) {
  auto store = open_store(path);
  REQUIRE_MESSAGE(store.ok(), store.error().to_string());
  REQUIRE((*store)->load().ok());
  Delta delta;
  delta.pools[row.id] = row;
  REQUIRE((*store)->commit(delta).ok());
}

void commit_owner(const std::string& path, const OwnerRow& row) {
  auto store = open_store(path);
  REQUIRE_MESSAGE(store.ok(), store.error().to_string());
  REQUIRE((*store)->load().ok());
  Delta delta;
  delta.owners[row.id] = row;
  REQUIRE((*store)->commit(delta).ok());
}

StoreId id_of(const std::string& path) {
  auto store = open_store(path);
  REQUIRE_MESSAGE(store.ok(), store.error().to_string());
  return (*store)->id();
}

}  // namespace

TEST_CASE("Store: an id of 128 random bits, of its own and for good; a copy has the same") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db"), copy = folder.file("copy.db");
  const StoreId id = id_of(path);
  CHECK(id.high != 0);
  CHECK(id.low != 0);
  CHECK(parse_store_id(store_id_text(id)) == id);
  CHECK(id_of(path) == id);
  CHECK(id_of(folder.file("other.db")) != id);
  std::filesystem::copy_file(path, copy);
  CHECK(id_of(copy) == id);
}

TEST_CASE("Store: the text of an id is 32 digits, and nothing else is one") {
  const StoreId id{0x0123456789abcdef, 0xfedcba9876543210};
  CHECK(store_id_text(id) == "0123456789abcdeffedcba9876543210");
  CHECK(parse_store_id("0123456789abcdeffedcba9876543210") == id);
  for (const char* wrong : {"", "0123", "0123456789abcdeffedcba987654321G", "0123456789ABCDEFfedcba9876543210",
                            "00000000000000000000000000000000", "0123456789abcdeffedcba98765432100"})
    CHECK(!parse_store_id(wrong).has_value());
}

TEST_CASE("Store: one that was made just now can be discarded, one that was there before cannot") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  {
    auto store = open_store(path);
    REQUIRE(store.ok());
    REQUIRE((*store)->load().ok());
    CHECK((*store)->discard_if_fresh());
  }
  CHECK(std::filesystem::is_empty(folder.path()));
  const StoreId id = id_of(path);
  {
    auto store = open_store(path);
    REQUIRE(store.ok());
    CHECK(!(*store)->discard_if_fresh());
  }
  CHECK(id_of(path) == id);
}

TEST_CASE("Store migration: a store of version 4 gets the other half of its id at its first start") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  const StoreId before = id_of(path);
  const Result<Image> rows = load_store(path);
  make_version_4(path);
  const std::string backup = folder.file("backup.db");
  std::filesystem::copy_file(path, backup);
  const StoreId after = id_of(path);
  CHECK(after.low == before.low);
  CHECK(after.high != 0);
  CHECK(after.high != before.high);
  CHECK(id_of(path) == after);
  CHECK(id_of(backup) == after);
  const Result<Image> image = load_store(path);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(same(*image, *rows));
}

TEST_CASE("Store migration: a store of version 5 is no restored copy, and keeps its id and rows") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  const StoreId before = id_of(path);
  const Result<Image> rows = load_store(path);
  make_version_5(path);
  CHECK(id_of(path) == before);
  const Result<Image> image = load_store(path);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(same(*image, *rows));
  CHECK(!image->meta.restored);
}

TEST_CASE(
    "Store migration: of a store of version 6 no pool's tenants trust each other, and its coherence stays") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  PoolRow pool = load_store(path)->pools.at(0);
  pool.coherence = PoolCoherence::noncoherent;
  commit_pool(path, pool);
  make_version_6(path);
  CHECK(load_store(path)->pools.at(0) == pool);
  pool.trust = TenantTrust::mutual;
  commit_pool(path, pool);
  CHECK(load_store(path)->pools.at(0) == pool);
  CHECK(query(path, "SELECT words FROM pool") == "6");
}

TEST_CASE(
    "Store migration: owners of a store of version 9 are on the manager's own host, and others can be since") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  const OwnerRow old{
      .id = part_id(LeaseId{1}, 0), .epoch = 4, .request = 5, .process = {6, 7, 8}, .holder = "p[6]"};
  commit_owner(path, old);
  make_version_9(path);
  CHECK(load_store(path)->owners == std::vector{old});
  OwnerRow there = old;
  there.host = "hostb";
  commit_owner(path, there);
  CHECK(load_store(path)->owners == std::vector{there});
  CHECK(query(path, "SELECT who FROM owner") == "p[6]\nhostb");
  const OwnerRow nobodys{.id = old.id, .epoch = 4, .host = any_host};
  commit_owner(path, nobodys);
  CHECK(load_store(path)->owners == std::vector{nobodys});
}

TEST_CASE("Store migration: no lease of a store of version 7 ends its holders, and what is movable stays so") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  LeaseRow lease = load_store(path)->leases.at(0);
  lease.movable = true;
  commit_lease(path, lease);
  make_version_7(path);
  CHECK(load_store(path)->leases.at(0) == lease);
  lease.movable = false;
  lease.on_fence = OnFence::kill;
  commit_lease(path, lease);
  CHECK(load_store(path)->leases.at(0) == lease);
  CHECK(query(path, "SELECT group_concat(words) FROM lease") == "2,0,0");
}

namespace {

// Opens as the manager does. Returns the folders that it was told of.
std::vector<std::string> open_keeping_older(const std::string& path, Status& opened) {
  std::vector<std::string> kept;
  StoreOptions options;
  options.keep_older = [&kept](const std::string& folder, int64_t) { kept.push_back(folder); };
  auto store = open_small_store(path, options);
  opened =
      store.ok() ? (*store)->load().ok() ? Status() : Status((*store)->load().error()) : Status(store.error());
  return kept;
}

}  // namespace

TEST_CASE("Store migration: the files of an older store are kept before it is migrated, and work as they did") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  const Result<Image> rows = load_store(path);
  std::ofstream(path + ".hosts") << "rack7\n";
  Status opened;
  CHECK(open_keeping_older(path, opened).empty());  // of this version
  CHECK(opened.ok());
  make_version_5(path);
  const std::string before = read_bytes(path);
  const std::vector<std::string> kept = open_keeping_older(path, opened);
  REQUIRE_MESSAGE(opened.ok(), opened.error().to_string());
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].starts_with(path + ".version-5-"));
  CHECK(read_bytes(kept[0] + "/state.db") == before);
  CHECK(read_bytes(kept[0] + "/state.db.hosts") == "rack7\n");
  CHECK(query(path, "PRAGMA user_version") == "10");
  CHECK(open_keeping_older(path, opened).empty());
  // What was kept is a store of its own.
  const Result<Image> image = load_store(kept[0] + "/state.db");
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(same(*image, *rows));
}

TEST_CASE("Store migration: a start that fails and is tried again keeps one copy") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  make_version_5(path, 1);
  const std::string before = read_bytes(path);
  Status opened;
  const std::vector<std::string> first = open_keeping_older(path, opened);
  CHECK(!opened.ok());
  CHECK(open_keeping_older(path, opened) == first);
  CHECK(!opened.ok());
  CHECK(read_bytes(path) == before);
}

TEST_CASE("Store migration: a store whose copy does not fit the disk stays as it is, until it does") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  make_version_6(path);
  const int ended = run_in_child([&path] {
    Status opened;
    if (!arm_failpoints("keep_older_copy=error:ENOSPC").ok()) ::_exit(10);
    if (!open_keeping_older(path, opened).empty() || opened.ok()) ::_exit(11);
    const std::string told = "is not migrated to 10 before a copy of it is kept in " + path + ".version-6-";
    if (opened.error().code != ErrorCode::capacity_exhausted) ::_exit(12);
    if (opened.error().detail.find(told) == std::string::npos) ::_exit(13);
  });
  CHECK(ended == 0);
  CHECK(query(path, "PRAGMA user_version") == "6");
  Status opened;
  CHECK(open_keeping_older(path, opened).size() == 1);
  CHECK_MESSAGE(opened.ok(), opened.error().to_string());
}

TEST_CASE("Store migration: a damaged row of an older version is not sealed anew") {
  for (const auto make : {make_version_4, make_version_5}) {
    TemporaryFolder folder;
    const std::string path = folder.file("state.db");
    make_closed_store(path, 3);
    make(path, 1);
    const std::string before = read_bytes(path);
    const Result<Image> image = load_store(path);
    REQUIRE(!image.ok());
    CHECK_MESSAGE(image.error().code == ErrorCode::corrupt, image.error().to_string());
    CHECK(read_bytes(path) == before);
  }
}

TEST_CASE("Store migration: a store of before the first release is a version mismatch, and stays as it is") {
  for (const char* version : {"1", "3"}) {
    TemporaryFolder folder;
    const std::string path = folder.file("state.db");
    make_closed_store(path, 3);
    {
      auto connection = Connection::open(path, false);
      REQUIRE(connection.ok());
      REQUIRE(connection->exec((std::string("PRAGMA user_version=") + version).c_str(), "test").ok());
      connection->keep_log(false);
    }
    const std::string before = read_bytes(path);
    const Result<Image> image = load_store(path);
    REQUIRE(!image.ok());
    CHECK_MESSAGE(image.error().code == ErrorCode::version_mismatch, image.error().to_string());
    CHECK(read_bytes(path) == before);
  }
}

TEST_CASE("Store migration: what a manager of version 8 left in its journal when it was killed is read") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  LeaseRow late = load_store(path)->leases.front();
  {
    auto store = open_store(path);
    REQUIRE(store.ok());
    REQUIRE((*store)->load().ok());
    late.label = "late";
    Delta delta;
    delta.leases[late.id] = late;
    REQUIRE((*store)->commit(delta).ok());
    // As if it were killed here: its files, with the commit in the journal only.
    for (const char* file : {"", "-mark", "-journal-a", "-journal-b", "-wal"}) {
      std::error_code absent;
      std::filesystem::copy_file(path + file, folder.file("killed.db") + file, absent);
    }
  }
  make_version_8(folder.file("killed.db"));
  const Result<Image> image = load_store(folder.file("killed.db"));
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(image->leases.size() == 3);
  CHECK(image->leases.front() == late);
  CHECK(image->views.empty());
}

TEST_CASE("Store migration: the tables are those that docs/formats/store.md names") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  const auto columns = [&path](const char* table) {
    return query(
        path, (std::string("SELECT group_concat(name, ', ') FROM pragma_table_info('") + table + "')").c_str());
  };
  std::ifstream page(std::string(TERRACE_SOURCE_FOLDER) + "/docs/formats/store.md");
  std::map<std::string, std::string> documented;
  for (std::string line; std::getline(page, line);) {
    std::smatch found;
    if (std::regex_match(line, found, std::regex(R"(\| `(\w+)`.*\| `(\w+, [\w, ]+)`, `crc` \|)")))
      documented[found[1]] = found[2];
  }
  CHECK(documented.size() == 9);
  for (const auto& entry : documented) {
    const bool meta = entry.first == "meta";  // later versions put columns behind its checksum
    const std::string expected =
        (meta ? "id, " : "") + entry.second + ", crc" + (meta ? ", store_high, restored" : "");
    CHECK_MESSAGE(columns(entry.first.c_str()) == expected, entry.first);
  }
}

TEST_CASE("Store migration: an older store moves forward through every step, rows unchanged") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  const Result<Image> before = load_store(path);
  const auto newer = with({{11, "notes", add_table}, {12, "notes from labels", fill_table}});
  for (int round = 0; round < 2; ++round) {
    const Result<Image> after = load_with(path, newer);
    REQUIRE_MESSAGE(after.ok(), after.error().to_string());
    CHECK(same(*after, *before));
  }
  CHECK(query(path, "PRAGMA user_version") == "12");
  CHECK(query(path, "SELECT count(*) FROM note") == "3");
}

TEST_CASE("Store migration: a fresh store runs all steps") {
  TemporaryFolder folder;
  REQUIRE(load_with(folder.file("state.db"), with({{11, "notes", add_table}})).ok());
  CHECK(query(folder.file("state.db"), "PRAGMA user_version") == "11");
}

TEST_CASE("Store migration: a newer store is a version mismatch, and stays as it is") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  REQUIRE(load_with(path, with({{11, "notes", add_table}})).ok());
  const std::string before = read_bytes(path);
  const Result<Image> image = load_store(path);
  REQUIRE(!image.ok());
  CHECK(image.error().code == ErrorCode::version_mismatch);
  CHECK(read_bytes(path) == before);
}

TEST_CASE("Store migration: a step that fails, or loses a row, leaves the old version whole") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  CHECK(!load_with(path, with({{11, "notes", add_table}, {12, "fails", fail_half_way}})).ok());
  const Result<Image> lossy = load_with(path, with({{11, "loses a lease", lose_a_row}}));
  REQUIRE(!lossy.ok());
  CHECK(lossy.error().code == ErrorCode::corrupt);
  const Result<Image> image = load_store(path);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(image->leases.size() == 3);
  CHECK(query(path, "PRAGMA user_version") == "10");
}
