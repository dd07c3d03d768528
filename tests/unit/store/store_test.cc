// SPDX-License-Identifier: Apache-2.0
// What the store promises while nothing is damaged: commits come back, refusals change nothing, one opener.
#include "daemon/store/store.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>

#include <chrono>
#include <thread>

#include "core/base/failpoint.h"
#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "tests/support/skip.h"
#include "tests/unit/store/store_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

TEST_CASE("Store: a fresh store is empty, and stays so when opened again") {
  TemporaryFolder folder;
  for (int round = 0; round < 2; ++round) {
    const Result<Image> image = load_store(folder.file("state.db"));
    REQUIRE_MESSAGE(image.ok(), image.error().to_string());
    CHECK(same(*image, Image{}));
  }
  struct stat status {};
  REQUIRE(::stat(folder.file("state.db").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("Store: missing parent folders are made, private") {
  TemporaryFolder folder;
  REQUIRE(load_store(folder.file("a/b/state.db")).ok());
  struct stat status {};
  REQUIRE(::stat(folder.file("a/b").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
}

TEST_CASE("Store: every field of every row comes back") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  Image expected;
  {
    auto store = open_small_store(path);
    REQUIRE(store.ok());
    REQUIRE((*store)->commit(make_pool()).ok());
    Delta delta = make_grant(7, limits::lease_extents_max);
    LeaseRow odd = make_lease(8, 1);
    odd.label.clear();
    odd.reason = std::string(limits::reason_bytes_max, 'r');
    odd.ttl_ns = odd.expiry_ns = 0;
    odd.deadline_ns = ~uint64_t{0};
    odd.phase = LeasePhase::quarantined;
    odd.mode = LeaseMode::exclusive;
    delta.leases[odd.id] = odd;
    LeaseRow moving = make_lease(9, 2);
    moving.phase = LeasePhase::transferring;
    moving.cause = LeaseCause::device_lost;
    moving.movable = true;
    moving.target_bytes = 12345;
    moving.next_object = "lease-9-next";
    delta.leases[moving.id] = moving;
    DeviceRow failed = make_device(1);
    failed.state = DeviceState::failed;
    delta.devices[failed.id] = failed;
    delta.pools[PoolId{2}] = PoolRow{.id = PoolId{2},
                                     .name = "wide",
                                     .placement = Placement::striped,
                                     .stripe_bytes = 4 * limits::granule_bytes};
    delta.quotas["alice"] = QuotaRow{.tenant = "alice", .bytes_max = ~uint64_t{0}, .leases_max = 3};
    delta.quotas["*"] = QuotaRow{.tenant = "*", .bytes_max = 0, .leases_max = 100};
    delta.reservations[ReservationId{4}] = ReservationRow{.id = ReservationId{4},
                                                          .pool = PoolId{2},
                                                          .tenant = "bob",
                                                          .bytes = 7 * gib,
                                                          .ttl_ns = 5,
                                                          .expiry_ns = 6};
    delta.meta->next_reservation = 5;
    REQUIRE((*store)->commit(delta).ok());
    expected.meta = *delta.meta;
    expected.devices = {*delta.devices[DeviceId{1}], make_device(2)};
    expected.pools = {PoolRow{.id = PoolId{1}, .name = "pool-1"}, *delta.pools[PoolId{2}]};
    expected.leases = {*delta.leases[LeaseId{7}], odd, *delta.leases[LeaseId{9}]};
    expected.quotas = {*delta.quotas["*"], *delta.quotas["alice"]};
    expected.reservations = {*delta.reservations[ReservationId{4}]};
    const Result<Image> now = (*store)->load();
    REQUIRE(now.ok());
    CHECK(same(*now, expected));
  }
  const Result<Image> image = load_store(path);
  REQUIRE_MESSAGE(image.ok(), image.error().to_string());
  CHECK(same(*image, expected));
}

TEST_CASE("Store: random deltas give what a map of rows gives, across reopenings and crashes") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  StoreOptions options;
  options.checkpoint_frames = 8;
  Prng prng(20240607);
  std::map<LeaseId, LeaseRow> model;
  auto store = open_small_store(path, options);
  REQUIRE(store.ok());
  for (int step = 0; step < 600; ++step) {
    Delta delta;
    for (uint64_t n = prng.between(1, 4); n > 0; --n) {
      const LeaseId id{prng.between(1, 40)};
      if (prng.chance(1, 3)) {
        delta.leases[id] = std::nullopt;
      } else {
        LeaseRow row = make_lease(id.value, prng.between(1, 20));
        row.phase = static_cast<LeasePhase>(prng.between(1, 5));
        row.expiry_ns = prng.next();
        delta.leases[id] = row;
      }
    }
    REQUIRE((*store)->commit(delta).ok());
    for (const auto& [id, row] : delta.leases) {
      if (row.has_value()) {
        model[id] = *row;
      } else {
        model.erase(id);
      }
    }
    if (!prng.chance(1, 25)) continue;
    if (prng.chance(1, 2)) {
      store->reset();
      store = open_small_store(path, options);
      REQUIRE_MESSAGE(store.ok(), store.error().to_string());
    }
    const Result<Image> image = (*store)->load();
    REQUIRE_MESSAGE(image.ok(), image.error().to_string());
    std::vector<LeaseRow> expected;
    for (const auto& [id, row] : model) expected.push_back(row);
    REQUIRE(image->leases == expected);
  }
}

TEST_CASE("Store: a row that could not be loaded again is refused and changes nothing") {
  TemporaryFolder folder;
  auto store = open_small_store(folder.file("state.db"));
  REQUIRE(store.ok());
  REQUIRE((*store)->commit(make_grant(1)).ok());
  std::vector<LeaseRow> bad(10, make_lease(2));
  bad[0].phase = LeasePhase::pending;
  bad[1].tenant = std::string(limits::name_bytes_max + 1, 'x');
  bad[2].label = std::string(limits::label_bytes_max + 1, 'x');
  bad[3].extents.clear();
  bad[4].extents.resize(limits::lease_extents_max + 1, {DeviceId{1}, 0, 1});
  bad[5].mode = static_cast<LeaseMode>(3);
  bad[6].id = LeaseId{3};
  bad[7].phase = LeasePhase::waiting;
  bad[8].cause = static_cast<LeaseCause>(99);
  bad[9].next_object = std::string(limits::name_bytes_max + 1, 'x');
  for (const LeaseRow& row : bad) {
    Delta delta;
    delta.leases[LeaseId{2}] = row;
    const Status refused = (*store)->commit(delta);
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == ErrorCode::internal);
  }
  CHECK((*store)->commit(make_grant(4)).ok());
  CHECK((*store)->load()->leases.size() == 2);
}

TEST_CASE("Store: the lock of one that has just been killed is waited for") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  REQUIRE(load_store(path).ok());
  UniqueFd left(::open((path + "-mark").c_str(), O_RDWR | O_CLOEXEC));  // as the kernel keeps it for a moment
  REQUIRE(::flock(left.get(), LOCK_EX | LOCK_NB) == 0);
  std::thread later([&left] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    left.reset();
  });
  const Result<Image> image = load_store(path);
  later.join();
  CHECK_MESSAGE(image.ok(), image.error().to_string());
}

