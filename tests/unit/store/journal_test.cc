// SPDX-License-Identifier: Apache-2.0
// The journal in front of the database: what a torn, dropped or damaged record costs, and folding.
#include <doctest/doctest.h>
#include <sys/mount.h>

#include <cstring>

#include "core/base/failpoint.h"
#include "core/base/prng.h"
#include "daemon/store/journal/journal_segment.h"
#include "tests/support/skip.h"
#include "tests/unit/store/store_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

struct Place {
  size_t at = 0;  // in the segment's bytes
  size_t bytes = 0;
};

// Where the records of a segment lie, in order.
std::vector<Place> places(const std::string& segment) {
  std::vector<Place> found;
  for (size_t at = JournalSegment::header_bytes; at + sizeof(RecordHeader) <= segment.size(); at += 64) {
    RecordHeader header;
    std::memcpy(&header, segment.data() + at, sizeof(header));
    if (std::memcmp(header.magic, "TRCJREC1", 8) == 0)
      found.push_back({at, sizeof(header) + header.payload_bytes});
  }
  return found;
}

// A crashed store with leases 1..leases in its journal, and the mark as it was before the last commit.
struct Crashed {
  Crashed(const TemporaryFolder& folder, uint64_t leases) : path(folder.file("state.db")) {
    make_crashed_store(path, leases - 1);
    snapshot_mark_before(leases);
  }
  void snapshot_mark_before(uint64_t last) {
    // The same store, one commit further: the first life is opened again, so that both marks belong to one
    // file.
    run_in_child([&] {
      auto store = open_small_store(path);
      if (!store.ok()) ::_exit(1);
      for (uint64_t id = 101; id <= 103; ++id)
        if (!(*store)->commit(make_grant(id)).ok()) ::_exit(1);
      std::filesystem::copy_file(path + "-mark", path + ".mark-before");
      if (!(*store)->commit(make_grant(100 + last)).ok()) ::_exit(1);
      ::kill(::getpid(), SIGKILL);
    });
    mark_before = read_bytes(path + ".mark-before");
  }
  std::string path;
  std::string mark_before;
};

void expect_leases(const std::string& path, size_t leases) {
  const Result<Image> image = load_store(path);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  REQUIRE(image->leases.size() == leases);
}

void expect_missing(const std::string& path, const std::string& text) {
  const Result<Image> image = load_store(path);
  REQUIRE(!image.ok());
  REQUIRE_MESSAGE(image.error().code == ErrorCode::corrupt, image.error().to_string());
  REQUIRE_MESSAGE(image.error().detail.find(text) != std::string::npos, image.error().to_string());
}

}  // namespace

TEST_CASE("Store journal: a record torn at any byte is the previous state, unless it was acknowledged") {
  // In memory records lie in blocks of 64 bytes, on a disk in blocks of 4096.
  for (const char* under : {"/dev/shm", "/tmp"}) {
    TemporaryFolder folder(under);
    const Crashed crashed(folder, 5);
    const Snapshot snapshot(crashed.path);
    const std::string& whole = snapshot.bytes("-journal-a");
    REQUIRE(places(whole).size() >=
            4);  // the fourth is the last commit; behind it an earlier life's may be left
    const Place last = places(whole)[3];
    for (size_t kept = 0; kept < last.bytes; kept += under == std::string("/tmp") ? 31 : 1) {
      CAPTURE(kept);
      snapshot.restore();
      std::string torn = whole;
      std::fill(torn.begin() + long(last.at + kept), torn.begin() + long(last.at + last.bytes), '\0');
      if (torn == whole) continue;  // the rest was zeros
      write_bytes(crashed.path + "-journal-a", torn);
      expect_missing(crashed.path, "1 acknowledged commits are missing");
      snapshot.restore();
      write_bytes(crashed.path + "-journal-a", torn);
      write_bytes(crashed.path + "-mark", crashed.mark_before);
      expect_leases(crashed.path, 7);
    }
    snapshot.restore();
    write_bytes(crashed.path + "-mark", crashed.mark_before);
    expect_leases(crashed.path, 8);  // whole, though nobody heard of it
  }
}

TEST_CASE("Store journal: a write that was dropped is noticed when anything speaks for it") {
  TemporaryFolder folder;
  const Crashed crashed(folder, 5);
  const Snapshot snapshot(crashed.path);
  const std::string& whole = snapshot.bytes("-journal-a");
  std::vector<Place> records = places(whole);
  REQUIRE(records.size() >= 4);
  records.resize(4);
  for (size_t i = 0; i < records.size(); ++i) {
    CAPTURE(i);
    std::string dropped = whole;
    const size_t end = i + 1 < records.size() ? records[i + 1].at : records[i].at + records[i].bytes;
    std::fill(dropped.begin() + long(records[i].at), dropped.begin() + long(end), '\0');
    for (const bool marked : {true, false}) {
      snapshot.restore();
      write_bytes(crashed.path + "-journal-a", dropped);
      if (!marked) write_bytes(crashed.path + "-mark", crashed.mark_before);
      if (marked || i + 1 < records.size()) {
        expect_missing(crashed.path, "acknowledged commits are missing");
      } else {
        expect_leases(crashed.path, 7);
      }
    }
  }
  // The first record twice, at the place of another: that one is missing all the same.
  snapshot.restore();
  std::string doubled = whole;
  REQUIRE(records[0].bytes <= records[2].at - records[1].at);
  doubled.replace(records[1].at, records[0].bytes, whole, records[0].at, records[0].bytes);
  write_bytes(crashed.path + "-journal-a", doubled);
  expect_missing(crashed.path, "twice");
}

