// SPDX-License-Identifier: Apache-2.0
// Backups of an open store while commits go on, what a damaged one is worth, and the way back at every instruction.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/failpoint.h"
#include "daemon/store/backup/hosts_part.h"
#include "daemon/store/backup/restore.h"
#include "daemon/store/backup/store_copy_file.h"
#include "tests/support/skip.h"
#include "tests/unit/store/store_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

// A backup as a file, as `terrace state backup` makes it.
StoreContents backup_to(Store& store, const std::string& file) {
  std::filesystem::remove(file);
  auto made = store.backup();
  REQUIRE_MESSAGE(made.ok(), made.error().to_string());
  REQUIRE(copy_file_bytes("/proc/self/fd/" + std::to_string(made->file.get()), file).ok());
  CHECK(std::filesystem::file_size(file) == made->contents.bytes);
  return made->contents;
}

void make_backup(const std::string& path, const std::string& file, uint64_t leases) {
  make_closed_store(path, leases);
  auto store = open_small_store(path);
  REQUIRE(store.ok());
  backup_to(**store, file);
}

// Rows as the store of `leases` leases has them; a restored copy says so.
void expect_rows(const Image& image, uint64_t leases, bool restored) {
  REQUIRE(image.leases.size() == leases);
  for (size_t i = 0; i < leases; ++i) CHECK(image.leases[i] == make_lease(i + 1));
  CHECK(image.meta.next_lease == leases + 1);
  CHECK(image.meta.restored == restored);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("Store backup: one file that is a whole store by itself, and says that it is a copy") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db"), file = folder.file("backup.db");
  auto store = open_small_store(path);
  REQUIRE(store.ok());
  REQUIRE((*store)->commit(make_pool()).ok());
  for (uint64_t id = 1; id <= 20; ++id) REQUIRE((*store)->commit(make_grant(id)).ok());
  const StoreContents contents = backup_to(**store, file);
  CHECK(contents.id == (*store)->id());
  CHECK(contents.sequence == 21);
  CHECK(contents.leases == 20);
  CHECK(contents.devices == 2);
  CHECK(contents.pools == 1);
  CHECK(!std::filesystem::exists(path + "-backup"));

  // The store goes on, and is no copy.
  REQUIRE((*store)->commit(make_grant(21)).ok());
  expect_rows(*(*store)->load(), 21, false);
  store->reset();
  const Result<Image> image = load_store(file);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  expect_rows(*image, 20, true);
}

TEST_CASE("Store backup: commits go on while it is made, and it has those of before") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db"), file = folder.file("backup.db");
  auto store = open_small_store(path, {.idle_fold_ns = 1 * ns_per_ms});
  REQUIRE(store.ok());
  REQUIRE((*store)->commit(make_pool()).ok());
  uint64_t id = 1;
  for (; id <= 3000; ++id) REQUIRE((*store)->commit(make_grant(id)).ok());
  std::atomic<bool> done{false};
  for (int round = 0; round < 3; ++round) {
    done = false;
    const uint64_t before = id - 1;
    StoreContents contents;
    std::thread other([&] {
      contents = backup_to(**store, file + std::to_string(round));
      done = true;
    });
    uint64_t during = 0;
    for (; !done; ++id, ++during) REQUIRE((*store)->commit(make_grant(id)).ok());
    other.join();
    CHECK(during > 10);
    const Result<Image> image = load_store(file + std::to_string(round));
    REQUIRE_MESSAGE(image.ok(), image.error().to_string());
    CHECK(image->leases.size() >= before);
    expect_rows(*image, contents.leases, true);
  }
  expect_rows(*(*store)->load(), id - 1, false);
  store->reset();
  expect_rows(*load_store(path), id - 1, false);
}

