// SPDX-License-Identifier: Apache-2.0
// What a start does with memory that its store does not know: another store's, and objects without a lease.
#include <doctest/doctest.h>

#include <atomic>
#include <set>

#include "tests/unit/event_loop/engine_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::EngineFixture;

namespace {

constexpr StoreId some_store{1, 2};

struct OrphanFixture : EngineFixture {
  // An engine that did not start yet.
  Engine& make() {
    engine.reset();
    engine = std::make_unique<Engine>(
        store, backend, clock, io.provider->getTimer(),
        EngineOptions{.state_path = "/state.db", .housekeeping_ns = 0, .leftover_pause_ns = 10 * ns_per_ms});
    return *engine;
  }
  Status start_again() { return engine->start().wait(io.waitScope); }
  void make_object(const std::string& name, bool handed_out) {
    TERRACE_CHECK(backend.carve(name, 2 * mib, {}).ok(), "carved");
    if (handed_out) TERRACE_CHECK(backend.hand_out(name).ok(), "marked");
  }
  bool there(const std::string& name) { return backend.usage(name).ok(); }
  bool found(const std::string& text) const {
    for (const std::string& finding : engine->findings())
      if (finding.find(text) != std::string::npos) return true;
    return false;
  }
};

}  // namespace

TEST_CASE("Engine: a start claims its memory for its store, and says whether the store ever had anything") {
  OrphanFixture fixture;
  fixture.store.store_id = some_store;
  fixture.make();
  REQUIRE(fixture.start_again().ok());
  fixture.compose();
  fixture.make();
  REQUIRE(fixture.start_again().ok());
  REQUIRE(fixture.backend.claims.size() == 2);
  CHECK(fixture.backend.claims[0].store == some_store);
  CHECK(fixture.backend.claims[0].owner == "state file /state.db");
  CHECK(fixture.backend.claims[0].is_new);
  CHECK(!fixture.backend.claims[1].is_new);
  CHECK(!fixture.backend.claims[1].take_over);
}

TEST_CASE("Engine: a start over another store's memory is refused before anything there is touched") {
  OrphanFixture fixture;
  fixture.store.store_id = some_store;
  fixture.backend.foreign = true;
  fixture.make_object("lease-9", true);
  fixture.make_object("lease-10", false);
  fixture.make();
  const Status refused = fixture.start_again();
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  CHECK(fixture.there("lease-9"));
  CHECK(fixture.there("lease-10"));
  CHECK(fixture.store.commits == 0);
  fixture.make().destroy_orphans_at_start();
  REQUIRE(fixture.start_again().ok());
  CHECK(!fixture.there("lease-9"));
  CHECK(!fixture.there("lease-10"));
}

TEST_CASE("Engine: an object without a lease that somebody was given stays, and no lease gets its name") {
  OrphanFixture fixture;
  fixture.make_object("lease-1", true);
  fixture.make_object("lease-2", false);
  fixture.make();
  REQUIRE(fixture.start_again().ok());
  CHECK(fixture.there("lease-1"));
  CHECK(!fixture.there("lease-2"));
  CHECK(fixture.found(
      "object lease-1 (2 MiB) belongs to no lease that this store knows, and stays: a tenant had it"));
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  CHECK(lease.id.value > 2);
  CHECK(fixture.there("lease-1"));
  // The next start has a pool for it: it is quarantined, until an administrator releases it.
  fixture.make();
  REQUIRE(fixture.start_again().ok());
  CHECK(fixture.there("lease-1"));
  REQUIRE(fixture.engine->state().find_lease(LeaseId{1}) != nullptr);
  CHECK(fixture.engine->state().find_lease(LeaseId{1})->phase == LeasePhase::quarantined);
  CHECK(fixture.engine->state().find_lease(lease.id)->phase == LeasePhase::active);
  REQUIRE(fixture.submit(Release{LeaseId{1}, "", fixture.clock.now_ns()}).ok());
  CHECK(fixture.eventually([&] { return !fixture.there("lease-1"); }));
}

