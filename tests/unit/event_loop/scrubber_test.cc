// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/unit/event_loop/engine_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::EngineFixture;

namespace {

constexpr uint64_t device_bytes = 2 * gib;
constexpr uint64_t piece = limits::scrub_piece_bytes;

void prepare(EngineFixture& fixture, uint64_t bytes_per_s) {
  fixture.backend.device_bytes = device_bytes;
  fixture.backend.in_place = true;
  fixture.start({.scrub_bytes_per_s = bytes_per_s, .housekeeping_ns = 0});
  fixture.compose();
}

}  // namespace

TEST_CASE("Scrubber: memory that stays in place is erased in pieces, from the end, all of it") {
  EngineFixture fixture;
  prepare(fixture, 0);
  const LeaseRow lease = fixture.grant(fixture.grant_of(4 * piece + 2 * mib));
  REQUIRE(fixture.submit(Release{lease.id, "t", fixture.clock.now_ns()}).ok());
  CHECK(fixture.eventually([&] { return fixture.engine->state().leases().empty(); }));
  CHECK(fixture.engine->scrub_counters().scrubbed_bytes == lease.bytes);
  CHECK(fixture.engine->scrub_counters().queued_bytes == 0);
  CHECK(fixture.free_bytes() == device_bytes);
}

TEST_CASE("Scrubber: in the background it keeps to its bandwidth") {
  EngineFixture fixture;
  prepare(fixture, 2 * gib);  // a piece each 125 ms
  const LeaseRow lease = fixture.grant(fixture.grant_of(3 * piece));
  const uint64_t begin_ns = fixture.clock.now_ns();
  REQUIRE(fixture.submit(Release{lease.id, "t", begin_ns}).ok());
  CHECK(fixture.eventually([&] { return fixture.engine->state().leases().empty(); }));
  CHECK(fixture.clock.now_ns() - begin_ns >= 240 * ns_per_ms);  // the first piece is not held up
}

TEST_CASE("Scrubber: a grant that waits gets the room after the pieces it needs, without the bound") {
  EngineFixture fixture;
  prepare(fixture, 64 * mib);  // a piece each four seconds
  const LeaseRow lease = fixture.grant(fixture.grant_of(device_bytes));
  REQUIRE(fixture.submit(Release{lease.id, "t", fixture.clock.now_ns()}).ok());
  Grant waiting = fixture.grant_of(2 * piece);
  waiting.wait_ns = 60 * ns_per_s;
  const uint64_t begin_ns = fixture.clock.now_ns();
  const LeaseRow served = fixture.grant(waiting);
  CHECK(served.phase == LeasePhase::active);
  CHECK(fixture.clock.now_ns() - begin_ns < 3 * ns_per_s);
  const LeaseRow* rest = fixture.engine->state().find_lease(lease.id);
  REQUIRE(rest != nullptr);  // most of the old lease is still being erased
  CHECK(rest->bytes >= device_bytes - 4 * piece);
}

TEST_CASE("Scrubber: what cannot be erased is quarantined, the others go on") {
  EngineFixture fixture;
  prepare(fixture, 0);
  const LeaseRow bad = fixture.grant(fixture.grant_of(piece));
  const LeaseRow good = fixture.grant(fixture.grant_of(piece));
  fixture.backend.fail_erase = true;
  REQUIRE(fixture.submit(Release{bad.id, "t", fixture.clock.now_ns()}).ok());
  CHECK(fixture.eventually(
      [&] { return fixture.engine->state().find_lease(bad.id)->phase == LeasePhase::quarantined; }));
  fixture.backend.fail_erase = false;
  REQUIRE(fixture.submit(Release{good.id, "t", fixture.clock.now_ns()}).ok());
  CHECK(fixture.eventually([&] { return fixture.engine->state().find_lease(good.id) == nullptr; }));
  // The way out: an administrator's release has it erased again.
  REQUIRE(fixture.submit(Release{bad.id, "", fixture.clock.now_ns()}).ok());
  CHECK(fixture.eventually([&] { return fixture.engine->state().leases().empty(); }));
}

TEST_CASE(
    "Scrubber: memory of which somebody holds pages is quarantined, looked at again, and erased by itself") {
  EngineFixture fixture;
  fixture.backend.device_bytes = device_bytes;
  fixture.backend.in_place = true;
  fixture.start({.housekeeping_ns = 10 * ns_per_ms});
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(piece));
  const LeaseRow broken = fixture.grant(fixture.grant_of(piece));
  fixture.backend.fail_erase = true;
  REQUIRE(fixture.submit(Release{broken.id, "t", fixture.clock.now_ns()}).ok());
  const auto quarantined = [&](LeaseId id) {
    const LeaseRow* row = fixture.engine->state().find_lease(id);
    return row != nullptr && row->phase == LeasePhase::quarantined;
  };
  REQUIRE(fixture.eventually([&] { return quarantined(broken.id); }));
  fixture.backend.fail_erase = false;
  fixture.backend.pages_held = true;
  REQUIRE(fixture.submit(Release{lease.id, "t", fixture.clock.now_ns()}).ok());
  REQUIRE(fixture.eventually([&] { return quarantined(lease.id) && fixture.backend.kept_asked > 3; }));
  CHECK(quarantined(lease.id));
  fixture.backend.pages_held = false;
  CHECK(fixture.eventually([&] { return fixture.engine->state().find_lease(lease.id) == nullptr; }));
  CHECK(quarantined(broken.id));  // for another reason: an operator's matter
}
