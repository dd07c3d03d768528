// Schema versions: older stores move forward whole or not at all, newer ones are refused.
#include <doctest/doctest.h>

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
  SqliteStoreOptions options;
  options.migrations = migrations;
  auto store = open_sqlite_store(path, options);
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

}  // namespace

TEST_CASE("Store migration: an older store moves forward through every step, rows unchanged") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  const Result<Image> before = load_store(path);
  const auto newer = with({{2, "notes", add_table}, {3, "notes from labels", fill_table}});
  for (int round = 0; round < 2; ++round) {
    const Result<Image> after = load_with(path, newer);
    REQUIRE_MESSAGE(after.ok(), after.error().to_string());
    CHECK(same(*after, *before));
  }
  CHECK(query(path, "PRAGMA user_version") == "3");
  CHECK(query(path, "SELECT count(*) FROM note") == "3");
}

TEST_CASE("Store migration: a fresh store runs all steps") {
  TemporaryFolder folder;
  REQUIRE(load_with(folder.file("state.db"), with({{2, "notes", add_table}})).ok());
  CHECK(query(folder.file("state.db"), "PRAGMA user_version") == "2");
}

TEST_CASE("Store migration: a newer store is a version mismatch, and stays as it is") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  REQUIRE(load_with(path, with({{2, "notes", add_table}})).ok());
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
  CHECK(!load_with(path, with({{2, "notes", add_table}, {3, "fails", fail_half_way}})).ok());
  const Result<Image> lossy = load_with(path, with({{2, "loses a lease", lose_a_row}}));
  REQUIRE(!lossy.ok());
  CHECK(lossy.error().code == ErrorCode::corrupt);
  const Result<Image> image = load_store(path);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(image->leases.size() == 3);
  CHECK(query(path, "PRAGMA user_version") == "1");
}
