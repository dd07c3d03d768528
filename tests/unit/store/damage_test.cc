// SPDX-License-Identifier: Apache-2.0
// What the store does with files that were damaged, shortened, removed, exchanged or never its own: it says
// so, and never gives less than was acknowledged.
#include <doctest/doctest.h>

#include <cstdlib>

#include "core/base/prng.h"
#include "tests/unit/store/store_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

// Every TERRACE_STORE_FLIP_STRIDE-th byte is attacked; 1 attacks all of them and takes minutes.
size_t flip_stride() {
  const char* text = std::getenv("TERRACE_STORE_FLIP_STRIDE");
  const size_t stride = text == nullptr ? 0 : std::strtoul(text, nullptr, 10);
  return stride == 0 ? 97 : stride;
}

struct Outcome {
  int refused = 0;
  int same = 0;
};

// Loads the attacked store: the exact image, or a refusal. Anything else fails the test.
void judge(const std::string& path, const Image& expected, Outcome& outcome) {
  const Result<Image> image = load_store(path);
  if (image.ok()) {
    REQUIRE(same(*image, expected));
    ++outcome.same;
    return;
  }
  const ErrorCode code = image.error().code;
  const bool refused = code == ErrorCode::corrupt || code == ErrorCode::version_mismatch;
  REQUIRE_MESSAGE(refused, image.error().to_string());
  ++outcome.refused;
}

void flip_everywhere(const std::string& path, const Snapshot& snapshot, const std::string& suffix,
                     const Image& expected) {
  Prng prng(99);
  Outcome outcome;
  const std::string& bytes = snapshot.bytes(suffix);
  for (size_t at = 0; at < bytes.size(); at += at < 128 ? 1 : flip_stride()) {
    CAPTURE(suffix);
    CAPTURE(at);
    snapshot.restore();
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (prng.chance(1, 4) ? 0xff : 1 << prng.below(8)));
    write_bytes(path + suffix, damaged);
    judge(path, expected, outcome);
  }
  MESSAGE("flips in state.db" << suffix << ": " << outcome.refused << " refused, " << outcome.same
                              << " without effect, of " << bytes.size() << " bytes");
  // Of the two marks one is always left, and the older one is still a bound: no flip there must refuse.
  CHECK((outcome.refused > 0) == (suffix != "-mark"));
}

void expect_corrupt(const std::string& path) {
  const Result<Image> image = load_store(path);
  REQUIRE(!image.ok());
  CHECK_MESSAGE(image.error().code == ErrorCode::corrupt, image.error().to_string());
  CHECK(image.error().detail.find(path) != std::string::npos);
}

}  // namespace

TEST_CASE("Store damage: a flipped byte of a closed store is refused or without effect") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 12);
  const Snapshot snapshot(path);
  REQUIRE(!snapshot.has("-wal"));
  const Result<Image> expected = load_store(path);
  REQUIRE(expected.ok());
  REQUIRE(expected->leases.size() == 12);
  flip_everywhere(path, snapshot, "", *expected);
  flip_everywhere(path, snapshot, "-mark", *expected);
}

TEST_CASE("Store damage: a flipped byte of a crashed store's journal never drops a commit") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_crashed_store(path, 6);
  const Snapshot snapshot(path);
  const Result<Image> expected = load_store(path);
  REQUIRE_MESSAGE(expected.ok(), expected.error().to_string());
  REQUIRE(expected->leases.size() == 6);
  flip_everywhere(path, snapshot, "-journal-a", *expected);
  flip_everywhere(path, snapshot, "", *expected);
}

TEST_CASE("Store damage: a shortened file is corrupt at every length") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_crashed_store(path, 6);
  const Snapshot crashed(path);
  for (const std::string suffix : {"-journal-a", "-journal-b"}) {
    for (size_t bytes = 0; bytes < crashed.bytes(suffix).size(); bytes += 1031) {
      CAPTURE(bytes);
      crashed.restore();
      std::filesystem::resize_file(path + suffix, bytes);
      expect_corrupt(path);
    }
  }
  crashed.restore();
  REQUIRE(load_store(path).ok());
  const Snapshot closed(path);
  for (size_t bytes = 0; bytes < closed.bytes("").size(); bytes += bytes % 4096 == 0 ? 100 : 3996) {
    CAPTURE(bytes);
    closed.restore();
    std::filesystem::resize_file(path, bytes);
    expect_corrupt(path);
  }
}

