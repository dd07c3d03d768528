// SPDX-License-Identifier: Apache-2.0
// What the memory's backend refuses, or does later than others: what is tried again, what is told, and what goes first.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <cerrno>

#include "tests/unit/event_loop/stepped_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::SteppedFixture;

TEST_CASE("Engine: a fence that lacks descriptors is no failure, and is tried again in a second") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  fixture.memory.failures["fence"] = os_error(EMFILE, "fence", "planted");
  REQUIRE(fixture.submit(Release{lease.id, "t", fixture.clock.now_ns()}).ok());
  CHECK(fixture.engine->facts().fences_failed == 0);
  CHECK(fixture.memory.calls["fence"] == 1);
  fixture.memory.failures.clear();
  fixture.pass(2 * ns_per_s);
  CHECK(fixture.memory.calls["fence"] == 2);
  CHECK(fixture.lease(lease.id) == nullptr);
}

TEST_CASE("Engine: what was to be tried again before a recovery is the recovery's matter") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  fixture.memory.failures["fence"] = os_error(EMFILE, "fence", "planted");
  REQUIRE(fixture.submit(Release{lease.id, "t", fixture.clock.now_ns()}).ok());
  fixture.break_store();
  fixture.memory.failures.clear();
  fixture.pass(500 * ns_per_ms);
  REQUIRE(fixture.engine->serving());
  REQUIRE(fixture.lease(lease.id) == nullptr);
  const int fences = fixture.memory.calls["fence"];
  fixture.pass(5 * ns_per_s);
  CHECK(fixture.memory.calls["fence"] == fences);
}

TEST_CASE("Engine: a fence waits for no bulky work") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  fixture.jobs.hold("bulk");
  auto carved = fixture.engine->submit(fixture.grant_of(2 * mib), {"tester"});
  fixture.turn();
  REQUIRE(fixture.jobs.waiting("bulk") == 1);
  REQUIRE(fixture.submit(Revoke{lease.id, "needed", 0, fixture.clock.now_ns()}).ok());
  CHECK(fixture.memory.calls["fence"] == 1);
}

TEST_CASE("Engine: memory that is being handed over is fenced behind that, not beside it") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  fixture.jobs.hold("bulk");
  auto transfer =
      fixture.engine->submit(Transfer{lease.id, "", "other", "", fixture.clock.now_ns()}, {"tester"});
  fixture.turn();
  REQUIRE(fixture.jobs.waiting("bulk") == 1);
  REQUIRE(fixture.submit(FailDevice{"emu:a", fixture.clock.now_ns()}).ok());
  CHECK(fixture.memory.calls["fence"] == 0);
  fixture.jobs.let_go("bulk");
  fixture.turn();
  CHECK(fixture.memory.calls["fence"] > 0);
}

TEST_CASE("Engine: a growth that lacks memory is refused, and a cut is tried again") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(4 * mib));
  fixture.memory.failures["resize"] = os_error(ENOMEM, "resize", "planted");
  auto grown = fixture.engine->submit(Resize{lease.id, "t", 8 * mib, fixture.clock.now_ns()}, {"tester"});
  REQUIRE(fixture.answered(grown));
  const auto refused = grown.wait(fixture.scope);
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::capacity_exhausted);
  auto cut = fixture.engine->submit(Resize{lease.id, "t", 2 * mib, fixture.clock.now_ns()}, {"tester"});
  CHECK(!fixture.answered(cut));
  fixture.memory.failures.clear();
  fixture.pass(2 * ns_per_s);
  CHECK(fixture.answered(cut));
  CHECK(fixture.lease(lease.id)->bytes == 2 * mib);
}

TEST_CASE("Engine: a hand-over that has no room for a piece more goes on when there is") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(4 * mib));
  fixture.memory.failures["rebind"] =
      Error{.code = ErrorCode::capacity_exhausted, .os_errno = ENOSPC, .where = "rebind", .detail = "planted"};
  auto transfer =
      fixture.engine->submit(Transfer{lease.id, "", "other", "", fixture.clock.now_ns()}, {"tester"});
  CHECK(!fixture.answered(transfer));
  fixture.memory.failures.clear();
  fixture.pass(2 * ns_per_s);
  REQUIRE(fixture.answered(transfer));
  CHECK(transfer.wait(fixture.scope).ok());
  CHECK(fixture.lease(lease.id)->tenant == "other");
}

