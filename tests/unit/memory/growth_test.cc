// SPDX-License-Identifier: Apache-2.0
// A holder makes its object's file longer: on a mount of our own that gives it no memory, others' leases keep theirs,
// and what it takes in the moment between two steps of the manager's is taken back.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "core/base/failpoint.h"
#include "daemon/memory/files/emulated.h"
#include "tests/support/skip.h"
#include "tests/unit/memory/backend_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

bool is_bounded(const Pool& pool) {
  if (pool.backend->bounds_holders()) return true;
  TERRACE_SKIP(mount, "needs a mount of our own");
  return false;
}

UniqueFd carve(EmulatedBackend& backend, const std::string& name, uint64_t count = 1) {
  const Status carved = backend.carve(name, count * granule, granules(count));
  REQUIRE_MESSAGE(carved.ok(), carved.error().to_string());
  REQUIRE(backend.hand_out(name).ok());
  auto fd = backend.open(name, ObjectAccess::read_write);
  REQUIRE(fd.ok());
  return std::move(fd).value();
}

// What a mount has for the files beside its objects, which anybody may take.
constexpr uint64_t beside = 64 * kib;

// What a file has of memory; the room beside objects does not count.
uint64_t memory_of(int fd) {
  struct stat status {};
  REQUIRE(::fstat(fd, &status) == 0);
  const uint64_t bytes = uint64_t(status.st_blocks) * 512;
  return bytes % granule <= beside ? bytes / granule * granule : bytes;
}

// All that a holder can do to get more; returns what the file has then.
uint64_t grab(int fd, uint64_t bytes = 64 * mib) {
  (void)!::ftruncate(fd, off_t(bytes));
  (void)!::fallocate(fd, 0, 0, off_t(bytes));
  (void)!::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, off_t(bytes));
  for (uint64_t at = 0; at < bytes; at += granule) (void)!::pwrite(fd, "x", 1, off_t(at));
  return memory_of(fd);
}

size_t files_of(const Pool& pool) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(pool.folder.objects()))
    count += entry.path().filename().string().starts_with("lease-");
  return count;
}

}  // namespace

TEST_CASE("EmulatedBackend: a holder gets no memory by growing its file, and others keep theirs") {
  Pool pool;
  if (!is_bounded(pool)) return;
  const UniqueFd victim = carve(*pool.backend, "lease-1", 4);
  const UniqueFd hostile = carve(*pool.backend, "lease-2");
  CHECK(grab(hostile.get()) == granule);
  // A store beyond what it was given kills the one who stores.
  const int status = run_in_child([&] {
    std::byte* const at = map(hostile.get(), 64 * mib);
    std::memset(at + granule, 1, granule);
    return 0;
  });
  CHECK(WIFSIGNALED(status));
  // All that is left can still be leased and written, by others.
  const UniqueFd rest = carve(*pool.backend, "lease-3", 27);
  std::byte* const at = map(rest.get(), 27 * granule);
  std::memset(at, 2, 27 * granule);
  ::munmap(at, 27 * granule);
  std::byte* const first = map(victim.get(), 4 * granule);
  std::memset(first, 3, 4 * granule);
  ::munmap(first, 4 * granule);
  CHECK(memory_of(hostile.get()) == granule);
}

TEST_CASE("EmulatedBackend: neither a fence, a scrub, nor a smaller lease gives a holder's file room") {
  Pool pool;
  if (!is_bounded(pool)) return;
  const UniqueFd other = carve(*pool.backend, "lease-1", 4);
  const UniqueFd hostile = carve(*pool.backend, "lease-2", 4);
  REQUIRE(pool.backend->resize("lease-2", 4 * granule, granule, granules(1)).ok());
  CHECK(grab(hostile.get()) == granule);
  REQUIRE(pool.backend->fence("lease-2").ok());
  CHECK(grab(hostile.get()) == 0);
  REQUIRE(pool.backend->scrub("lease-2").ok());
  CHECK(grab(hostile.get()) == 0);
  REQUIRE(pool.backend->rebind("lease-1", "lease-3", 4 * granule, granules(4)).ok());
  CHECK(grab(other.get()) == 0);
  CHECK(pool.backend->usage("lease-3")->allocated == 4 * granule);
  REQUIRE(pool.backend->carve("lease-4", 28 * granule, granules(28)).ok());
}

