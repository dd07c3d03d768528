// SPDX-License-Identifier: Apache-2.0
// Growing and shrinking: granules, failures, ends in the middle, restarts in the middle.
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

LeaseRow row(const Manager& m, LeaseId id) {
  return *m.machine.find_lease(id);
}

// A machine recovered from what `m` had made durable, with the lease's object of `bytes`.
struct Recovered {
  StateMachine machine;
  Recovery recovery;
};
Recovered restart(const Manager& m, const LeaseRow& lease, uint64_t bytes) {
  Recovered r;
  const Observation observed{{{lease.object, bytes}}, {"emu:0"}};
  auto recovery = r.machine.recover(m.machine.image(), observed, "boot-1", m.now_ns);
  REQUIRE(recovery.ok());
  r.recovery = std::move(recovery).value();
  for (const std::string& problem : r.machine.check_all()) FAIL_CHECK(problem);
  return r;
}

}  // namespace

TEST_CASE("resize: a lease grows at its end once its object has grown, and only then durably") {
  Manager m({10});
  const LeaseRow lease = m.grant(2);
  const Step asked = m.apply(Resize{lease.id, "alice", 4 * granule + 1, m.now_ns});
  REQUIRE(asked.reply.ok());
  CHECK(std::get<ChangePending>(*asked.reply).lease == lease.id);
  // A crash from here on finds a lease that has its new size and is being cut to the old one.
  const LeaseRow growing = *asked.delta.leases.at(lease.id);
  CHECK(growing.bytes == 5 * granule);
  CHECK(growing.target_bytes == 2 * granule);
  const auto& resize = std::get<ResizeObject>(asked.effects.at(0));
  CHECK(growing.extents == resize.extents);
  LeaseRow renewed = growing;
  renewed.ttl_ns = 20 * second;
  renewed.expiry_ns = m.now_ns + 20 * second;
  CHECK(*m.apply(Renew{lease.id, "alice", 20 * second, m.now_ns}).delta.leases.at(lease.id) == renewed);
  CHECK(resize.from_bytes == 2 * granule);
  CHECK(resize.to_bytes == 5 * granule);
  CHECK(resize.extents == std::vector<Extent>{{lease.extents[0].device, 0, 5}});  // one run, as it continues it
  CHECK(m.use().leased_bytes == 5 * granule);
  CHECK(row(m, lease.id).bytes == 2 * granule);
  for (const uint64_t bytes : {granule, 9 * granule})
    CHECK(code_of(m.apply(Resize{lease.id, "alice", bytes, m.now_ns})) == ErrorCode::busy);
  CHECK(code_of(m.apply(Transfer{lease.id, "alice", "bob", "", m.now_ns})) == ErrorCode::busy);
  CHECK(code_of(m.apply(BeginMove{lease.id, "alice", m.now_ns})) == ErrorCode::busy);

  const Step done = m.apply(ResizeFinished{lease.id, {}, m.now_ns});
  REQUIRE(done.reply.ok());
  CHECK(std::get<LeaseReply>(*done.reply).lease.bytes == 5 * granule);
  CHECK(*done.delta.leases.at(lease.id) == row(m, lease.id));
  CHECK(m.use().free_bytes == 5 * granule);
  CHECK(m.machine.tenant_use("alice").bytes == 5 * granule);
  CHECK(code_of(m.apply(ResizeFinished{lease.id, {}, m.now_ns})) == ErrorCode::not_found);
}

TEST_CASE("resize: a growth that fails gives its room back, once that is erased") {
  Manager m({10});
  const LeaseRow lease = m.grant(2);
  REQUIRE(m.apply(Resize{lease.id, "alice", 4 * granule, m.now_ns}).reply.ok());
  const Step failed = m.apply(ResizeFinished{lease.id, failure(), m.now_ns});
  CHECK(code_of(failed) == ErrorCode::io_error);
  CHECK(*failed.delta.leases.at(lease.id) == lease);
  CHECK(row(m, lease.id) == lease);
  CHECK(m.use().free_bytes == 6 * granule);
  REQUIRE(failed.effects.size() == 1);
  const auto& scrub = std::get<ScrubObject>(failed.effects[0]);
  CHECK(scrub.bytes == 2 * granule);
  CHECK(m.phase(scrub.lease) == LeasePhase::scrubbing);
  CHECK(failed.delta.leases.at(scrub.lease)->extents == scrub.extents);
  REQUIRE(m.apply(ScrubFinished{scrub.lease, {}, m.now_ns}).reply.ok());
  CHECK(m.use().free_bytes == 8 * granule);
}