TEST_CASE("Store journal: a segment of another store, or of a newer version, is refused") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_crashed_store(path, 2);
  make_crashed_store(folder.file("other.db"), 2);
  const Snapshot snapshot(path);
  std::filesystem::copy_file(folder.file("other.db-journal-b"), path + "-journal-b",
                             std::filesystem::copy_options::overwrite_existing);
  expect_missing(path, "belongs to another store");
  snapshot.restore();
  std::filesystem::remove(path + "-journal-a");
  std::filesystem::create_symlink(folder.file("other.db-journal-a"), path + "-journal-a");
  CHECK(!load_store(path).ok());
  std::filesystem::remove(path + "-journal-a");
  snapshot.restore();
  expect_leases(path, 2);
}

TEST_CASE("Store journal: a clean end leaves everything in the database, alone") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_closed_store(path, 40);  // several rounds through both segments
  const Result<Image> expected = load_store(path);
  REQUIRE(expected->leases.size() == 40);
  CHECK(!std::filesystem::exists(path + "-wal"));
  std::filesystem::copy_file(path, folder.file("copy.db"));
  const Result<Image> copy = load_store(folder.file("copy.db"));
  REQUIRE_MESSAGE(copy.ok(), copy.error().to_string());
  CHECK(same(*copy, *expected));
  for (const char* suffix : {"-journal-a", "-journal-b"}) std::filesystem::remove(path + suffix);
  expect_leases(path, 40);
}

TEST_CASE("Store journal: a delta larger than a segment goes straight into the database") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  auto store = open_small_store(path);
  REQUIRE(store.ok());
  REQUIRE((*store)->commit(make_grant(1)).ok());
  Delta large;
  for (uint64_t id = 2; id <= 900; ++id) large.leases[LeaseId{id}] = make_lease(id);
  REQUIRE((*store)->commit(large).ok());
  REQUIRE((*store)->commit(make_grant(901)).ok());
  CHECK((*store)->load()->leases.size() == 901);
  const Snapshot crashed(path);
  store->reset();
  crashed.restore();
  expect_leases(path, 901);
}

TEST_CASE("Store journal: journal files of another size are replaced when the store opens") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  make_crashed_store(path, 5);
  StoreOptions options;
  options.segment_bytes = 32 * kib;
  for (int round = 0; round < 2; ++round) {
    auto store = open_store(path, options);
    REQUIRE_MESSAGE(store.ok(), store.error().to_string());
    CHECK(std::filesystem::file_size(path + "-journal-a") == 32 * kib);
    CHECK(std::filesystem::file_size(path + "-journal-b") == 32 * kib);
    CHECK((*store)->load()->leases.size() == 5);
  }
}