TEST_CASE("Store damage: a file that is gone never becomes a fresh store") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_crashed_store(path, 3);
  const Snapshot snapshot(path);
  SUBCASE("the database, with journal and mark left") {
    std::filesystem::remove(path);
  }
  SUBCASE("the database and the journal") {
    for (const char* suffix : {"", "-wal", "-journal-a", "-journal-b"}) std::filesystem::remove(path + suffix);
  }
  SUBCASE("the database and the mark") {
    std::filesystem::remove(path);
    std::filesystem::remove(path + "-mark");
  }
  SUBCASE("the journal's first file") {
    std::filesystem::remove(path + "-journal-a");
  }
  SUBCASE("the journal's second file, although it is empty") {
    std::filesystem::remove(path + "-journal-b");
  }
  SUBCASE("the mark, while there is a journal") {
    std::filesystem::remove(path + "-mark");
  }
  SUBCASE("the bytes of the database") {
    std::filesystem::resize_file(path, 0);
  }
  SUBCASE("the bytes of database and mark") {
    std::filesystem::resize_file(path, 0);
    std::filesystem::resize_file(path + "-mark", 0);
  }
  expect_corrupt(path);
  expect_corrupt(path);  // refusing must not have repaired or worn it down
  snapshot.restore();
  const Result<Image> image = load_store(path);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(image->leases.size() == 3);
}

TEST_CASE("Store damage: an older copy of one file is refused, or loses nothing") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 2);
  const Snapshot older(path);
  {
    auto store = open_small_store(path);
    REQUIRE(store.ok());
    REQUIRE((*store)->commit(make_grant(3)).ok());
    REQUIRE((*store)->audit({}).ok());  // folds, so that the next one goes into the other segment
    REQUIRE((*store)->commit(make_grant(4)).ok());
    store->reset();
  }
  const Snapshot newer(path);
  const Result<Image> expected = load_store(path);
  REQUIRE(expected->leases.size() == 4);
  newer.restore();

  // Everything but the mark.
  for (const char* suffix : {"", "-journal-a", "-journal-b"}) write_bytes(path + suffix, older.bytes(suffix));
  expect_corrupt(path);
  // The database, with a journal that is gone, or that has the new commits.
  newer.restore();
  write_bytes(path, older.bytes(""));
  for (const char* suffix : {"-journal-a", "-journal-b"}) std::filesystem::remove(path + suffix);
  expect_corrupt(path);
  Outcome outcome;
  newer.restore();
  write_bytes(path, older.bytes(""));
  judge(path, *expected, outcome);
  for (const char* suffix : {"-journal-a", "-journal-b"}) {
    newer.restore();
    write_bytes(path + suffix, older.bytes(suffix));
    judge(path, *expected, outcome);  // all of it is in the database
    newer.restore();
    write_bytes(path, older.bytes(""));
    write_bytes(path + suffix, older.bytes(suffix));
    expect_corrupt(path);
  }
  CHECK(outcome.same == 3);
}

TEST_CASE("Store damage: an older copy of a crashed store's journal is refused") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_crashed_store(path, 3);
  const std::string older = read_bytes(path + "-journal-a");
  make_crashed_store(path, 5);  // opens, so folds the first three; then goes on
  const Snapshot newer(path);
  REQUIRE(load_store(path)->leases.size() == 5);
  newer.restore();
  write_bytes(path + "-journal-a", older);
  expect_corrupt(path);
}

TEST_CASE("Store damage: a copy without its mark is accepted when it has no log") {
  TemporaryFolder folder;
  make_closed_store(folder.file("state.db"), 2);
  std::filesystem::copy(folder.file("state.db"), folder.file("copy.db"));
  const Result<Image> image = load_store(folder.file("copy.db"));
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(image->leases.size() == 2);
}