TEST_CASE("Store backup: a damaged one is refused, or holds what it held") {
  TemporaryFolder folder;
  const std::string file = folder.file("backup.db"), copy = folder.file("copy.db");
  make_backup(folder.file("state.db"), file, 40);
  const std::string bytes = read_bytes(file);
  const auto inspect = [&](const std::string& damaged) {
    remove_database(copy);
    write_bytes(copy, damaged);
    return inspect_copy(copy, {});
  };
  REQUIRE(inspect(bytes).ok());
  size_t refused = 0;
  for (size_t at = 0; at < bytes.size(); at += 97) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    const auto contents = inspect(damaged);
    CAPTURE(at);
    if (!contents.ok()) {
      ++refused;
    } else {
      CHECK(contents->leases == 40);  // a byte that nothing reads; every row and the seal were checked
      CHECK(contents->sequence == 41);
    }
  }
  CHECK(refused > bytes.size() / 97 / 8);
  for (const size_t keep :
       {size_t{0}, size_t{50}, size_t{4096}, bytes.size() / 2, bytes.size() - 4096, bytes.size() - 1}) {
    CAPTURE(keep);
    CHECK(!inspect(bytes.substr(0, keep)).ok());
  }
}

TEST_CASE("Store backup: the database of a store that was open is no backup") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db"), copy = folder.file("copy.db");
  auto store = open_small_store(path);
  REQUIRE((*store)->commit(make_pool()).ok());
  REQUIRE((*store)->audit({}).ok());  // folds
  std::filesystem::copy_file(path, copy);
  const auto contents = inspect_copy(copy, {});
  REQUIRE(!contents.ok());
  CHECK(contents.error().code == ErrorCode::corrupt);
  CHECK(contents.error().detail.find("terrace state backup") != std::string::npos);
}

TEST_CASE("Store backup: a crash or a full disk in it leaves the store as it was") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  for (const char* specification : {"backup_before_copy=crash", "backup_after_copy=crash",
                                    "backup_before_copy=error:ENOSPC", "backup_after_copy=error:EIO"}) {
    CAPTURE(specification);
    TemporaryFolder folder;
    const std::string path = folder.file("state.db");
    make_closed_store(path, 5);
    const int status = run_in_child([&] {
      auto store = open_small_store(path);
      if (!store.ok() || !arm_failpoints(specification).ok()) ::_exit(10);
      if ((*store)->backup().ok()) ::_exit(11);
      if (!(*store)->commit(make_grant(6)).ok()) ::_exit(12);
      store->reset();
    });
    const bool crash = std::string(specification).find("crash") != std::string::npos;
    CHECK((crash ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0));
    expect_rows(*load_store(path), crash ? 5 : 6, false);
    CHECK(!std::filesystem::exists(path + "-backup"));
  }
}

TEST_CASE("Store: a copy is known as older by the mark beside the memory, until that begins anew") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db"), copy = folder.file("copy.db"),
                    mark = folder.file("store-mark");
  make_closed_store(path, 3);
  std::filesystem::copy_file(path, copy);
  {
    auto store = open_small_store(path);
    REQUIRE(!(*store)->older_than_mark(mark));
    REQUIRE((*store)->mark_also(mark).ok());
    REQUIRE((*store)->commit(make_grant(4)).ok());
  }
  CHECK(!(*open_small_store(path))->older_than_mark(mark));
  CHECK(!(*open_small_store(folder.file("other.db")))->older_than_mark(mark));
  auto store = open_small_store(copy);
  CHECK((*store)->older_than_mark(mark));
  REQUIRE((*store)->mark_also(mark).ok());
  CHECK(!(*store)->older_than_mark(mark));
  store->reset();
  CHECK((*open_small_store(path))->older_than_mark(mark) ==
        false);  // as many commits as the mark knows, or more
  write_bytes(mark, "nonsense");
  CHECK(!(*open_small_store(path))->older_than_mark(mark));
}

