// SPDX-License-Identifier: Apache-2.0
// Grants: size, placement, names, retries, failing carves.
#include <set>

#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

TEST_CASE("StateMachine: a grant is pending until it is carved, and durable only then") {
  Manager m({10});
  const Step pending = m.apply(m.request(3 * granule));
  REQUIRE(pending.reply.ok());
  const LeaseId id = std::get<GrantPending>(*pending.reply).lease;
  CHECK(pending.delta.empty());
  REQUIRE(pending.effects.size() == 1);
  const auto& carve = std::get<CarveObject>(pending.effects[0]);
  CHECK(carve.lease == id);
  CHECK(carve.bytes == 3 * granule);
  CHECK(carve.extents == m.machine.find_lease(id)->extents);
  CHECK(m.machine.image().leases.empty());
  CHECK(m.use().free_bytes == 7 * granule);

  m.now_ns += 2 * second;
  const Step carved = m.apply(CarveFinished{id, {}, m.now_ns});
  REQUIRE(carved.reply.ok());
  const LeaseRow lease = std::get<LeaseReply>(*carved.reply).lease;
  CHECK(lease.phase == LeasePhase::active);
  CHECK(lease.expiry_ns == m.now_ns + 10 * second);  // the TTL begins when the lease does
  CHECK(*carved.delta.leases.at(id) == lease);
  CHECK(carved.delta.meta->next_lease == id.value + 1);
  CHECK(carved.delta.meta->next_epoch == lease.epoch.value + 1);
  CHECK(carved.effects.empty());
}

TEST_CASE("StateMachine: a lease whose holders are ended at a fence says so for good, and is not movable") {
  Manager m({10});
  Grant request = m.request(granule);
  request.on_fence = OnFence::kill;
  const LeaseRow lease = m.grant(request);
  CHECK(lease.on_fence == OnFence::kill);
  CHECK(m.machine.image().leases.at(0).on_fence == OnFence::kill);
  CHECK(m.grant(m.request(granule)).on_fence == OnFence::keep);
  request.movable = true;
  const Step refused = m.apply(request);
  REQUIRE(!refused.reply.ok());
  CHECK(refused.reply.error().code == ErrorCode::invalid_argument);
  CHECK(refused.reply.error().detail.find("--on-fence kill") != std::string::npos);
}

TEST_CASE("StateMachine: bytes are rounded up to granules") {
  Manager m({10});
  CHECK(m.grant(m.request(1)).bytes == granule);
  CHECK(m.grant(m.request(granule)).bytes == granule);
  CHECK(m.grant(m.request(granule + 1)).bytes == 2 * granule);
  CHECK(m.use().free_bytes == 6 * granule);
}

TEST_CASE("StateMachine: more than is free is refused in words, all that is free is granted") {
  Manager m({6, 4});
  const Step step = m.apply(m.request(10 * granule + 1));
  CHECK(code_of(step) == ErrorCode::capacity_exhausted);
  CHECK(step.reply.error().detail.find("pool p") != std::string::npos);
  CHECK(code_of(m.apply(m.request(UINT64_MAX))) == ErrorCode::capacity_exhausted);
  const LeaseRow lease = m.grant(10);
  CHECK(lease.extents.size() == 2);
  CHECK(m.use().free_bytes == 0);
  CHECK(code_of(m.apply(m.request(1))) == ErrorCode::capacity_exhausted);
}

TEST_CASE("StateMachine: a lease is one run where one fits, in the shortest such run of all devices") {
  Manager m({10, 4});
  const LeaseRow lease = m.grant(4);
  REQUIRE(lease.extents.size() == 1);
  CHECK(lease.extents[0].device == m.machine.find_device("emu:1")->id);
  CHECK(m.use().largest_free_bytes == 10 * granule);
}

TEST_CASE("StateMachine: a lease of scattered runs has at most limits::lease_extents_max of them") {
  constexpr uint64_t pieces = limits::lease_extents_max + 1;
  Manager m({2 * pieces});
  std::vector<LeaseId> odd;
  for (uint64_t i = 0; i < 2 * pieces; ++i) {
    const LeaseRow lease = m.grant(1);
    if (i % 2 == 1) odd.push_back(lease.id);
  }
  for (const LeaseId id : odd) {
    REQUIRE(m.apply(Release{id, "alice", m.now_ns}).reply.ok());
    m.finish(id);
  }
  CHECK(m.use().free_bytes == pieces * granule);
  CHECK(code_of(m.apply(m.request(pieces * granule))) == ErrorCode::capacity_exhausted);
  CHECK(m.use().free_bytes == pieces * granule);  // what was tried is given back
  CHECK(m.grant(pieces - 1).extents.size() == limits::lease_extents_max);
}