TEST_CASE("Engine: an object without a lease goes by the operator's word, though somebody was given it") {
  OrphanFixture fixture;
  fixture.make_object("lease-1", true);
  fixture.make();
  REQUIRE(fixture.start_again().ok());
  CHECK(fixture.there("lease-1"));
  fixture.make().destroy_orphans_at_start();
  REQUIRE(fixture.start_again().ok());
  CHECK(!fixture.there("lease-1"));
}

TEST_CASE(
    "Engine: a start from a backup quarantines what it does not know, handed out or not, and jumps ahead") {
  OrphanFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow known = fixture.grant(fixture.grant_of(2 * mib));
  const MetaRow meta = fixture.engine->state().image().meta;
  fixture.engine.reset();
  Delta backup;
  backup.meta = meta;
  backup.meta->restored = true;
  REQUIRE(fixture.store.commit(backup).ok());
  fixture.make_object("lease-7", true);
  fixture.make_object("lease-8", false);
  fixture.make();
  REQUIRE(fixture.start_again().ok());
  for (const uint64_t id : {7, 8}) {
    const LeaseRow* lease = fixture.engine->state().find_lease(LeaseId{id});
    REQUIRE(lease != nullptr);
    CHECK(lease->phase == LeasePhase::quarantined);
    CHECK(fixture.there(lease->object));
  }
  CHECK(fixture.engine->leftovers().empty());
  CHECK(fixture.engine->state().find_lease(known.id)->phase == LeasePhase::active);
  const LeaseRow fresh = fixture.grant(fixture.grant_of(2 * mib));
  CHECK(fresh.epoch.value > meta.next_epoch + (uint64_t{1} << 35));
  CHECK(fresh.id.value > meta.next_lease + (uint64_t{1} << 35));
  CHECK(!fixture.store.load()->meta.restored);
  // It is a start like any other from then on.
  const uint64_t next = fixture.engine->state().image().meta.next_epoch;
  fixture.make();
  REQUIRE(fixture.start_again().ok());
  CHECK(fixture.engine->state().image().meta.next_epoch == next);
  CHECK(fixture.there("lease-7"));
}

TEST_CASE("Engine: what is used by a process stays although nobody was given it, for as long as it is used") {
  OrphanFixture fixture;
  fixture.make_object("lease-1", false);
  fixture.make_object("lease-2", false);
  std::atomic<int> looks{0}, state{0};  // state: 0 it is used, 1 not all could be looked at, 2 it is not used
  const auto start = [&] {
    fixture.make().set_object_users([&](const Image&) {
      ++looks;
      Engine::ObjectUsers users{.by_object = {}, .complete = state != 1};
      if (state == 0) users.by_object["lease-1"] = "process 7 (x)";
      return users;
    });
    REQUIRE(fixture.start_again().ok());
  };
  start();
  CHECK(fixture.there("lease-1"));
  CHECK(!fixture.there("lease-2"));
  CHECK(fixture.found("stays: is used by process 7 (x)"));
  CHECK(fixture.engine->leftovers() == std::set<std::string>{"lease-1"});
  state = 1;
  start();
  const int looked = looks;
  CHECK(fixture.eventually([&] { return looks >= looked + 2; }));  // it is looked at again and again
  CHECK(fixture.there("lease-1"));
  state = 2;
  CHECK(fixture.eventually([&] { return fixture.engine->leftovers().empty(); }));
  CHECK(!fixture.there("lease-1"));
  const int enough = looks;
  start();
  CHECK(looks == enough);  // no process is looked at where there is nothing to decide
}

TEST_CASE("Engine: a fenced object without a lease goes, whoever had it") {
  OrphanFixture fixture;
  fixture.make_object("lease-1", true);
  REQUIRE(fixture.backend.fence("lease-1").ok());
  fixture.make();
  REQUIRE(fixture.start_again().ok());
  CHECK(!fixture.there("lease-1"));
}
