// SPDX-License-Identifier: Apache-2.0
// Growing and shrinking an object: reserved or refused, done again, against its holder and against a fence.
#include <doctest/doctest.h>

#include <cstring>
#include <thread>

#include "core/base/failpoint.h"
#include "tests/support/skip.h"
#include "tests/unit/memory/backend_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

TEST_CASE("EmulatedBackend: a grown object keeps its bytes, and what came is reserved and zero") {
  Pool pool;
  REQUIRE(pool.backend->carve("lease-1", granule, granules(1)).ok());
  auto fd = pool.backend->open("lease-1", ObjectAccess::read_write);
  REQUIRE(fd.ok());
  std::byte* at = map(fd->get(), 3 * granule);
  REQUIRE(at != nullptr);
  std::memset(at, 0x5a, granule);
  for (int again = 0; again < 2; ++again) {  // done again is no error
    const Status grown = pool.backend->resize("lease-1", granule, 3 * granule, granules(3));
    REQUIRE_MESSAGE(grown.ok(), grown.error().to_string());
    CHECK(pool.backend->usage("lease-1")->bytes == 3 * granule);
    CHECK(pool.backend->usage("lease-1")->allocated == 3 * granule);
  }
  CHECK(at[0] == std::byte{0x5a});
  CHECK(at[granule - 1] == std::byte{0x5a});
  CHECK(all_zero(at + granule, 2 * granule));  // the old mapping reaches it
  ::munmap(at, 3 * granule);
}

TEST_CASE("EmulatedBackend: a shrunk object's tail gives SIGBUS and its memory is free") {
  Pool pool;
  REQUIRE(pool.backend->carve("lease-1", 3 * granule, granules(3)).ok());
  auto fd = pool.backend->open("lease-1", ObjectAccess::read_write);
  REQUIRE(fd.ok());
  const auto touch = [&](uint64_t offset) {
    return run_in_child([&fd, offset] {
      volatile std::byte* at = map(fd->get(), 3 * granule);
      at[offset] = std::byte{1};
      return 0;
    });
  };
  CHECK(exited_with(touch(granule), 0));
  for (int again = 0; again < 2; ++again) {
    REQUIRE(pool.backend->resize("lease-1", 3 * granule, granule, granules(1)).ok());
    CHECK(pool.backend->usage("lease-1")->allocated == granule);
  }
  CHECK(exited_with(touch(granule - 1), 0));
  CHECK(WIFSIGNALED(touch(granule)));
}

TEST_CASE("EmulatedBackend: what a holder made of its object's size") {
  Pool pool;
  REQUIRE(pool.backend->carve("lease-1", 2 * granule, granules(2)).ok());
  auto held = pool.backend->open("lease-1", ObjectAccess::read_write);
  REQUIRE(held.ok());
  const auto resize = [&](uint64_t from, uint64_t to) {
    return pool.backend->resize("lease-1", from * granule, to * granule, granules(to));
  };
  SUBCASE("recovery cuts one back that was grown to anything") {
    REQUIRE(::ftruncate(held->get(), 7 * granule + 123) == 0);
    CHECK(pool.backend->resize("lease-1", 7 * granule + 123, 2 * granule, granules(2)).ok());
    CHECK(pool.backend->usage("lease-1")->bytes == 2 * granule);
    CHECK(pool.backend->usage("lease-1")->allocated == 2 * granule);
  }
  SUBCASE("one that was grown already is grown to what the lease gets, reserved") {
    for (const uint64_t grown : {granule * 5 / 2, 3 * granule, 9 * granule}) {
      REQUIRE(::ftruncate(held->get(), off_t(grown)) == 0);
      CHECK(resize(2, 3).ok());
      CHECK(pool.backend->usage("lease-1")->bytes == 3 * granule);
      CHECK(pool.backend->usage("lease-1")->allocated == 3 * granule);
      REQUIRE(resize(3, 2).ok());
    }
  }
  SUBCASE("one that was shrunk is not filled up") {
    REQUIRE(::ftruncate(held->get(), off_t(granule)) == 0);
    CHECK(resize(2, 3).error().code == ErrorCode::busy);
    CHECK(pool.backend->usage("lease-1")->bytes == granule);
  }
}

