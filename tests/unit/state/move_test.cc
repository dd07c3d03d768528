// SPDX-License-Identifier: Apache-2.0
// Moving a lease: a target beside it, then one step that swaps the two.
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

LeaseId begin(Manager& m, const LeaseRow& lease) {
  const Step step = m.apply(BeginMove{lease.id, lease.tenant, m.now_ns});
  REQUIRE(step.reply.ok());
  return std::get<GrantPending>(*step.reply).lease;
}

LeaseId begin_carved(Manager& m, const LeaseRow& lease) {
  const LeaseId target = begin(m, lease);
  REQUIRE(m.apply(CarveFinished{target, {}, m.now_ns}).reply.ok());
  return target;
}

}  // namespace

TEST_CASE("move: the target is placed and carved as a grant is, without label, key or use") {
  Manager m({10});
  Grant asked = m.request(3 * granule);
  asked.label = "weights";
  asked.request_low = 4;
  const LeaseRow lease = m.grant(asked);
  const Step step = m.apply(BeginMove{lease.id, "alice", m.now_ns});
  REQUIRE(step.reply.ok());
  const LeaseId id = std::get<GrantPending>(*step.reply).lease;
  CHECK(step.delta.empty());
  const LeaseRow target = *m.machine.find_lease(id);
  CHECK(target.label.empty());
  CHECK(target.request_low == 0);
  CHECK(target.object == "lease-" + std::to_string(id.value));
  CHECK(target.deadline_ns == m.now_ns + limits::move_ns_max);
  CHECK(std::get<CarveObject>(step.effects.at(0)).extents == target.extents);
  CHECK(m.machine.tenant_use("alice").bytes == 3 * granule);
  CHECK(m.use().free_bytes == 4 * granule);
  CHECK(m.machine.image().leases.size() == 1);
  CHECK(code_of(m.apply(BeginMove{lease.id, "alice", m.now_ns})) == ErrorCode::busy);
  CHECK(code_of(m.apply(Resize{lease.id, "alice", granule, m.now_ns})) == ErrorCode::busy);
  CHECK(code_of(m.apply(Transfer{lease.id, "alice", "bob", "", m.now_ns})) == ErrorCode::busy);
  CHECK(code_of(m.apply(Release{id, "alice", m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(FinishMove{lease.id, id, "alice", true, m.now_ns})) == ErrorCode::busy);

  const Step carved = m.apply(CarveFinished{id, {}, m.now_ns});
  REQUIRE(carved.reply.ok());
  const MoveReady ready = std::get<MoveReady>(*carved.reply);
  CHECK(ready.lease == lease.id);
  CHECK(ready.target == id);
  CHECK(ready.object == target.object);
  CHECK(ready.bytes == 3 * granule);
  CHECK(carved.delta.leases.empty());
  CHECK(carved.delta.meta.has_value());  // its id is shown from here on: a crash must not give it again
  CHECK(m.machine.image().leases.size() == 1);
}

TEST_CASE("move: finishing it swaps object, extents and epoch in one step and fences the old ones") {
  Manager m({10});
  Grant asked = m.request(3 * granule);
  asked.label = "weights";
  const LeaseRow lease = m.grant(asked);
  const LeaseId target = begin_carved(m, lease);
  const LeaseRow before = *m.machine.find_lease(target);
  const Step done = m.apply(FinishMove{lease.id, target, "alice", true, m.now_ns});
  REQUIRE(done.reply.ok());
  const LeaseRow moved = std::get<LeaseReply>(*done.reply).lease;
  CHECK(moved.extents == before.extents);
  CHECK(moved.object == before.object);
  CHECK(moved.epoch == before.epoch);
  CHECK(moved.epoch > lease.epoch);
  CHECK(moved.label == "weights");
  CHECK(moved.expiry_ns == lease.expiry_ns);
  REQUIRE(done.delta.leases.size() == 2);
  CHECK(*done.delta.leases.at(lease.id) == moved);
  const LeaseRow old = *done.delta.leases.at(target);
  CHECK(old.phase == LeasePhase::fencing);
  CHECK(old.cause == LeaseCause::moved);
  CHECK(old.extents == lease.extents);
  CHECK(old.object == lease.object);
  CHECK(done.delta.meta->next_lease > target.value);
  CHECK(std::get<FenceObject>(done.effects.at(0)).object == lease.object);
  CHECK(m.machine.find_lease_by_label("alice", "weights")->id == lease.id);

  // The reply may have been lost.
  const Step again = m.apply(FinishMove{lease.id, target, "alice", true, m.now_ns});
  CHECK(std::get<LeaseReply>(*again.reply).lease == moved);
  CHECK(again.delta.empty());
  m.finish(target);
  CHECK(std::get<LeaseReply>(*m.apply(FinishMove{lease.id, target, "alice", true, m.now_ns}).reply).lease ==
        moved);
  CHECK(m.use().free_bytes == 7 * granule);
  CHECK(m.machine.tenant_use("alice").bytes == 3 * granule);

  const LeaseId second_target = begin_carved(m, moved);  // and once more
  REQUIRE(m.apply(FinishMove{lease.id, second_target, "alice", true, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(FinishMove{lease.id, target, "alice", true, m.now_ns})) == ErrorCode::not_found);
}

TEST_CASE("move: leases that cannot move, room that is not there and strangers refuse it") {
  Manager m({10});
  const LeaseRow lease = m.grant(6);
  CHECK(code_of(m.apply(BeginMove{lease.id, "alice", m.now_ns})) == ErrorCode::capacity_exhausted);
  const LeaseRow small = m.grant(2);
  CHECK(code_of(m.apply(BeginMove{small.id, "bob", m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(BeginMove{small.id, "alice", small.expiry_ns})) == ErrorCode::lease_expired);
  CHECK(code_of(m.apply(FinishMove{small.id, LeaseId{99}, "alice", true, m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(FinishMove{small.id, small.id, "alice", true, m.now_ns})) == ErrorCode::not_found);
  const LeaseId target = begin_carved(m, small);
  CHECK(code_of(m.apply(FinishMove{small.id, target, "bob", true, m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(FinishMove{lease.id, target, "alice", true, m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(FinishMove{small.id, target, "alice", true, small.expiry_ns})) ==
        ErrorCode::lease_expired);
  REQUIRE(m.apply(Revoke{small.id, "", 5 * second, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(FinishMove{small.id, target, "alice", true, m.now_ns})) == ErrorCode::lease_revoked);
  CHECK(code_of(m.apply(BeginMove{small.id, "alice", m.now_ns})) == ErrorCode::lease_revoked);
}

TEST_CASE("move: room reserved for other tenants is no room for a target") {
  Manager m({10});
  const LeaseRow lease = m.grant(3);
  REQUIRE(m.apply(CreateReservation{"p", "bob", 5 * granule, 0, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(BeginMove{lease.id, "alice", m.now_ns})) == ErrorCode::capacity_exhausted);
}

TEST_CASE("move: a target that cannot be carved is forgotten") {
  Manager m({10});
  const LeaseRow lease = m.grant(3);
  const LeaseId target = begin(m, lease);
  const Step failed = m.apply(CarveFinished{target, failure(), m.now_ns});
  CHECK(code_of(failed) == ErrorCode::io_error);
  CHECK(m.machine.find_lease(target) == nullptr);
  CHECK(m.use().free_bytes == 7 * granule);
  (void)begin(m, lease);
}

TEST_CASE("move: a device that is lost takes a target on it with it, and not the lease") {
  for (const bool vanished : {true, false}) {
    Manager m({2, 2});
    const LeaseRow lease = m.grant(2);
    const LeaseId target = begin_carved(m, lease);
    const DeviceId below = m.machine.find_lease(target)->extents.front().device;
    REQUIRE(below != lease.extents.front().device);
    const std::string serial = m.machine.find_device(below)->serial;
    const Step lost = vanished ? m.apply(DeviceLost{serial, m.now_ns}) : m.apply(FailDevice{serial, m.now_ns});
    REQUIRE(lost.effects.size() == 1);
    CHECK(std::get<FenceObject>(lost.effects[0]).lease == target);
    CHECK(m.phase(target) == LeasePhase::fencing);
    CHECK(m.phase(lease.id) == LeasePhase::active);
    CHECK(code_of(m.apply(FinishMove{lease.id, target, "alice", true, m.now_ns})) == ErrorCode::not_found);
  }
}

TEST_CASE("move: given up, past its deadline or with its lease ended, the target is destroyed") {
  enum class How { given_up, deadline, ended };
  for (const How how : {How::given_up, How::deadline, How::ended}) {
    for (const bool carved : {true, false}) {
      Manager m({10});
      Grant asked = m.request(3 * granule);
      asked.persistent = true;
      asked.ttl_ns = 0;
      const LeaseRow lease = m.grant(asked);
      const LeaseId target = carved ? begin_carved(m, lease) : begin(m, lease);
      Step step;
      if (how == How::given_up) step = m.apply(FinishMove{lease.id, target, "alice", false, m.now_ns});
      if (how == How::deadline) step = m.apply(Tick{m.now_ns + limits::move_ns_max});
      if (how == How::ended) step = m.apply(Release{lease.id, "alice", m.now_ns});
      REQUIRE(step.reply.ok());
      CHECK_FALSE(m.machine.next_due_ns().has_value());
      if (!carved) {
        CHECK_FALSE(step.delta.leases.contains(target));
        CHECK(m.phase(target) == LeasePhase::pending);
        if (how != How::ended) {
          const LeaseId other = begin(m, lease);  // a new move need not wait for that
          REQUIRE(m.apply(CarveFinished{other, failure(), m.now_ns}).effects.empty());
        }
        step = m.apply(CarveFinished{target, {}, m.now_ns});
        CHECK(code_of(step) == ErrorCode::cancelled);
      }
      const LeaseRow row = *step.delta.leases.at(target);
      CHECK(row.phase == LeasePhase::fencing);
      CHECK(row.cause == LeaseCause::released);
      CHECK(row.reason == "move given up");
      CHECK(step.delta.meta->next_lease > target.value);
      CHECK(code_of(m.apply(FinishMove{lease.id, target, "alice", true, m.now_ns})) == ErrorCode::not_found);
      m.finish(target);
      if (how == How::ended) m.finish(lease.id);
      CHECK(m.use().free_bytes == (how == How::ended ? 10 : 7) * granule);
    }
  }
}

TEST_CASE("recovery: a move that was not finished is forgotten, one that was stays finished") {
  Manager m({10});
  const LeaseRow lease = m.grant(3);
  const LeaseId target = begin_carved(m, lease);
  const std::string beside = m.machine.find_lease(target)->object;
  const Observation observed{{{lease.object, lease.bytes}, {beside, lease.bytes}}, {"emu:0"}};
  StateMachine unfinished;
  const auto first = unfinished.recover(m.machine.image(), observed, "boot-1", m.now_ns);
  REQUIRE(first.ok());
  CHECK(first->orphans == std::vector<std::string>{beside});
  CHECK(*unfinished.find_lease(lease.id) == lease);

  REQUIRE(m.apply(FinishMove{lease.id, target, "alice", true, m.now_ns}).reply.ok());
  StateMachine finished;
  const auto second_start = finished.recover(m.machine.image(), observed, "boot-1", m.now_ns);
  REQUIRE(second_start.ok());
  CHECK(second_start->orphans.empty());
  CHECK(finished.find_lease(lease.id)->object == beside);
  CHECK(std::get<FenceObject>(second_start->effects.at(0)).object == lease.object);
  CHECK(finished.check_all().empty());
}

// Found by review: a revocation of a lease whose Tick was late gave it a new life for the length of the grace.
TEST_CASE("StateMachine: revoking a lease that has lapsed does not revive it") {
  Manager m({4});
  const LeaseRow lease = m.grant(1);
  const Step step = m.apply(Revoke{lease.id, "maintenance", 60 * second, lease.expiry_ns});
  REQUIRE(step.reply.ok());
  CHECK(std::get<LeaseReply>(*step.reply).lease.cause == LeaseCause::expired);
  CHECK(m.phase(lease.id) == LeasePhase::fencing);
  CHECK(std::get<FenceObject>(step.effects.at(0)).lease == lease.id);
  CHECK(code_of(m.apply(Renew{lease.id, "alice", 0, lease.expiry_ns})) == ErrorCode::lease_expired);
}