TEST_CASE("Store journal: an idle store folds by itself") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  StoreOptions options;
  options.idle_fold_ns = 20 * ns_per_ms;
  auto store = open_small_store(path, options);
  REQUIRE(store.ok());
  CHECK((*store)->journal_room().used_bytes == 0);
  REQUIRE((*store)->commit(make_grant(1)).ok());
  bool folded = false;
  for (int i = 0; i < 6000 && !folded; ++i) {
    ::usleep(10'000);
    std::error_code ignored;
    folded = std::filesystem::file_size(path + "-wal", ignored) > 4096 && !ignored;
  }
  CHECK(folded);
  for (int i = 0; i < 6000 && (*store)->journal_room().used_bytes != 0; ++i) ::usleep(10'000);
  CHECK((*store)->journal_room().used_bytes == 0);
  CHECK((*store)->load()->leases.size() == 1);
}

TEST_CASE("Store journal: a fold that finds the disk full keeps the journal, and is tried again") {
  TemporaryFolder folder;
  const std::string mount_point = folder.file("small");
  REQUIRE(::mkdir(mount_point.c_str(), 0700) == 0);
  if (::mount("terrace-test", mount_point.c_str(), "tmpfs", 0, "size=1m") != 0) {
    TERRACE_SKIP(mount, "mounting a small tmpfs needs root");
    return;
  }
  {
    const std::string path = mount_point + "/state.db";
    auto store = open_small_store(path);
    REQUIRE(store.ok());
    uint64_t id = 1;
    Status status;
    for (; id < 10'000 && (status = (*store)->commit(make_grant(id, 200))).ok(); ++id) continue;
    REQUIRE(!status.ok());
    CHECK(status.error().code == ErrorCode::capacity_exhausted);
    CHECK(status.error().detail.find("journal") != std::string::npos);
    CHECK(status.error().detail.find(path) != std::string::npos);
    CHECK(!(*store)->audit({}).ok());
    const JournalRoom room = (*store)->journal_room();
    CHECK(room.used_bytes > room.bytes / 10 * 9);
    CHECK(room.used_bytes <= room.bytes);
    CHECK((*store)->load()->leases.size() == id - 1);  // database and journal together

    const Snapshot crashed(path);  // a crash now, and a start while the disk is still full
    REQUIRE(::mount("terrace-test", mount_point.c_str(), "tmpfs", MS_REMOUNT, "size=8m") == 0);
    CHECK((*store)->commit(make_grant(id, 200)).ok());
    CHECK((*store)->audit({}).ok());
    CHECK((*store)->load()->leases.size() == id);
    store->reset();
    expect_leases(path, id);
    crashed.restore();
    expect_leases(path, id - 1);
  }
  CHECK(::umount(mount_point.c_str()) == 0);
}

TEST_CASE("Store journal: a fold that fails once loses nothing") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  // error: from the first fold on, for good. The store goes on until the journal is full, and says why.
  for (const std::string specification :
       {"fold_before_commit=error:ENOSPC", "fold_before_commit=error:EIO", "fold_after_commit=error:EIO@2"}) {
    CAPTURE(specification);
    TemporaryFolder folder;
    const std::string path = folder.file("state.db");
    const int status = run_in_child([&] {
      auto store = open_small_store(path);
      if (!store.ok() || !arm_failpoints(specification).ok()) ::_exit(10);
      uint64_t id = 1;
      Status commit;
      for (; id < 5000 && (commit = (*store)->commit(make_grant(id))).ok(); ++id) continue;
      const bool full = specification.find("ENOSPC") != std::string::npos;
      if (full && commit.ok()) ::_exit(11);
      if (full && commit.error().code != ErrorCode::capacity_exhausted) ::_exit(12);
      if (!commit.ok() && !full && commit.error().code != ErrorCode::io_error) ::_exit(13);
      const uint64_t acknowledged = id - 1;
      std::ofstream(path + ".acknowledged") << acknowledged;
      ::kill(::getpid(), SIGKILL);
    });
    REQUIRE(WIFSIGNALED(status));
    uint64_t acknowledged = 0;
    std::ifstream(path + ".acknowledged") >> acknowledged;
    CHECK(acknowledged > 100);
    expect_leases(path, acknowledged);
  }
}

TEST_CASE("Store journal: a crash at any failpoint leaves the state before or after it") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  for (const char* point : {"journal_before_append", "journal_after_append", "journal_after_sync",
                            "fold_before_commit", "fold_after_commit"}) {
    for (const int hit : {1, 2, 3}) {
      const std::string specification = std::string(point) + "=crash@" + std::to_string(hit);
      CAPTURE(specification);
      TemporaryFolder folder;
      const std::string path = folder.file("state.db");
      make_crashed_store(path, 3);
      int acknowledged[2];
      REQUIRE(::pipe(acknowledged) == 0);
      const int status = run_in_child([&] {
        if (!arm_failpoints(specification).ok()) ::_exit(10);
        auto store = open_small_store(path);  // the first fold is that of the start
        for (uint64_t id = 4; id < 2000; ++id) {
          if (!store.ok() || !(*store)->commit(make_grant(id)).ok()) ::_exit(11);
          if (::write(acknowledged[1], &id, sizeof(id)) != sizeof(id)) ::_exit(12);
        }
      });
      ::close(acknowledged[1]);
      uint64_t last = 3;
      for (uint64_t id = 0; ::read(acknowledged[0], &id, sizeof(id)) == sizeof(id);) last = id;
      ::close(acknowledged[0]);
      REQUIRE(WIFSIGNALED(status));
      for (int round = 0; round < 2; ++round) {
        const Result<Image> image = load_store(path);
        REQUIRE_MESSAGE(image.ok(), image.error().to_string());
        REQUIRE(image->leases.size() >= last);
        REQUIRE(image->leases.size() <= last + 1);
        for (size_t i = 0; i < image->leases.size(); ++i) REQUIRE(image->leases[i] == make_lease(i + 1));
      }
    }
  }
}

TEST_CASE("Store journal: quick in memory, not on a disk") {
  TemporaryFolder memory("/dev/shm");
  CHECK((*open_small_store(memory.file("state.db")))->quick());
  TemporaryFolder disk("/tmp");
  struct stat shm {
  }, tmp{};
  REQUIRE(::stat(memory.path().c_str(), &shm) == 0);
  REQUIRE(::stat(disk.path().c_str(), &tmp) == 0);
  if (shm.st_dev == tmp.st_dev) return;
  auto store = open_small_store(disk.file("state.db"));
  REQUIRE(store.ok());
  MESSAGE("/tmp is quick: " << (*store)->quick());
}