TEST_CASE("EmulatedBackend: a fenced object is never made alive again") {
  Pool pool;
  REQUIRE(pool.backend->carve("lease-1", 2 * granule, granules(2)).ok());
  REQUIRE(pool.backend->fence("lease-1").ok());
  for (const uint64_t to : {uint64_t{1}, uint64_t{2}, uint64_t{3}}) {
    CHECK(pool.backend->resize("lease-1", 2 * granule, to * granule, granules(to)).error().code ==
          ErrorCode::busy);
    CHECK(pool.backend->usage("lease-1")->bytes == 0);
    CHECK(pool.backend->usage("lease-1")->allocated == 0);
  }
  CHECK(pool.backend->resize("lease-1", 0, granule, granules(1)).error().code == ErrorCode::busy);
  CHECK(pool.backend->resize("lease-2", granule, 2 * granule, granules(2)).error().code ==
        ErrorCode::not_found);
  CHECK(pool.backend->resize("lease-1", granule, 2 * granule, granules(1)).error().code ==
        ErrorCode::invalid_argument);
}

TEST_CASE("EmulatedBackend: a fence in the middle of a resize wins") {
  Pool pool;
  for (int round = 0; round < 50; ++round) {
    const std::string name = "lease-" + std::to_string(round);
    REQUIRE(pool.backend->carve(name, granule, granules(1)).ok());
    std::thread resizing([&] {
      for (int i = 0; i < 4; ++i) {
        (void)pool.backend->resize(name, granule, 2 * granule, granules(2));
        (void)pool.backend->resize(name, 2 * granule, granule, granules(1));
      }
    });
    CHECK(pool.backend->fence(name).ok());
    CHECK(pool.backend->usage(name)->bytes == 0);
    resizing.join();
    CHECK(pool.backend->usage(name)->bytes == 0);
    CHECK(pool.backend->usage(name)->allocated == 0);
    CHECK(pool.backend->scrub(name).ok());
  }
}

TEST_CASE("EmulatedBackend: more than there is leaves the object as it was") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(mount, "only a mount of our own has a size that a test may exhaust");
    return;
  }
  Pool pool;
  REQUIRE(pool.backend->carve("lease-1", granule, granules(1)).ok());
  const Status refused = pool.backend->resize("lease-1", granule, 512 * granule, granules(512));
  REQUIRE(!refused.ok());
  CHECK_MESSAGE(refused.error().code == ErrorCode::capacity_exhausted, refused.error().to_string());
  CHECK(pool.backend->usage("lease-1")->bytes == granule);
  CHECK(pool.backend->usage("lease-1")->allocated == granule);
  CHECK(pool.backend->carve("lease-2", 31 * granule, granules(31)).ok());
}

TEST_CASE("EmulatedBackend: a crash at each failpoint of a resize is fixed by doing it again") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  for (const char* failpoint : {"resize_before_apply", "resize_after_apply"}) {
    for (const uint64_t after : {3 * granule, granule}) {
      CAPTURE(failpoint);
      CAPTURE(after);
      Pool pool;
      const uint64_t before = 4 * granule - after;
      REQUIRE(pool.backend->carve("lease-1", before, granules(before / granule)).ok());
      const auto resize = [&](const char* action) {
        return run_in_child([&] {
          if (!arm_failpoints(std::string(failpoint) + "=" + action).ok()) return 1;
          return pool.backend->resize("lease-1", before, after, granules(after / granule)).ok() ? 0 : 10;
        });
      };
      CHECK(exited_with(resize("error:EIO"), 10));
      if (after > before) CHECK(pool.backend->usage("lease-1")->bytes == before);
      CHECK(WIFSIGNALED(resize("crash")));
      CHECK(pool.backend->resize("lease-1", before, after, granules(after / granule)).ok());
      CHECK(pool.backend->usage("lease-1")->bytes == after);
      CHECK(pool.backend->usage("lease-1")->allocated == after);
    }
  }
}