TEST_CASE("Store restore: the backup takes the store's place, whose files are set aside whole") {
  TemporaryFolder folder, aside;
  const std::string path = folder.file("state.db"), file = aside.file("backup.db");
  make_backup(path, file, 3);
  {
    auto store = open_small_store(path);
    for (uint64_t id = 4; id <= 6; ++id) REQUIRE((*store)->commit(make_grant(id)).ok());
    const auto busy = restore_store(file, path);
    REQUIRE(!busy.ok());
    CHECK(busy.error().code == ErrorCode::busy);
  }
  std::vector<std::string> folders;
  for (int round = 0; round < 2; ++round) {
    const auto restored = restore_store(file, path);
    REQUIRE_MESSAGE(restored.ok(), restored.error().to_string());
    CHECK(restored->contents.leases == 3);
    REQUIRE(!restored->set_aside.empty());
    folders.push_back(restored->set_aside);
    expect_rows(*load_store(path), 3, true);
  }
  CHECK(folders[0] != folders[1]);
  expect_rows(*load_store(folders[0] + "/state.db"), 6, false);
  expect_rows(*load_store(folders[1] + "/state.db"), 3, true);
  // A commit without the word makes it an ordinary store.
  {
    auto store = open_small_store(path);
    REQUIRE((*store)->commit(make_grant(4)).ok());
  }
  expect_rows(*load_store(path), 4, false);
}

TEST_CASE("Store restore: where there was nothing, and where the mark was damaged") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db"), file = folder.file("backup.db");
  make_backup(path, file, 3);
  const auto elsewhere = restore_store(file, folder.file("new/folder/state.db"));
  REQUIRE_MESSAGE(elsewhere.ok(), elsewhere.error().to_string());
  CHECK(elsewhere->set_aside.empty());
  expect_rows(*load_store(folder.file("new/folder/state.db")), 3, true);

  write_bytes(path + "-mark", "nonsense");
  REQUIRE(!load_store(path).ok());
  REQUIRE(restore_store(file, path).ok());
  expect_rows(*load_store(path), 3, true);
}

TEST_CASE("Store restore: a file that cannot be used changes nothing") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db"), file = folder.file("backup.db");
  make_backup(path, file, 3);
  const std::string bytes = read_bytes(file), before = read_bytes(path);
  for (const std::string& wrong : {std::string(), std::string("hello"), bytes.substr(0, bytes.size() - 4096)}) {
    write_bytes(file, wrong);
    const auto names = names_in(folder.path());
    const auto refused = restore_store(file, path);
    REQUIRE(!refused.ok());
    CHECK_MESSAGE(refused.error().detail.find(file) != std::string::npos, refused.error().to_string());
    CHECK(names_in(folder.path()) == names);
    CHECK(read_bytes(path) == before);
  }
  expect_rows(*load_store(path), 3, false);
}

TEST_CASE("Store restore: a crash anywhere leaves the old store whole, or the restored one") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  for (const char* point :
       {"restore_before_switch", "restore_after_switch", "restore_after_aside", "restore_after_place"}) {
    for (const bool again : {false, true}) {
      CAPTURE(point);
      CAPTURE(again);
      TemporaryFolder folder, aside;
      const std::string path = folder.file("state.db"), file = aside.file("backup.db");
      make_backup(path, file, 3);
      run_in_child([&] {  // newer commits, some in the journal alone
        auto store = open_small_store(path);
        for (uint64_t id = 4; id <= 6; ++id)
          if (!store.ok() || !(*store)->commit(make_grant(id)).ok()) ::_exit(1);
        ::kill(::getpid(), SIGKILL);
      });
      const int status = run_in_child([&] {
        if (arm_failpoints(std::string(point) + "=crash").ok()) (void)restore_store(file, path);
      });
      REQUIRE(WIFSIGNALED(status));
      const bool old = std::string(point) == "restore_before_switch";
      if (again) REQUIRE(restore_store(file, path).ok());
      const Result<Image> image = load_store(path);
      REQUIRE_MESSAGE(image.ok(), image.error().to_string());
      expect_rows(*image, old && !again ? 6 : 3, !old || again);
      // What was there is in a folder, whole.
      bool found = false;
      for (const std::string& name : names_in(folder.path())) {
        if (name.find(".before-restore-") == std::string::npos) continue;
        const Result<Image> kept = load_store(folder.file(name) + "/state.db");
        REQUIRE_MESSAGE(kept.ok(), kept.error().to_string());
        found |= kept->leases.size() == 6;
      }
      CHECK(found == (!old || again));
    }
  }
}

