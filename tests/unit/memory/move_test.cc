// SPDX-License-Identifier: Apache-2.0
// Bytes that go from one object to another: whole after a crash anywhere, whatever the old holder does, and
// with no more memory than a piece.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "core/base/failpoint.h"
#include "tests/support/skip.h"
#include "tests/unit/memory/backend_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

constexpr uint64_t count = 20;  // granules: more than two pieces
constexpr uint64_t bytes = count * granule;

// A lease whose every page differs, but for a hole of two granules that nobody wrote.
UniqueFd carve_filled(Pool& pool, const std::string& name) {
  REQUIRE(pool.backend->carve(name, bytes, granules(count)).ok());
  auto fd = pool.backend->open(name, ObjectAccess::read_write);
  REQUIRE(fd.ok());
  auto* at = reinterpret_cast<uint64_t*>(map(fd->get(), bytes));
  for (uint64_t i = 0; i < bytes / 8; ++i)
    if (i * 8 < 4 * granule || i * 8 >= 6 * granule) at[i] = i + 1;
  ::munmap(at, bytes);
  return std::move(fd).value();
}

// The words from `first_granule` on that are not what carve_filled wrote.
uint64_t wrong_words(Pool& pool, const std::string& name, uint64_t first_granule = 0) {
  auto fd = pool.backend->open(name, ObjectAccess::read_only);
  REQUIRE(fd.ok());
  const auto* at = reinterpret_cast<uint64_t*>(map(fd->get(), bytes, PROT_READ));
  REQUIRE(at != nullptr);
  uint64_t wrong = 0;
  for (uint64_t i = first_granule * granule / 8; i < bytes / 8; ++i)
    wrong += at[i] != (i * 8 < 4 * granule || i * 8 >= 6 * granule ? i + 1 : 0);
  ::munmap(const_cast<uint64_t*>(at), bytes);
  return wrong;
}

void check_handed_over(Pool& pool) {
  const auto objects = pool.backend->list();
  REQUIRE(objects.ok());
  REQUIRE(objects->size() == 1);
  CHECK((*objects)[0].name == "new");
  CHECK((*objects)[0].bytes == bytes);
  CHECK((*objects)[0].allocated == bytes);
  CHECK(wrong_words(pool, "new") == 0);
}

}  // namespace

TEST_CASE("EmulatedBackend: a rebind keeps every byte and shuts the holder out") {
  Pool pool;
  const UniqueFd held = carve_filled(pool, "old");
  const Status done = pool.backend->rebind("old", "new", bytes, granules(count));
  REQUIRE_MESSAGE(done.ok(), done.error().to_string());
  check_handed_over(pool);
  CHECK(WIFSIGNALED(run_in_child([&held] {
    volatile std::byte* at = map(held.get(), bytes);
    return int(at[0]);
  })));
  // What the old holder writes from now on reaches nobody.
  REQUIRE(::ftruncate(held.get(), off_t(granule)) == 0);
  REQUIRE(::pwrite(held.get(), "late", 4, 0) == 4);
  CHECK(pool.backend->rebind("old", "new", bytes, granules(count)).ok());
  check_handed_over(pool);
  REQUIRE(pool.backend->fence("new").ok());
  CHECK(*pool.backend->scrub("new") == bytes);
}