TEST_CASE(
    "EmulatedBackend: what a holder takes between two steps is taken back, of a scrubbed object as well") {
  Pool pool;
  if (!is_bounded(pool)) return;
  const UniqueFd live = carve(*pool.backend, "lease-1");
  const UniqueFd ended = carve(*pool.backend, "lease-2");
  REQUIRE(pool.backend->fence("lease-2").ok());
  REQUIRE(pool.backend->scrub("lease-2").ok());
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> turns = 0;
  std::vector<std::thread> attackers;
  for (const int fd : {live.get(), ended.get()})
    attackers.emplace_back([&stop, &turns, fd, mine = live.get()] {
      for (; !stop; ++turns) {
        (void)!::ftruncate(fd, off_t(16 * mib));
        (void)!::fallocate(fd, FALLOC_FL_KEEP_SIZE, off_t(granule), off_t(granule));
        (void)!::pwrite(fd, "x", 1, off_t(2 * granule));
        // Given back at once, so that nobody is found to have it.
        (void)!::ftruncate(fd, fd == mine ? off_t(granule) : 0);
      }
    });
  while (turns < 100) std::this_thread::yield();
  int carved = 0;
  for (int round = 0; round < 1000; ++round) {
    const std::string name = "round-" + std::to_string(round);
    const Status made = pool.backend->carve(name, 8 * granule, granules(8));
    carved += made.ok();
    if (made.ok()) CHECK(pool.backend->usage(name)->allocated == 8 * granule);
    CHECK(pool.backend->fence(name).ok());
    CHECK(pool.backend->scrub(name).ok());
  }
  stop = true;
  for (std::thread& attacker : attackers) attacker.join();
  MESSAGE("carved under attack: " << carved << " of 1000, beside " << turns.load() << " tries to grow");
  CHECK(carved == 1000);
  // The next change finds them out.
  REQUIRE(pool.backend->carve("lease-3", granule, granules(1)).ok());
  REQUIRE(pool.backend->fence("lease-3").ok());
  CHECK(memory_of(live.get()) == granule);
  CHECK(memory_of(ended.get()) == 0);
}

TEST_CASE("EmulatedBackend: a scrubbed object's file goes once nobody has it open") {
  Pool pool;
  if (!is_bounded(pool)) return;
  UniqueFd held = carve(*pool.backend, "lease-1");
  std::byte* const at = map(held.get(), granule);
  REQUIRE(pool.backend->fence("lease-1").ok());
  REQUIRE(pool.backend->scrub("lease-1").ok());
  CHECK(pool.backend->list()->empty());
  CHECK(files_of(pool) == 1);
  held.reset();
  const auto pass = [&] {
    carve(*pool.backend, "lease-2");
    REQUIRE(pool.backend->fence("lease-2").ok());
    REQUIRE(pool.backend->scrub("lease-2").ok());
  };
  pass();
  CHECK(files_of(pool) == 1);  // a mapping can be opened again through /proc
  ::munmap(at, granule);
  pass();
  CHECK(files_of(pool) == 0);
}

TEST_CASE("EmulatedBackend: a daemon that starts again keeps holders to what the rows say") {
  Pool pool;
  if (!is_bounded(pool)) return;
  const UniqueFd grown = carve(*pool.backend, "lease-1", 2);
  const UniqueFd holes = carve(*pool.backend, "lease-2", 4);
  const UniqueFd ended = carve(*pool.backend, "lease-3");
  REQUIRE(pool.backend->fence("lease-3").ok());
  REQUIRE(pool.backend->scrub("lease-3").ok());
  REQUIRE(::fallocate(holes.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 3 * granule) == 0);
  REQUIRE(::ftruncate(grown.get(), 40 * mib) == 0);
  pool.backend.reset();
  auto directory = ObjectDirectory::prepare(pool.folder.options());
  REQUIRE_MESSAGE(directory.ok(), directory.error().to_string());
  pool.backend.emplace(std::move(directory).value(), EmulatedOptions{.devices = {{"cxl0", 64 * mib}}});
  pool.backend->know_objects({{"lease-1", 2 * granule, {}}, {"lease-2", 4 * granule, {}}});
  REQUIRE(::fallocate(holes.get(), 0, 0, 4 * granule) == 0);  // its own is still its own
  CHECK(grab(ended.get()) == 0);
  CHECK(grab(grown.get()) == 2 * granule);
  REQUIRE(pool.backend->scrub("lease-1").ok());
  REQUIRE(pool.backend->scrub("lease-2").ok());
  REQUIRE(pool.backend->carve("lease-4", 32 * granule, granules(32)).ok());
  CHECK(grab(grown.get()) == 0);
}

