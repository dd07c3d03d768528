// SPDX-License-Identifier: Apache-2.0
// What is due, and when it is done: with a clock and a timer that the test moves.
#include <doctest/doctest.h>

#include "tests/unit/event_loop/stepped_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::SteppedFixture;

TEST_CASE("Engine: a lease that nobody renews ends in its time, though nothing else happens") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib, 2 * ns_per_s));
  fixture.pass(1 * ns_per_s);
  CHECK(fixture.is(lease.id, LeasePhase::active));
  fixture.pass(2 * ns_per_s);
  CHECK(fixture.lease(lease.id) == nullptr);
}

TEST_CASE("Engine: a lease that ends sooner than what is waited for already ends in its time") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow later = fixture.grant(fixture.grant_of(2 * mib, 50 * ns_per_s));
  const LeaseRow sooner = fixture.grant(fixture.grant_of(2 * mib, 2 * ns_per_s));
  fixture.pass(3 * ns_per_s);
  CHECK(fixture.lease(sooner.id) == nullptr);
  CHECK(fixture.is(later.id, LeasePhase::active));
}

TEST_CASE("Engine: time in which the machine was suspended counts, within a minute of its end") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib, 1800 * ns_per_s));
  fixture.sleep_through(3600 * ns_per_s);
  fixture.pass(61 * ns_per_s);
  CHECK(fixture.lease(lease.id) == nullptr);
}

TEST_CASE("Engine: a start ends the leases that nobody comes back for, though nothing else happens") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib, 10 * ns_per_s));
  fixture.start();
  CHECK(fixture.is(lease.id, LeasePhase::active));
  fixture.pass(120 * ns_per_s);
  CHECK(fixture.lease(lease.id) == nullptr);
}

TEST_CASE("Engine: a look before a time in which the manager did not run says nothing of a device after it") {
  SteppedFixture fixture;
  EngineOptions options = SteppedFixture::quiet();
  options.gap_ns = 400 * ns_per_ms;
  fixture.start(options);
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  const auto look = [&] { fixture.answer(fixture.engine->look_at_devices().then([] { return true; })); };
  fixture.pass(1 * ns_per_s);
  fixture.backend.unplug("emu:a");
  look();
  fixture.sleep_through(10 * ns_per_s);
  fixture.pass(300 * ns_per_ms);  // a beat, which notices
  look();
  CHECK(!fixture.engine->state().absent(lease.extents.front().device));
  fixture.pass(1 * ns_per_s);
  look();
  CHECK(fixture.engine->state().absent(lease.extents.front().device));
}