TEST_CASE("EmulatedBackend: a rebind needs no more room than is left, and refuses to begin without any") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(mount, "only a mount of our own has a size that a test may exhaust");
    return;
  }
  Pool pool(Tmpfs::others);
  const UniqueFd held = carve_filled(pool, "old");
  const uint64_t room = 64 * mib + 64 * mib - bytes;  // the devices and the slack
  const auto fill = [&](uint64_t leave) {
    REQUIRE(
        pool.backend->carve("filler", (room - leave) / granule * granule, granules((room - leave) / granule))
            .ok());
    auto fd = pool.backend->open("filler", ObjectAccess::read_write);
    REQUIRE(fd.ok());
    const uint64_t end = room - leave;
    REQUIRE(::posix_fallocate(fd->get(), 0, off_t(end)) == 0);
  };
  SUBCASE("one granule") {
    fill(granule);
    const Status done = pool.backend->rebind("old", "new", bytes, granules(count));
    REQUIRE_MESSAGE(done.ok(), done.error().to_string());
  }
  SUBCASE("sixteen pages") {
    fill(64 * kib);
    const Status done = pool.backend->rebind("old", "new", bytes, granules(count));
    REQUIRE_MESSAGE(done.ok(), done.error().to_string());
  }
  SUBCASE("nothing, and a page later") {
    fill(0);
    const Status refused = pool.backend->rebind("old", "new", bytes, granules(count));
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == ErrorCode::capacity_exhausted);
    CHECK(wrong_words(pool, "old") == 0);
    REQUIRE(pool.backend->scrub("filler").ok());
    CHECK(pool.backend->rebind("old", "new", bytes, granules(count)).ok());
  }
  if (pool.backend->usage("filler").ok()) REQUIRE(pool.backend->scrub("filler").ok());
  check_handed_over(pool);
}

TEST_CASE("EmulatedBackend: a rebind cut off anywhere goes on, whatever the holder grew meanwhile") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  for (const char* point :
       {"rebind_before_copy=crash", "rebind_during_copy=crash@1", "rebind_during_copy=crash@2",
        "rebind_during_copy=crash@3", "rebind_after_copy=crash"}) {
    for (const bool hostile : {false, true}) {
      CAPTURE(point);
      CAPTURE(hostile);
      Pool pool(Tmpfs::others);
      const UniqueFd held = carve_filled(pool, "old");
      CHECK(WIFSIGNALED(run_in_child([&] {
        if (!arm_failpoints(point).ok()) return 1;
        return pool.backend->rebind("old", "new", bytes, granules(count)).ok() ? 2 : 3;
      })));
      struct stat status {};
      REQUIRE(::fstat(held.get(), &status) == 0);
      if (hostile && std::string(point) != "rebind_before_copy=crash") {
        // Cuts the tail that is in `new` already, and grows it again full of other bytes.
        const auto target = pool.backend->usage("new");
        REQUIRE(target.ok());
        const uint64_t missing = target->bytes - bytes;
        REQUIRE(missing <= bytes - granule);
        REQUIRE(::ftruncate(held.get(), off_t(missing)) == 0);
        REQUIRE(::ftruncate(held.get(), off_t(bytes)) == 0);
        std::byte* at = map(held.get(), bytes);
        std::memset(at + missing, 0x66, bytes - missing);
        ::munmap(at, bytes);
      }
      const Status done = pool.backend->rebind("old", "new", bytes, granules(count));
      REQUIRE_MESSAGE(done.ok(), done.error().to_string());
      check_handed_over(pool);
    }
  }
}

TEST_CASE("EmulatedBackend: an error in a rebind loses nothing") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  for (const char* point : {"rebind_before_copy", "rebind_during_copy", "rebind_after_copy"}) {
    Pool pool;
    const UniqueFd held = carve_filled(pool, "old");
    CHECK(exited_with(run_in_child([&] {
                        if (!arm_failpoints(std::string(point) + "=error:EIO").ok()) return 1;
                        return pool.backend->rebind("old", "new", bytes, granules(count)).ok() ? 2 : 0;
                      }),
                      0));
    CHECK(pool.backend->rebind("old", "new", bytes, granules(count)).ok());
    check_handed_over(pool);
  }
}