TEST_CASE("StateMachine: a lease stays within its pool, however full that is") {
  Manager m({4});
  REQUIRE(m.adopt("emu:9", 8).reply.ok());
  REQUIRE(m.apply(CreatePool{"q", {"emu:9"}}).reply.ok());
  REQUIRE(m.adopt("emu:8", 8).reply.ok());  // in no pool
  CHECK(code_of(m.apply(m.request(5 * granule))) == ErrorCode::capacity_exhausted);
  CHECK(m.grant(4).extents[0].device == m.machine.find_device("emu:0")->id);
}

TEST_CASE("StateMachine: no granule is granted twice while its lease lives, in whatever phase") {
  Manager m({8});
  std::set<uint64_t> taken;
  for (int i = 0; i < 8; ++i) {
    const LeaseRow lease = m.grant(1);
    CHECK(taken.insert(lease.extents[0].first_granule).second);
    if (i == 3) REQUIRE(m.apply(Release{lease.id, "alice", m.now_ns}).reply.ok());
    if (i == 4) REQUIRE(m.apply(Revoke{lease.id, "", second, m.now_ns}).reply.ok());
  }
  CHECK(code_of(m.apply(m.request(1))) == ErrorCode::capacity_exhausted);
}

TEST_CASE("StateMachine: epochs and ids grow with every grant, over failed carves and restarts") {
  Manager m({10});
  const LeaseRow first = m.grant(1);
  const Step pending = m.apply(m.request(1));
  const LeaseId lost = std::get<GrantPending>(*pending.reply).lease;
  CHECK(code_of(m.apply(CarveFinished{lost, failure(), m.now_ns})) == ErrorCode::io_error);
  const LeaseRow second_lease = m.grant(1);
  CHECK(second_lease.epoch > first.epoch);
  CHECK(second_lease.id > lost);
  REQUIRE(m.apply(Release{second_lease.id, "alice", m.now_ns}).reply.ok());
  m.finish(second_lease.id);

  const Image image = m.machine.image();
  Manager restarted;
  restarted.machine = StateMachine();
  REQUIRE(
      restarted.machine.recover(image, {{{first.object, first.bytes}}, {"emu:0"}}, "boot-1", m.now_ns).ok());
  const LeaseRow third = restarted.grant(1);
  CHECK(third.epoch > second_lease.epoch);
  CHECK(third.id > second_lease.id);
  CHECK(third.object != second_lease.object);
}

TEST_CASE("StateMachine: a failed carve gives extents, label and key back") {
  Manager m({4});
  Grant asked = m.request(4 * granule);
  asked.label = "weights";
  asked.request_high = 1;
  const LeaseId id = std::get<GrantPending>(*m.apply(asked).reply).lease;
  const Step failed = m.apply(CarveFinished{id, failure(), m.now_ns});
  CHECK(code_of(failed) == ErrorCode::io_error);
  CHECK(m.machine.find_lease(id) == nullptr);
  CHECK(m.use().free_bytes == 4 * granule);
  CHECK(m.grant(asked).id != id);
}