TEST_CASE("Store damage: another store's database under this one's mark is refused") {
  TemporaryFolder folder;
  make_closed_store(folder.file("a.db"), 2);
  make_closed_store(folder.file("b.db"), 9);
  std::filesystem::copy_file(folder.file("b.db"), folder.file("a.db"),
                             std::filesystem::copy_options::overwrite_existing);
  expect_corrupt(folder.file("a.db"));
}

TEST_CASE("Store damage: rows that someone else changed are refused") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 4);
  const Snapshot snapshot(path);
  const char* attacks[] = {
      "DELETE FROM lease WHERE id=2",
      "DELETE FROM meta",
      "DELETE FROM pool",
      "UPDATE lease SET phase=9 WHERE id=2",
      "UPDATE lease SET extents=zeroblob(25) WHERE id=2",
      "UPDATE lease SET extents=zeroblob(500000) WHERE id=2",
      "UPDATE lease SET tenant='mallory' WHERE id=1",
      "UPDATE meta SET next_lease=1",
      "UPDATE lease SET id=77 WHERE id=2",
      "INSERT INTO lease SELECT 99, pool, tenant, host, label, object, reason, extents, epoch, mode, phase, "
      "bytes, "
      "ttl_ns, expiry_ns, deadline_ns, request_high, request_low, cause, words, target_bytes, next_object, "
      "crc "
      "FROM lease WHERE id=1",
      "UPDATE lease SET words=2 WHERE id=1",
      "UPDATE device SET state=1 WHERE id=1",
      "UPDATE pool SET placement=2",
      "INSERT INTO quota VALUES ('alice', 1, 1, 0)",
      "INSERT INTO reservation VALUES (1, 1, 'alice', 1, 0, 0, 0)",
      "INSERT INTO owner VALUES (65, 1, 1, 1, 1, 1, 'a', 0)",
      "UPDATE pool SET words=1",
      "UPDATE pool SET words=4",
      "UPDATE meta SET next_reservation=9",
      "UPDATE meta SET journal=1-journal",
      "CREATE TRIGGER t AFTER INSERT ON lease BEGIN DELETE FROM lease; END",
      "CREATE TABLE other (x)",
      "PRAGMA user_version=0",
      "PRAGMA application_id=1",
  };
  for (const char* sql : attacks) {
    CAPTURE(sql);
    snapshot.restore();
    {
      auto connection = Connection::open(path, false);
      REQUIRE(connection.ok());
      const Status done = connection->exec(sql, "test");
      REQUIRE_MESSAGE(done.ok(), done.error().to_string());
      connection->keep_log(false);
    }
    expect_corrupt(path);
  }
}

TEST_CASE("Store damage: foreign files are refused and not touched") {
  TemporaryFolder folder;
  const std::string path = folder.file("notes.db");
  SUBCASE("text") {
    write_bytes(path, "these are somebody's notes\n");
  }
  SUBCASE("another program's SQLite database") {
    auto connection = Connection::open(path, true);
    REQUIRE(connection.ok());
    REQUIRE(connection->exec("CREATE TABLE notes (x)", "test").ok());
  }
  const std::string before = read_bytes(path);
  const Result<Image> image = load_store(path);
  REQUIRE(!image.ok());
  CHECK(image.error().code == ErrorCode::invalid_argument);
  CHECK(image.error().detail.find(path) != std::string::npos);
  CHECK(read_bytes(path) == before);
}

TEST_CASE("Store damage: a link or folder at the path is refused") {
  TemporaryFolder folder;
  make_closed_store(folder.file("real.db"), 1);
  std::filesystem::create_symlink(folder.file("real.db"), folder.file("link.db"));
  std::filesystem::create_directory(folder.file("folder.db"));
  for (const char* name : {"link.db", "folder.db"}) {
    const Result<Image> image = load_store(folder.file(name));
    REQUIRE(!image.ok());
    CHECK(image.error().code == ErrorCode::invalid_argument);
  }
}

TEST_CASE("Store damage: a planted rollback journal is not played back") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 1);
  write_bytes(path + "-journal", std::string(4096, 'j'));
  expect_corrupt(path);
}