TEST_CASE("Store: a second opener is refused as busy, naming the file") {
  TemporaryFolder folder;
  const std::string path = folder.file("state.db");
  auto first = open_small_store(path);
  REQUIRE(first.ok());
  REQUIRE((*first)->commit(make_grant(1)).ok());

  SUBCASE("in the same process") {
    auto second = open_small_store(path);
    REQUIRE(!second.ok());
    CHECK(second.error().code == ErrorCode::busy);
    CHECK(second.error().detail.find(path) != std::string::npos);
  }
  SUBCASE("in another process, even when the mark was removed behind its back") {
    std::filesystem::remove(path + "-mark");
    std::filesystem::remove(path + "-wal");  // else the missing mark would be noticed first
    int codes[2];
    REQUIRE(::pipe(codes) == 0);
    run_in_child([&] {
      auto second = open_small_store(path);
      const auto code = static_cast<unsigned char>(second.ok() ? ErrorCode::ok : second.error().code);
      [[maybe_unused]] const ssize_t n = ::write(codes[1], &code, 1);
    });
    unsigned char code = 0;
    REQUIRE(::read(codes[0], &code, 1) == 1);
    CHECK(static_cast<ErrorCode>(code) == ErrorCode::busy);
    ::close(codes[0]);
    ::close(codes[1]);
  }
  SUBCASE("and the first one goes on undisturbed") {
    CHECK((*first)->commit(make_grant(2)).ok());
    CHECK((*first)->load()->leases.size() == 2);
  }
}

