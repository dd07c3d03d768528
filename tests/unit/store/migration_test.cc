// Schema versions: older stores move forward whole or not at all, newer ones are refused.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <regex>

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

}  // namespace

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
  CHECK(documented.size() == 8);
  for (const auto& entry : documented) {
    const std::string expected = (entry.first == "meta" ? "id, " : "") + entry.second + ", crc";
    CHECK_MESSAGE(columns(entry.first.c_str()) == expected, entry.first);
  }
}

TEST_CASE("Store migration: an older store moves forward through every step, rows unchanged") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 3);
  const Result<Image> before = load_store(path);
  const auto newer = with({{5, "notes", add_table}, {6, "notes from labels", fill_table}});
  for (int round = 0; round < 2; ++round) {
    const Result<Image> after = load_with(path, newer);
    REQUIRE_MESSAGE(after.ok(), after.error().to_string());
    CHECK(same(*after, *before));
  }
  CHECK(query(path, "PRAGMA user_version") == "6");
  CHECK(query(path, "SELECT count(*) FROM note") == "3");
}

TEST_CASE("Store migration: a fresh store runs all steps") {
  TemporaryFolder folder;
  REQUIRE(load_with(folder.file("state.db"), with({{5, "notes", add_table}})).ok());
  CHECK(query(folder.file("state.db"), "PRAGMA user_version") == "5");
}

TEST_CASE("Store migration: a newer store is a version mismatch, and stays as it is") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  REQUIRE(load_with(path, with({{5, "notes", add_table}})).ok());
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
  CHECK(!load_with(path, with({{5, "notes", add_table}, {6, "fails", fail_half_way}})).ok());
  const Result<Image> lossy = load_with(path, with({{5, "loses a lease", lose_a_row}}));
  REQUIRE(!lossy.ok());
  CHECK(lossy.error().code == ErrorCode::corrupt);
  const Result<Image> image = load_store(path);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(image->leases.size() == 3);
  CHECK(query(path, "PRAGMA user_version") == "4");
}