// --- the names of further hosts --------------------------------------------------------------------

namespace {

constexpr const char* hosts_then = "hosta\nhostb\n!hostc\n";
constexpr const char* hosts_now = "hosta\nhostc\n";

// A backup that has hosts_then, beside a store that has hosts_now by now.
void make_backup_with_hosts(const std::string& path, const std::string& file) {
  write_bytes(path + ".hosts", hosts_then);
  make_backup(path, file, 3);
  write_bytes(path + ".hosts", hosts_now);
}

}  // namespace

TEST_CASE("Store backup: the names of further hosts are in it, and come back with it") {
  TemporaryFolder folder;
  const std::string file = folder.file("backup.db");
  std::string path = folder.file("state.db");
  make_backup_with_hosts(path, file);
  CHECK(*read_hosts(file)->text == hosts_then);
  expect_rows(*load_store(file), 3, true);  // also where it is put in a store's place by hand
  path = folder.file("second.db");
  make_backup_with_hosts(path, file);

  const auto restored = restore_store(file, path);
  REQUIRE_MESSAGE(restored.ok(), restored.error().to_string());
  CHECK(read_bytes(path + ".hosts") == hosts_then);
  CHECK(read_bytes(restored->set_aside + "/second.db.hosts") == hosts_now);
  CHECK(!std::filesystem::exists(path + "-restored-hosts"));
  expect_rows(*load_store(path), 3, true);

  const auto elsewhere = restore_store(file, folder.file("new/state.db"));
  REQUIRE_MESSAGE(elsewhere.ok(), elsewhere.error().to_string());
  CHECK(read_bytes(folder.file("new/state.db.hosts")) == hosts_then);
}

TEST_CASE("Store restore: a backup of before, without the names of hosts, leaves those that are there") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db"), file = folder.file("backup.db");
  make_backup(path, file, 3);
  CHECK(!read_hosts(file)->text.has_value());
  write_bytes(path + ".hosts", hosts_now);
  write_bytes(path + "-restored-hosts", hosts_then);  // of a restore that was never decided
  REQUIRE(restore_store(file, path).ok());
  CHECK(read_bytes(path + ".hosts") == hosts_now);
  CHECK(!std::filesystem::exists(path + "-restored-hosts"));
}

TEST_CASE("Store backup: a damaged list of hosts is refused, whichever byte it is") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db"), file = folder.file("backup.db"),
                    copy = folder.file("copy.db");
  make_backup_with_hosts(path, file);
  const std::string bytes = read_bytes(file);
  for (size_t at = bytes.size() - 4096; at < bytes.size(); at += at < bytes.size() - 64 ? 61 : 1) {
    CAPTURE(at);
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    remove_database(copy);
    write_bytes(copy, damaged);
    CHECK(inspect_copy(copy, {}).error().code == ErrorCode::corrupt);
    write_bytes(file, damaged);
    CHECK(!restore_store(file, path).ok());
  }
  CHECK(read_bytes(path + ".hosts") == hosts_now);
  expect_rows(*load_store(path), 3, false);
}

TEST_CASE("Store restore: rows and names of hosts change together, wherever it is cut off") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  for (const char* point :
       {"restore_before_switch", "restore_after_switch", "restore_after_aside", "restore_after_place"}) {
    CAPTURE(point);
    TemporaryFolder folder, aside;
    const std::string path = folder.file("state.db"), file = aside.file("backup.db");
    make_backup_with_hosts(path, file);
    const int status = run_in_child([&] {
      if (!arm_failpoints(std::string(point) + "=crash").ok()) ::_exit(10);
      (void)restore_store(file, path);
    });
    CHECK(WIFSIGNALED(status));
    const bool decided = std::string(point) != "restore_before_switch";
    for (int round = 0; round < 2; ++round) {
      expect_rows(*load_store(path), 3, decided);
      CHECK(read_bytes(path + ".hosts") == (decided ? hosts_then : hosts_now));
    }
  }
}