TEST_CASE("Store: kill -9 in the middle of commits leaves exactly the acknowledged prefix") {
  TemporaryFolder folder("/tmp");
  Prng prng(7);
  uint64_t total = 0;
  for (int round = 0; round < 12; ++round) {
    const std::string path = folder.file("state-" + std::to_string(round) + ".db");
    int acknowledged[2];
    REQUIRE(::pipe(acknowledged) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::close(acknowledged[0]);
      StoreOptions options;
      options.checkpoint_frames = 16;
      auto store = open_small_store(path, options);
      if (!store.ok()) ::_exit(1);
      for (uint64_t id = 1;; ++id) {
        if (!(*store)->commit(make_grant(id)).ok()) ::_exit(1);
        if (::write(acknowledged[1], &id, sizeof(id)) != sizeof(id)) ::_exit(1);
      }
    }
    ::close(acknowledged[1]);
    const uint64_t kill_after = prng.between(1, 60);
    uint64_t last = 0;
    for (uint64_t id = 0; last < kill_after && ::read(acknowledged[0], &id, sizeof(id)) == sizeof(id);)
      last = id;
    ::usleep(static_cast<useconds_t>(prng.below(3000)));
    ::kill(child, SIGKILL);
    for (uint64_t id = 0; ::read(acknowledged[0], &id, sizeof(id)) == sizeof(id);) last = id;
    int status = 0;
    ::waitpid(child, &status, 0);
    ::close(acknowledged[0]);
    REQUIRE(WIFSIGNALED(status));

    const Result<Image> image = load_store(path);
    REQUIRE_MESSAGE(image.ok(), image.error().to_string());
    // The commit that was under way when the signal came may be there: unacknowledged, and whole.
    REQUIRE(image->leases.size() >= last);
    REQUIRE(image->leases.size() <= last + 1);
    for (size_t i = 0; i < image->leases.size(); ++i) REQUIRE(image->leases[i] == make_lease(i + 1));
    CHECK(image->meta.next_lease == image->leases.size() + 1);
    total += last;
  }
  MESSAGE("acknowledged commits before a kill: " << total);
}