TEST_CASE("StateMachine: a carve that nobody waits for is refused") {
  Manager m({4});
  CHECK(code_of(m.apply(CarveFinished{LeaseId{7}, {}, m.now_ns})) == ErrorCode::not_found);
  const LeaseRow lease = m.grant(1);
  CHECK(code_of(m.apply(CarveFinished{lease.id, {}, m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(CarveFinished{lease.id, failure(), m.now_ns})) == ErrorCode::not_found);
  CHECK(m.phase(lease.id) == LeasePhase::active);
}

TEST_CASE("StateMachine: a request repeated with its key gets the same lease, pending or active") {
  Manager m({10});
  Grant asked = m.request(2 * granule);
  asked.request_low = 77;
  asked.label = "weights";
  const LeaseId id = std::get<GrantPending>(*m.apply(asked).reply).lease;
  const Step retried = m.apply(asked);
  REQUIRE(retried.reply.ok());
  CHECK(std::get<GrantPending>(*retried.reply).lease == id);
  CHECK(retried.effects.empty());
  REQUIRE(m.apply(CarveFinished{id, {}, m.now_ns}).reply.ok());
  const Step later = m.apply(asked);
  REQUIRE(later.reply.ok());
  CHECK(std::get<LeaseReply>(*later.reply).lease == *m.machine.find_lease(id));
  CHECK(later.delta.empty());
  CHECK(later.effects.empty());
  CHECK(m.machine.leases().size() == 1);

  asked.tenant = "bob";  // a key is its tenant's own
  CHECK(m.grant(asked).id != id);
}

TEST_CASE("StateMachine: without a key each request is a grant of its own") {
  Manager m({10});
  CHECK(m.grant(1).id != m.grant(1).id);
}

TEST_CASE("StateMachine: a label is its tenant's own, and free again once the lease ends") {
  Manager m({10});
  Grant asked = m.request(granule);
  asked.label = "weights";
  const LeaseRow lease = m.grant(asked);
  CHECK(m.machine.find_lease_by_label("alice", "weights")->id == lease.id);
  CHECK(m.machine.find_lease_by_label("bob", "weights") == nullptr);
  CHECK(code_of(m.apply(asked)) == ErrorCode::already_exists);
  asked.tenant = "bob";
  CHECK(m.apply(asked).reply.ok());
  asked.tenant = "alice";
  REQUIRE(m.apply(Revoke{lease.id, "", second, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(asked)) == ErrorCode::already_exists);
  REQUIRE(m.apply(Release{lease.id, "alice", m.now_ns}).reply.ok());
  CHECK(m.grant(asked).id != lease.id);  // while the old one is still being fenced
}

TEST_CASE("StateMachine: TTLs stay within their limits, 0 is the default, persistent has none") {
  Manager m({10});
  Grant asked = m.request(granule);
  for (const uint64_t ttl_ns : {limits::ttl_ns_min - 1, limits::ttl_ns_max + 1, uint64_t{1}, UINT64_MAX}) {
    asked.ttl_ns = ttl_ns;
    CHECK(code_of(m.apply(asked)) == ErrorCode::invalid_argument);
  }
  asked.ttl_ns = limits::ttl_ns_min;
  CHECK(m.grant(asked).expiry_ns == m.now_ns + limits::ttl_ns_min);
  asked.ttl_ns = limits::ttl_ns_max;
  CHECK(m.grant(asked).expiry_ns == m.now_ns + limits::ttl_ns_max);
  asked.ttl_ns = 0;
  CHECK(m.grant(asked).expiry_ns == m.now_ns + limits::ttl_ns_default);
  asked.persistent = true;
  const LeaseRow persistent = m.grant(asked);
  CHECK(persistent.ttl_ns == 0);
  CHECK(persistent.expiry_ns == 0);
  asked.ttl_ns = 5 * second;
  CHECK(code_of(m.apply(asked)) == ErrorCode::invalid_argument);
}

TEST_CASE("StateMachine: grants with an unknown pool, bad names or no bytes are refused") {
  Manager m({10});
  const auto refused = [&](auto change) {
    Grant asked = m.request(granule);
    change(asked);
    return code_of(m.apply(asked));
  };
  CHECK(refused([](Grant& g) { g.pool = "q"; }) == ErrorCode::not_found);
  CHECK(refused([](Grant& g) { g.tenant = ""; }) == ErrorCode::invalid_argument);
  CHECK(refused([](Grant& g) { g.tenant = "a/b"; }) == ErrorCode::invalid_argument);
  CHECK(refused([](Grant& g) { g.host = ""; }) == ErrorCode::invalid_argument);
  CHECK(refused([](Grant& g) { g.host = "-x"; }) == ErrorCode::invalid_argument);
  CHECK(refused([](Grant& g) { g.label = "a\nb"; }) == ErrorCode::invalid_argument);
  CHECK(refused([](Grant& g) { g.label = std::string(128, 'x'); }) == ErrorCode::invalid_argument);
  CHECK(refused([](Grant& g) { g.bytes = 0; }) == ErrorCode::invalid_argument);
  CHECK(m.use().free_bytes == 10 * granule);
}

// Found by review: such a row was stored, and the next start refused the whole store as corrupt.
TEST_CASE("StateMachine: a mode that does not exist is refused") {
  Manager m({10});
  Grant asked = m.request(granule);
  asked.mode = static_cast<LeaseMode>(3);
  CHECK(code_of(m.apply(asked)) == ErrorCode::invalid_argument);
}

TEST_CASE("StateMachine: a grant on one device lies there, whatever the pool's placement prefers, or nowhere") {
  Manager m({10, 4});
  const auto on = [&m](const char* device, uint64_t granules) {
    Grant request = m.request(granules * granule);
    request.device = device;
    return request;
  };
  const LeaseRow small = m.grant(on("emu:0", 2));  // linear alone would take the shorter run of emu:1
  REQUIRE(small.extents.size() == 1);
  CHECK(small.extents[0].device == m.machine.find_device("emu:0")->id);
  CHECK(m.grant(on("emu:1", 4)).extents[0].device == m.machine.find_device("emu:1")->id);

  const Step full = m.apply(on("emu:1", 1));  // the other device has room
  CHECK(code_of(full) == ErrorCode::capacity_exhausted);
  CHECK(full.reply.error().detail.find("device emu:1") != std::string::npos);
  CHECK(code_of(m.apply(on("emu:2", 1))) == ErrorCode::not_found);
  REQUIRE(m.adopt("emu:2", 4).reply.ok());  // in no pool
  CHECK(code_of(m.apply(on("emu:2", 1))) == ErrorCode::not_found);
  Grant waiting = on("emu:1", 1);
  waiting.wait_ns = second;
  CHECK(code_of(m.apply(waiting)) == ErrorCode::invalid_argument);
  REQUIRE(m.apply(DrainDevice{"emu:0"}).reply.ok());
  CHECK(code_of(m.apply(on("emu:0", 1))) == ErrorCode::capacity_exhausted);
}