TEST_CASE(
    "EmulatedBackend: what a holder took beyond its file's end while no daemon ran is taken back at the "
    "start") {
  Pool pool;
  if (!is_bounded(pool)) return;
  const UniqueFd hostile = carve(*pool.backend, "lease-1");
  pool.backend.reset();
  // As large as it is for a moment at each start.
  REQUIRE(ObjectDirectory::prepare(pool.folder.options()).ok());
  REQUIRE(::fallocate(hostile.get(), FALLOC_FL_KEEP_SIZE, 0, 32 * granule) == 0);
  REQUIRE(memory_of(hostile.get()) == 32 * granule);
  auto directory = ObjectDirectory::prepare(pool.folder.options());
  REQUIRE_MESSAGE(directory.ok(), directory.error().to_string());
  pool.backend.emplace(std::move(directory).value(), EmulatedOptions{.devices = {{"cxl0", 64 * mib}}});
  pool.backend->know_objects({{"lease-1", granule, {}}});
  CHECK(memory_of(hostile.get()) == granule);
  CHECK(grab(hostile.get()) == granule);
  REQUIRE(pool.backend->carve("lease-2", 31 * granule, granules(31)).ok());
}

TEST_CASE("EmulatedBackend: rows that are older than a growth cut nothing") {
  Pool pool;
  if (!is_bounded(pool)) return;
  const UniqueFd held = carve(*pool.backend, "lease-1", 4);
  REQUIRE(::pwrite(held.get(), "kept", 4, off_t(3 * granule)) == 4);
  pool.backend.reset();
  auto directory = ObjectDirectory::prepare(pool.folder.options());
  REQUIRE_MESSAGE(directory.ok(), directory.error().to_string());
  pool.backend.emplace(std::move(directory).value(), EmulatedOptions{.devices = {{"cxl0", 64 * mib}}});
  pool.backend->know_objects({{"lease-1", 2 * granule, {}}});  // of a backup
  char text[4] = {};
  REQUIRE(::pread(held.get(), text, 4, off_t(3 * granule)) == 4);
  CHECK(std::string_view(text, 4) == "kept");
  CHECK(pool.backend->usage("lease-1")->allocated == 4 * granule);
}

TEST_CASE("EmulatedBackend: a crash at any step leaves holders bounded") {
  if (!failpoints_enabled()) {
    TERRACE_SKIP(failpoints, "this build has no failpoints");
    return;
  }
  for (const char* point :
       {"carve_after_create", "carve_after_reserve", "fence_before_truncate", "fence_after_truncate",
        "scrub_before_verify", "scrub_before_unlink", "scrub_after_unlink"}) {
    CAPTURE(point);
    Pool pool;
    if (!is_bounded(pool)) return;
    const UniqueFd hostile = carve(*pool.backend, "lease-1");
    const int status = run_in_child([&] {
      if (!arm_failpoints(std::string(point) + "=crash").ok()) return 1;
      (void)pool.backend->carve("lease-2", 8 * granule, granules(8));
      (void)pool.backend->fence("lease-2");
      (void)pool.backend->scrub("lease-2");
      return 0;
    });
    CHECK(WIFSIGNALED(status));
    const uint64_t taken = grab(hostile.get());
    CHECK(taken <= 9 * granule);  // what was being given or taken back, at most
    pool.backend.reset();
    auto directory = ObjectDirectory::prepare(pool.folder.options());
    REQUIRE_MESSAGE(directory.ok(), directory.error().to_string());
    pool.backend.emplace(std::move(directory).value(), EmulatedOptions{.devices = {{"cxl0", 64 * mib}}});
    pool.backend->know_objects({{"lease-1", granule, {}}});
    const uint64_t found = pool.backend->usage("lease-1")->bytes;
    REQUIRE(pool.backend->resize("lease-1", found, granule, granules(1)).ok());  // as recovery does
    (void)pool.backend->fence("lease-2");
    REQUIRE(pool.backend->scrub("lease-2").ok());
    CHECK(memory_of(hostile.get()) == granule);
    CHECK(grab(hostile.get()) == granule);
    REQUIRE(pool.backend->carve("lease-3", 31 * granule, granules(31)).ok());
  }
}