TEST_CASE("Store: a full disk refuses the commit whole, and the store goes on") {
  TemporaryFolder folder;
  const std::string mount_point = folder.file("small");
  REQUIRE(::mkdir(mount_point.c_str(), 0700) == 0);
  if (::mount("terrace-test", mount_point.c_str(), "tmpfs", 0, "size=1m") != 0) {
    TERRACE_SKIP(mount, "mounting a small tmpfs needs root");
    return;
  }
  {
    const std::string path = mount_point + "/state.db";
    StoreOptions options;
    options.checkpoint_frames = 40;
    auto store = open_small_store(path, options);
    REQUIRE(store.ok());
    uint64_t id = 1;
    Status status;
    for (; id < 10'000 && (status = (*store)->commit(make_grant(id, 200))).ok(); ++id) continue;
    REQUIRE(!status.ok());
    CHECK_MESSAGE(status.error().code == ErrorCode::capacity_exhausted, status.error().to_string());
    REQUIRE(id > 10);

    Result<Image> image = (*store)->load();
    REQUIRE(image.ok());
    CHECK(image->leases.size() == id - 1);
    CHECK(image->meta.next_lease == id);
    // Refused again and again, still whole.
    for (int i = 0; i < 5; ++i) CHECK(!(*store)->commit(make_grant(id, 200)).ok());
    REQUIRE(::mount("terrace-test", mount_point.c_str(), "tmpfs", MS_REMOUNT, "size=4m") == 0);
    CHECK((*store)->commit(make_grant(id, 200)).ok());
    store->reset();
    image = load_store(path);
    REQUIRE_MESSAGE(image.ok(), image.error().to_string());
    CHECK(image->leases.size() == id);
  }
  CHECK(::umount(mount_point.c_str()) == 0);
}

TEST_CASE("Store: a disk that is full at the first start leaves nothing half-made") {
  TemporaryFolder folder;
  const std::string mount_point = folder.file("small");
  REQUIRE(::mkdir(mount_point.c_str(), 0700) == 0);
  if (::mount("terrace-test", mount_point.c_str(), "tmpfs", 0, "size=16k") != 0) {
    TERRACE_SKIP(mount, "mounting a small tmpfs needs root");
    return;
  }
  const Result<Image> refused = load_store(mount_point + "/state.db");
  REQUIRE(!refused.ok());
  CHECK_MESSAGE(refused.error().code == ErrorCode::capacity_exhausted, refused.error().to_string());
  CHECK(!std::filesystem::exists(mount_point + "/state.db"));
  // Room for the database, not for the journal: refused too, and nothing is lost by it.
  REQUIRE(::mount("terrace-test", mount_point.c_str(), "tmpfs", MS_REMOUNT, "size=160k") == 0);
  const Result<Image> again = load_store(mount_point + "/state.db");
  REQUIRE(!again.ok());
  CHECK_MESSAGE(again.error().code == ErrorCode::capacity_exhausted, again.error().to_string());
  CHECK(again.error().detail.find("journal") != std::string::npos);
  REQUIRE(::mount("terrace-test", mount_point.c_str(), "tmpfs", MS_REMOUNT, "size=1m") == 0);
  CHECK(load_store(mount_point + "/state.db").ok());
  CHECK(::umount(mount_point.c_str()) == 0);
}

TEST_CASE("Store: each failpoint reports its errno with the promised outcome") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  struct Expectation {
    const char* specification;
    ErrorCode code;
    size_t leases_after;
    bool goes_on;
  };
  const Expectation expectations[] = {
      {"journal_before_append=error:ENOSPC@2", ErrorCode::capacity_exhausted, 1, true},
      {"journal_before_append=error:EIO@2", ErrorCode::io_error, 1, false},
      {"journal_after_append=error:EIO@2", ErrorCode::io_error, 2, false},
      {"journal_after_append=error:ENOSPC@2", ErrorCode::io_error, 2, false},
      {"journal_after_sync=error:EIO@2", ErrorCode::io_error, 2, false},
      {"journal_after_sync=error:ENOSPC@2", ErrorCode::io_error, 2, false},
  };
  for (const Expectation& expected : expectations) {
    CAPTURE(std::string(expected.specification));
    TemporaryFolder folder;
    const std::string path = folder.file("state.db");
    // In a child: failpoints stay armed for the life of a process.
    const pid_t child = ::fork();
    if (child == 0) {
      auto store = open_small_store(path);
      if (!store.ok() || !arm_failpoints(expected.specification).ok()) ::_exit(10);
      if (!(*store)->commit(make_grant(1)).ok()) ::_exit(11);
      const Status refused = (*store)->commit(make_grant(2));
      if (refused.ok() || refused.error().code != expected.code) ::_exit(12);
      if (!expected.goes_on) {
        const Status after = (*store)->commit(make_grant(3));
        if (after.ok() || after.error().code != ErrorCode::io_error) ::_exit(13);
      }
      const Result<Image> image = (*store)->load();
      if (!image.ok() || image->leases.size() != expected.leases_after) ::_exit(14);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    const Result<Image> image = load_store(path);
    REQUIRE_MESSAGE(image.ok(), image.error().to_string());
    CHECK(image->leases.size() == expected.leases_after);
  }
}