TEST_CASE("resize: impossible sizes and leases are refused, the same size is answered at once") {
  Manager m({10});
  const LeaseRow lease = m.grant(2);
  CHECK(code_of(m.apply(Resize{lease.id, "alice", 0, m.now_ns})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(Resize{lease.id, "alice", 11 * granule, m.now_ns})) == ErrorCode::capacity_exhausted);
  CHECK(code_of(m.apply(Resize{lease.id, "alice", UINT64_MAX, m.now_ns})) == ErrorCode::capacity_exhausted);
  CHECK(code_of(m.apply(Resize{lease.id, "bob", granule, m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(Resize{LeaseId{77}, "", granule, m.now_ns})) == ErrorCode::not_found);
  const Step same = m.apply(Resize{lease.id, "alice", granule + 1, m.now_ns});
  CHECK(std::get<LeaseReply>(*same.reply).lease == lease);
  CHECK(same.delta.empty());
  CHECK(code_of(m.apply(Resize{lease.id, "", granule, lease.expiry_ns})) == ErrorCode::lease_expired);
  REQUIRE(m.apply(Revoke{lease.id, "", 5 * second, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(Resize{lease.id, "alice", granule, m.now_ns})) == ErrorCode::lease_revoked);
}

TEST_CASE("resize: a lease grows to at most limits::lease_extents_max extents") {
  constexpr uint64_t pieces = limits::lease_extents_max + 1;
  Manager m({2 * pieces});
  std::vector<LeaseId> odd;
  LeaseId first;
  for (uint64_t i = 0; i < 2 * pieces; ++i) {
    const LeaseRow lease = m.grant(1);
    if (i == 0) first = lease.id;
    if (i % 2 == 1) odd.push_back(lease.id);
  }
  for (const LeaseId id : odd) {
    REQUIRE(m.apply(Release{id, "alice", m.now_ns}).reply.ok());
    m.finish(id);
  }
  CHECK(code_of(m.apply(Resize{first, "alice", (pieces + 1) * granule, m.now_ns})) ==
        ErrorCode::capacity_exhausted);
  CHECK(m.use().free_bytes == pieces * granule);
  CHECK(m.apply(Resize{first, "alice", (pieces - 1) * granule, m.now_ns}).reply.ok());
}

TEST_CASE("resize: a growth counts the extents that the lease has, and what it does not get stays free") {
  constexpr uint64_t pieces = limits::lease_extents_max;
  Manager m({2 * pieces + 2});
  std::vector<LeaseId> gaps;
  const LeaseRow first = m.grant(1);
  for (uint64_t i = 1; i < 2 * pieces + 2; ++i) {
    const LeaseRow lease = m.grant(1);
    if (i % 2 == 1 && i > 1) gaps.push_back(lease.id);  // none beside the first lease
  }
  for (const LeaseId id : gaps) {
    REQUIRE(m.apply(Release{id, "alice", m.now_ns}).reply.ok());
    m.finish(id);
  }
  CHECK(code_of(m.apply(Resize{first.id, "alice", (pieces + 1) * granule, m.now_ns})) ==
        ErrorCode::capacity_exhausted);
  CHECK(m.use().free_bytes == pieces * granule);
  CHECK(m.apply(Resize{first.id, "alice", pieces * granule, m.now_ns}).reply.ok());
}

TEST_CASE("resize: a shrink's tail is erased under a lease of its own before it is free") {
  Manager m({10});
  const LeaseRow lease = m.grant(5);
  const Step asked = m.apply(Resize{lease.id, "alice", 2 * granule, m.now_ns});
  REQUIRE(asked.reply.ok());
  CHECK(asked.delta.leases.at(lease.id)->target_bytes == 2 * granule);
  const auto& resize = std::get<ResizeObject>(asked.effects.at(0));
  CHECK(resize.to_bytes == 2 * granule);
  CHECK(resize.extents == std::vector<Extent>{{lease.extents[0].device, 0, 2}});
  CHECK(m.use().leased_bytes == 5 * granule);
  CHECK(code_of(m.apply(Resize{lease.id, "alice", 4 * granule, m.now_ns})) == ErrorCode::busy);

  const Step done = m.apply(ResizeFinished{lease.id, {}, m.now_ns});
  REQUIRE(done.reply.ok());
  CHECK(std::get<LeaseReply>(*done.reply).lease.bytes == 2 * granule);
  REQUIRE(done.delta.leases.size() == 2);
  const LeaseRow tail = *done.delta.leases.rbegin()->second;
  CHECK(tail.phase == LeasePhase::scrubbing);
  CHECK(tail.cause == LeaseCause::released);
  CHECK(tail.extents == std::vector<Extent>{{lease.extents[0].device, 2, 3}});
  CHECK(tail.epoch > lease.epoch);
  CHECK(done.delta.meta->next_lease == tail.id.value + 1);
  CHECK(std::get<ScrubObject>(done.effects.at(0)).extents == tail.extents);
  CHECK(m.use().free_bytes == 5 * granule);
  CHECK(m.use().scrubbing_bytes == 3 * granule);
  CHECK(m.machine.tenant_use("alice").leases == 1);
  REQUIRE(m.apply(ScrubFinished{tail.id, {}, m.now_ns}).reply.ok());
  CHECK(m.use().free_bytes == 8 * granule);

  const Recovered r = restart(m, row(m, lease.id), 2 * granule);
  CHECK(r.recovery.effects.empty());
}

TEST_CASE("resize: a shrink that fails leaves the lease as it was") {
  Manager m({10});
  const LeaseRow lease = m.grant(5);
  REQUIRE(m.apply(Resize{lease.id, "alice", 2 * granule, m.now_ns}).reply.ok());
  const Step failed = m.apply(ResizeFinished{lease.id, failure(), m.now_ns});
  CHECK(code_of(failed) == ErrorCode::io_error);
  CHECK(*failed.delta.leases.at(lease.id) == lease);
  CHECK(row(m, lease.id) == lease);
}

TEST_CASE("resize: a lease that ends while it grows or shrinks takes all its granules with it") {
  for (const uint64_t target : {2, 7}) {
    Manager m({10});
    const LeaseRow lease = m.grant(4);
    REQUIRE(m.apply(Resize{lease.id, "alice", target * granule, m.now_ns}).reply.ok());
    const Step ended = m.apply(Revoke{lease.id, "", 0, m.now_ns});
    REQUIRE(ended.reply.ok());
    const LeaseRow fencing = *ended.delta.leases.at(lease.id);
    CHECK(fencing.bytes == std::max<uint64_t>(target, 4) * granule);
    CHECK(fencing.extents.size() == 1);
    CHECK(fencing.target_bytes == 0);
    const Step late = m.apply(ResizeFinished{lease.id, {}, m.now_ns});
    CHECK(code_of(late) == ErrorCode::lease_revoked);
    CHECK(late.delta.empty());
    m.finish(lease.id);
    CHECK(m.use().free_bytes == 10 * granule);
    CHECK(code_of(m.apply(ResizeFinished{lease.id, {}, m.now_ns})) == ErrorCode::not_found);
  }
}

TEST_CASE("resize: a lease that is being revoked with grace finishes its resize") {
  for (const uint64_t target : {2, 7}) {
    Manager m({10});
    const LeaseRow lease = m.grant(4);
    REQUIRE(m.apply(Resize{lease.id, "alice", target * granule, m.now_ns}).reply.ok());
    REQUIRE(m.apply(Revoke{lease.id, "", 5 * second, m.now_ns}).reply.ok());
    REQUIRE(m.apply(ResizeFinished{lease.id, {}, m.now_ns}).reply.ok());
    CHECK(row(m, lease.id).bytes == target * granule);
    CHECK(m.phase(lease.id) == LeasePhase::revoking);
  }
}

// Found by the simulator (seed 4989 of a mix with further commands): the holder had written to what its lease
// grew by, the manager died before the growth was durable, and the granules were free without having been
// erased.
TEST_CASE("recovery: what a growth that was cut off had taken is erased before it is free") {
  Manager m({10});
  const LeaseRow lease = m.grant(4);
  REQUIRE(m.apply(Resize{lease.id, "alice", 7 * granule, m.now_ns}).reply.ok());
  for (const uint64_t granules : {4, 7}) {  // before and after its object had grown
    Recovered r = restart(m, lease, granules * granule);
    const auto& back = std::get<ResizeObject>(r.recovery.effects.at(0));
    CHECK(back.from_bytes == granules * granule);
    CHECK(back.to_bytes == 4 * granule);
    CHECK(back.extents == lease.extents);
    CHECK(r.machine.pool_use(lease.pool).free_bytes == 3 * granule);
    const Step done = r.machine.apply(ResizeFinished{lease.id, {}, m.now_ns});
    CHECK(r.machine.find_lease(lease.id)->bytes == 4 * granule);
    CHECK(r.machine.find_lease(lease.id)->extents == lease.extents);
    const ScrubObject scrub = std::get<ScrubObject>(done.effects.at(0));
    CHECK(scrub.extents == std::vector<Extent>{{lease.extents[0].device, 4, 3}});
    CHECK(r.machine.pool_use(lease.pool).free_bytes == 3 * granule);
    REQUIRE(r.machine.apply(ScrubFinished{scrub.lease, {}, m.now_ns}).reply.ok());
    CHECK(r.machine.pool_use(lease.pool).free_bytes == 6 * granule);
    CHECK(r.machine.check_all().empty());
  }
}

TEST_CASE("recovery: an object longer than its lease is cut back, and the lease goes on") {
  Manager m({10});
  const LeaseRow lease = m.grant(4);
  Recovered r = restart(m, lease, 7 * granule);  // its holder's doing
  CHECK(*r.machine.find_lease(lease.id) == lease);
  const auto& back = std::get<ResizeObject>(r.recovery.effects.at(0));
  CHECK(back.from_bytes == 7 * granule);
  CHECK(back.to_bytes == 4 * granule);
  // Until that is done a resize of it would take its end for its own.
  CHECK(code_of(r.machine.apply(Resize{lease.id, "", 5 * granule, m.now_ns})) == ErrorCode::busy);
  CHECK(r.machine.apply(Renew{lease.id, "alice", 0, m.now_ns}).reply.ok());
  const Step done = r.machine.apply(ResizeFinished{lease.id, {}, m.now_ns});
  CHECK(done.reply.ok());
  CHECK(done.delta.empty());
  CHECK(r.machine.apply(Resize{lease.id, "", 5 * granule, m.now_ns}).reply.ok());
  CHECK(r.machine.check_all().empty());
}

TEST_CASE("recovery: a shrink goes on, whether its object was cut or not; anything shorter is lost") {
  Manager m({10});
  const LeaseRow lease = m.grant(4);
  REQUIRE(m.apply(Resize{lease.id, "alice", 2 * granule, m.now_ns}).reply.ok());
  for (const uint64_t granules : {2, 4, 6}) {
    Recovered r = restart(m, lease, granules * granule);
    const auto& cut = std::get<ResizeObject>(r.recovery.effects.at(0));
    CHECK(cut.from_bytes == granules * granule);
    CHECK(cut.to_bytes == 2 * granule);
    REQUIRE(r.machine.apply(ResizeFinished{lease.id, {}, m.now_ns}).reply.ok());
    CHECK(r.machine.find_lease(lease.id)->bytes == 2 * granule);
    CHECK(r.machine.check_all().empty());
  }
  for (const uint64_t granules : {0, 1, 3}) {
    Recovered r = restart(m, lease, granules * granule);
    CHECK(r.machine.find_lease(lease.id)->phase == LeasePhase::fencing);
    CHECK(r.machine.find_lease(lease.id)->cause == LeaseCause::object_lost);
    CHECK(r.machine.find_lease(lease.id)->target_bytes == 0);
  }
}

TEST_CASE("recovery: a tail that was being erased is erased again, without an object") {
  Manager m({10});
  const LeaseRow lease = m.grant(4);
  REQUIRE(m.apply(Resize{lease.id, "alice", granule, m.now_ns}).reply.ok());
  REQUIRE(m.apply(ResizeFinished{lease.id, {}, m.now_ns}).reply.ok());
  Recovered r = restart(m, lease, granule);
  const LeaseId tail = std::get<FenceObject>(r.recovery.effects.at(0)).lease;
  CHECK(tail != lease.id);
  REQUIRE(r.machine.apply(FenceFinished{tail, {}, m.now_ns}).reply.ok());
  REQUIRE(r.machine.apply(ScrubFinished{tail, {}, m.now_ns}).reply.ok());
  CHECK(r.machine.leases().size() == 1);
  CHECK(r.machine.check_all().empty());
}

TEST_CASE("recovery: a scrub that had freed part of its lease goes on with the rest") {
  Manager m({10});
  const LeaseRow lease = m.grant(5);
  REQUIRE(m.apply(Release{lease.id, "alice", m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(ScrubAdvanced{lease.id, 1, m.now_ns})) == ErrorCode::not_found);
  REQUIRE(m.apply(FenceFinished{lease.id, {}, m.now_ns}).reply.ok());
  REQUIRE(m.apply(ScrubAdvanced{lease.id, 3, m.now_ns}).reply.ok());
  Recovered r = restart(m, lease, 0);
  CHECK(r.machine.find_lease(lease.id)->phase == LeasePhase::fencing);
  CHECK(r.machine.pool_use(lease.pool).free_bytes == 8 * granule);
}
