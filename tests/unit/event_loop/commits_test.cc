// SPDX-License-Identifier: Apache-2.0
// Commits, and what waits for one: with workers that do their jobs when the test says.
#include <doctest/doctest.h>

#include "tests/unit/event_loop/stepped_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::SteppedFixture;

namespace {

SetQuota quota_of(const SteppedFixture& fixture, const char* tenant) {
  return {{tenant, 64 * mib, 1}, fixture.clock.now_ns()};
}

}  // namespace

TEST_CASE(
    "Engine: what is asked while a commit is under way goes with the next, also behind a record that can "
    "wait") {
  SteppedFixture fixture;
  EngineOptions options = SteppedFixture::quiet();
  options.deferred_commit_ns = 60 * ns_per_s;
  fixture.start(options);
  fixture.jobs.hold("store");
  auto first = fixture.engine->submit(quota_of(fixture, "a"), {"tester"});
  REQUIRE(!fixture.answered(first));
  fixture.engine->note("look", "x", "y", {"tester"});  // nobody waits for it
  auto second = fixture.engine->submit(quota_of(fixture, "b"), {"tester"});
  fixture.turn();
  fixture.jobs.let_go("store");
  CHECK(fixture.answered(first));
  CHECK(fixture.answered(second));
  CHECK(fixture.engine->counters().commits == 2);
}

TEST_CASE("Engine: a record that can wait, and whose time came during a commit, is committed behind it") {
  SteppedFixture fixture;
  EngineOptions options = SteppedFixture::quiet();
  options.deferred_commit_ns = 20 * ns_per_ms;
  fixture.start(options);
  fixture.jobs.hold("store");
  auto first = fixture.engine->submit(quota_of(fixture, "a"), {"tester"});
  REQUIRE(!fixture.answered(first));
  fixture.engine->note("look", "x", "y", {"tester"});
  fixture.pass(1 * ns_per_s);
  fixture.jobs.let_go("store");
  CHECK(fixture.answered(first));
  CHECK(fixture.engine->is_settled());
  CHECK(fixture.engine->counters().commits == 2);
}

TEST_CASE("Engine: one backup at a time, and after one has ended another") {
  SteppedFixture fixture;  // its store can make none: what is asked is who is let through
  fixture.start();
  fixture.jobs.hold("backup");
  auto first = fixture.engine->backup();
  REQUIRE(!fixture.answered(first));
  const auto second = fixture.answer(fixture.engine->backup());
  REQUIRE(!second.ok());
  CHECK(second.error().code == ErrorCode::busy);
  fixture.jobs.let_go("backup");
  REQUIRE(fixture.answered(first));
  CHECK(first.wait(fixture.scope).error().code != ErrorCode::busy);
  CHECK(fixture.answer(fixture.engine->backup()).error().code != ErrorCode::busy);
}

TEST_CASE("Engine: a recovery waits for the work that was begun under the lost state") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  Grant remote = fixture.grant_of(2 * mib);
  remote.agent = "other";
  fixture.jobs.hold("bulk 2");  // its agent takes its time
  auto asked = fixture.engine->submit(remote, {"tester"});
  REQUIRE(!fixture.answered(asked));
  REQUIRE(fixture.jobs.waiting("bulk 2") == 1);
  fixture.break_store();
  fixture.pass(10 * ns_per_s);
  CHECK(!fixture.engine->serving());
  fixture.jobs.let_go("bulk 2");
  fixture.pass(10 * ns_per_s);
  CHECK(fixture.engine->serving());
  CHECK(fixture.watcher.applied_to_lost == 0);
}

TEST_CASE(
    "Engine: after a recovery each fenced lease is erased once more, and each that waited for that once") {
  SteppedFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow first = fixture.grant(fixture.grant_of(2 * mib));
  const LeaseRow second = fixture.grant(fixture.grant_of(2 * mib));
  fixture.jobs.hold("bulk");
  for (const LeaseRow& lease : {first, second})
    REQUIRE(fixture.submit(Release{lease.id, "t", fixture.clock.now_ns()}).ok());
  REQUIRE(fixture.memory.calls["fence"] == 2);
  REQUIRE(fixture.jobs.waiting("bulk") == 1);  // the first is with the worker, the second behind it
  fixture.break_store();
  fixture.pass(1 * ns_per_s);
  REQUIRE(fixture.jobs.waiting("bulk") == 2);  // the recovery's look waits behind it
  fixture.jobs.do_one("bulk");
  fixture.turn();
  fixture.jobs.do_one("bulk");
  fixture.jobs.let_go("bulk");
  fixture.pass(10 * ns_per_s);
  CHECK(fixture.engine->state().leases().empty());
  CHECK(std::count(fixture.memory.order.begin(), fixture.memory.order.end(), "scrub " + second.object) == 1);
  CHECK(fixture.engine->scrub_counters().queued_bytes == 0);
  CHECK(fixture.watcher.applied_to_lost == 0);
}