TEST_CASE("EmulatedBackend: bytes that are gone are said to be gone") {
  Pool pool;
  CHECK(pool.backend->rebind("old", "new", bytes, granules(count)).error().code == ErrorCode::corrupt);
  CHECK(pool.backend->list()->empty());
  const UniqueFd held = carve_filled(pool, "old");
  SUBCASE("its holder cut it") {
    REQUIRE(::ftruncate(held.get(), off_t(granule)) == 0);
  }
  SUBCASE("it was fenced") {
    REQUIRE(pool.backend->fence("old").ok());
  }
  CHECK(pool.backend->rebind("old", "new", bytes, granules(count)).error().code == ErrorCode::corrupt);
  CHECK(pool.backend->rebind("old", "old", bytes, granules(count)).error().code == ErrorCode::invalid_argument);
  CHECK(pool.backend->rebind("../x", "new", bytes, granules(count)).error().code ==
        ErrorCode::invalid_argument);
  CHECK(pool.backend->rebind("old", "new", bytes, granules(1)).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("EmulatedBackend: against a holder that cuts, grows and writes all the time, a rebind ends clean") {
  int handed_over = 0;
  int refused = 0;
  for (int round = 0; round < 8; ++round) {
    Pool pool(Tmpfs::others);
    const UniqueFd held = carve_filled(pool, "old");
    std::atomic<bool> stop = false;
    std::atomic<int> turns = 0;
    std::thread attacker([&] {
      const std::string junk(64 * kib, 'x');
      while (!stop) {
        // Only the last three granules lose their bytes: the others must arrive.
        (void)!::ftruncate(held.get(), off_t(bytes + granule * uint64_t(turns % 3)));
        (void)!::pwrite(held.get(), junk.data(), junk.size(), off_t(bytes - 3 * granule));
        ++turns;
      }
    });
    while (turns < 5) std::this_thread::yield();
    const Status done = pool.backend->rebind("old", "new", bytes, granules(count));
    stop = true;
    attacker.join();
    if (!done.ok()) {
      ++refused;
      CHECK_MESSAGE((done.error().code == ErrorCode::corrupt || done.error().code == ErrorCode::busy ||
                     done.error().code == ErrorCode::capacity_exhausted),
                    done.error().to_string());
      continue;
    }
    ++handed_over;
    auto next = pool.backend->open("new", ObjectAccess::read_only);
    REQUIRE(next.ok());
    const std::byte* at = map(next->get(), bytes, PROT_READ);
    const std::vector<std::byte> before(at, at + bytes);
    REQUIRE(::ftruncate(held.get(), off_t(bytes)) == 0);
    const std::string junk(bytes, 'y');
    REQUIRE(::pwrite(held.get(), junk.data(), junk.size(), 0) == ssize_t(bytes));
    CHECK(std::memcmp(at, before.data(), bytes) == 0);
    ::munmap(const_cast<std::byte*>(at), bytes);
    CHECK(pool.backend->usage("new")->bytes == bytes);
    CHECK(pool.backend->usage("old").error().code == ErrorCode::not_found);
  }
  MESSAGE("rebinds under attack: " << handed_over << " done, " << refused << " refused");
}

TEST_CASE("EmulatedBackend: a copy gives the other object the same bytes") {
  Pool pool;
  const UniqueFd held = carve_filled(pool, "old");
  REQUIRE(pool.backend->carve("new", bytes, granules(count)).ok());
  REQUIRE(pool.backend->copy("old", "new", bytes).ok());
  REQUIRE(pool.backend->copy("old", "new", bytes).ok());
  CHECK(wrong_words(pool, "old") == 0);
  CHECK(wrong_words(pool, "new") == 0);
  CHECK(pool.backend->copy("old", "absent", bytes).error().code == ErrorCode::not_found);
  CHECK(pool.backend->copy("old", "new", 2 * bytes).error().code == ErrorCode::corrupt);
  REQUIRE(pool.backend->fence("new").ok());
  CHECK(pool.backend->copy("old", "new", bytes).error().code == ErrorCode::corrupt);
  CHECK(pool.backend->usage("new")->bytes == 0);
  REQUIRE(pool.backend->fence("old").ok());
  CHECK(pool.backend->copy("old", "new", bytes).error().code == ErrorCode::corrupt);
}

TEST_CASE("EmulatedBackend: a copy cut off by a crash is done again") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  for (const char* point : {"move_before_copy=crash", "move_after_copy=crash"}) {
    Pool pool;
    const UniqueFd held = carve_filled(pool, "old");
    REQUIRE(pool.backend->carve("new", bytes, granules(count)).ok());
    CHECK(WIFSIGNALED(run_in_child([&] {
      if (!arm_failpoints(point).ok()) return 1;
      return pool.backend->copy("old", "new", bytes).ok() ? 2 : 3;
    })));
    CHECK(pool.backend->copy("old", "new", bytes).ok());
    CHECK(wrong_words(pool, "new") == 0);
  }
}