TEST_CASE("Engine: a lease whose bytes could not be copied stays where it is") {
  SteppedFixture fixture;
  EngineOptions options = SteppedFixture::quiet();
  options.housekeeping_ns = 10 * ns_per_ms;
  options.unheld_ns = 20 * ns_per_ms;
  fixture.start(options);
  fixture.compose(true);
  Grant request = fixture.grant_of(4 * mib);
  request.movable = true;
  const LeaseRow lease = fixture.grant(request);
  fixture.memory.failures["copy"] = os_error(EIO, "copy", "planted");
  const std::string serial = fixture.engine->state().find_device(lease.extents.front().device)->serial;
  REQUIRE(fixture.submit(DrainDevice{serial}).ok());
  fixture.pass(1 * ns_per_s);
  REQUIRE(fixture.memory.calls["copy"] > 0);
  CHECK(fixture.lease(lease.id)->object == lease.object);
  CHECK(fixture.lease(lease.id)->extents == lease.extents);
  CHECK(fixture.engine->counters().moves == 0);
  fixture.memory.failures.clear();
  fixture.pass(1 * ns_per_s);
  CHECK(fixture.engine->counters().moves == 1);
}

TEST_CASE("Engine: who still has an object without a lease is shut out before it is destroyed") {
  SteppedFixture fixture;
  REQUIRE(fixture.backend.carve("lease-9", 2 * mib, {}).ok());
  const auto kept = fixture.backend.open("lease-9", ObjectAccess::read_write);
  REQUIRE(kept.ok());
  fixture.start();
  CHECK(!fixture.backend.usage("lease-9").ok());
  struct stat info {};
  REQUIRE(::fstat(kept->get(), &info) == 0);
  CHECK(info.st_size == 0);
}

TEST_CASE("Engine: a start that finds none of the live leases' memory, within one boot, is refused") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  fixture.backend.hide_objects = true;
  const Status refused = fixture.try_start();
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  CHECK(refused.error().detail.find("--runtime-dir") != std::string::npos);
  fixture.backend.hide_objects = false;
  fixture.start();
  CHECK(fixture.is(lease.id, LeasePhase::active));
}

TEST_CASE("Engine: a start that cannot finish a cut frees nothing of what was to be cut off") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(8 * mib));
  fixture.jobs.hold("bulk");
  auto cut = fixture.engine->submit(Resize{lease.id, "t", 2 * mib, fixture.clock.now_ns()}, {"tester"});
  REQUIRE(!fixture.answered(cut));
  fixture.jobs.let_go("bulk");
  fixture.memory.failures["resize"] = os_error(EIO, "resize", "planted");
  fixture.start();
  REQUIRE(fixture.memory.calls["resize"] == 1);
  CHECK(fixture.engine->state().pool_use(lease.pool).free_bytes == fixture.backend.device_bytes - 8 * mib);
  CHECK(fixture.lease(lease.id)->bytes == 8 * mib);
}

TEST_CASE("Scrubber: memory that lacks for erasing is no failure, and is waited for") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  fixture.memory.meets = [&](std::string_view call) -> Status {
    if (call != "scrub" || fixture.memory.calls["scrub"] > 3) return {};
    return os_error(ENOMEM, "scrub", "planted");
  };
  REQUIRE(fixture.submit(Release{lease.id, "t", fixture.clock.now_ns()}).ok());
  CHECK(fixture.memory.calls["scrub"] == 1);
  fixture.pass(900 * ns_per_ms);
  CHECK(fixture.memory.calls["scrub"] == 1);
  fixture.pass(3 * ns_per_s);
  CHECK(fixture.memory.calls["scrub"] == 4);
  CHECK(fixture.lease(lease.id) == nullptr);
}
