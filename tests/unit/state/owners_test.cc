// SPDX-License-Identifier: Apache-2.0
// Owners of the parts of a lease: one at a time, under epochs that grow over everything that happens to the
// lease.
#include <doctest/doctest.h>

#include "daemon/model/owner_limits.h"
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

constexpr ProcessId first{100, 7, 1}, second_process{200, 8, 1}, reused{100, 9, 1};

struct Owners : Manager {
  Owners() : Manager({10}) {
    Grant asked = request(4 * granule);
    asked.mode = LeaseMode::shared_coherent;
    asked.movable = true;
    lease = grant(asked);
  }
  ClaimPart claim(const ProcessId& process, uint64_t key, uint64_t part = 0) const {
    ClaimPart command{.lease = lease.id, .tenant = "alice", .part = part};
    command.request = key;
    command.process = process;
    command.holder = "python3[" + std::to_string(process.pid) + "]";
    command.now_ns = now_ns;
    return command;
  }
  uint64_t epoch_of(const Step& step) const {
    REQUIRE_MESSAGE(step.reply.ok(), step.reply.error().to_string());
    return std::get<OwnerReply>(*step.reply).owner.epoch;
  }
  Step release(const ProcessId& process, uint64_t epoch, uint64_t part = 0) {
    return apply(ReleasePart{lease.id, "alice", part, epoch, process});
  }
  StateMachine restarted(const std::string& boot) const {
    StateMachine again;
    const Observation observed{{{lease.object, lease.bytes}}, {"emu:0"}};
    const auto recovery = again.recover(machine.image(), observed, boot, now_ns);
    REQUIRE_MESSAGE(recovery.ok(), recovery.error().to_string());
    for (const std::string& problem : again.check_all()) FAIL_CHECK(problem);
    return again;
  }
  LeaseRow lease;
};

}  // namespace

TEST_CASE("owners: a part has one owner, who is named to the others") {
  Owners m;
  const Step claimed = m.apply(m.claim(first, 11));
  CHECK(m.epoch_of(claimed) == 1);
  CHECK(claimed.delta.owners.at(part_id(m.lease.id, 0))->process == first);
  const Step refused = m.apply(m.claim(second_process, 12));
  CHECK(code_of(refused) == ErrorCode::busy);
  for (const char* word : {"part 0", "lease 1", "python3[100]", "process 100", "host"})
    CHECK(refused.reply.error().detail.find(word) != std::string::npos);
  CHECK(code_of(m.apply(m.claim(first, 13))) == ErrorCode::busy);   // the same process, another claim
  CHECK(m.epoch_of(m.apply(m.claim(second_process, 12, 1))) == 1);  // another part
  CHECK(m.machine.owners_of(m.lease.id).size() == 2);
}

TEST_CASE("owners: a claim that is repeated is answered the same") {
  Owners m;
  CHECK(m.epoch_of(m.apply(m.claim(first, 11))) == 1);
  const Step again = m.apply(m.claim(first, 11));
  CHECK(m.epoch_of(again) == 1);
  CHECK(again.delta.empty());
  CHECK(code_of(m.apply(m.claim(reused, 11))) == ErrorCode::busy);  // the number is another process's now
}

TEST_CASE("owners: a part that was given back goes to the next one under a greater epoch") {
  Owners m;
  REQUIRE(m.apply(m.claim(first, 11)).reply.ok());
  CHECK(code_of(m.release(second_process, 1)) == ErrorCode::permission_denied);
  CHECK(code_of(m.release(first, 2)) == ErrorCode::invalid_argument);
  CHECK(code_of(m.release(first, 0)) == ErrorCode::invalid_argument);
  REQUIRE(m.release(first, 1).reply.ok());
  CHECK(m.release(first, 1).delta.empty());  // repeated
  CHECK(m.epoch_of(m.apply(m.claim(second_process, 12))) == 2);
  CHECK(m.release(first, 1).delta.empty());  // late: it is not its any more
  CHECK(m.machine.find_owner(m.lease.id, 0)->process == second_process);
  REQUIRE(m.release(second_process, 2).reply.ok());
  CHECK(m.epoch_of(m.apply(m.claim(second_process, 13))) == 3);
  CHECK(m.release(second_process, 2).delta.empty());  // late, and of an earlier time of the same process
  CHECK(m.machine.find_owner(m.lease.id, 0)->process == second_process);
}

TEST_CASE("owners: only the epoch whose owner was seen to have ended gives way") {
  Owners m;
  REQUIRE(m.apply(m.claim(first, 11)).reply.ok());
  ClaimPart claim = m.claim(second_process, 12);
  claim.dead_epoch = 2;
  CHECK(code_of(m.apply(claim)) == ErrorCode::busy);
  claim.dead_epoch = 1;
  CHECK(m.epoch_of(m.apply(claim)) == 2);
  ClaimPart late = m.claim(reused, 13);  // saw the same death, and comes second
  late.dead_epoch = 1;
  CHECK(code_of(m.apply(late)) == ErrorCode::busy);
}

TEST_CASE("owners: an epoch is beyond what was seen in the part, and cannot be used up") {
  Owners m;
  ClaimPart claim = m.claim(first, 11);
  claim.last_epoch = 41;
  CHECK(m.epoch_of(m.apply(claim)) == 42);
  REQUIRE(m.release(first, 42).reply.ok());
  claim.request = 12;
  claim.last_epoch = 7;
  CHECK(m.epoch_of(m.apply(claim)) == 43);
  REQUIRE(m.release(first, 43).reply.ok());
  for (const uint64_t absurd : {UINT64_MAX, uint64_t{1} << 62, (uint64_t{1} << 48) + 1}) {
    claim.last_epoch = absurd;
    CHECK(code_of(m.apply(claim)) == ErrorCode::invalid_argument);
  }
  claim.last_epoch = uint64_t{1} << 48;
  CHECK(m.epoch_of(m.apply(claim)) == (uint64_t{1} << 48) + 1);
}

TEST_CASE("owners: impossible parts, other tenants, other modes and ended leases are refused") {
  Owners m;
  CHECK(code_of(m.apply(m.claim(first, 11, 64))) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(m.claim(first, 11, UINT64_MAX))) == ErrorCode::invalid_argument);
  CHECK(code_of(m.release(first, 1, 64)) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(m.claim(first, 0))) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(m.claim({}, 11))) == ErrorCode::invalid_argument);
  ClaimPart other = m.claim(first, 11);
  other.tenant = "bob";
  CHECK(code_of(m.apply(other)) == ErrorCode::not_found);
  const LeaseRow exclusive = m.grant(1);
  ClaimPart wrong = m.claim(first, 11);
  wrong.lease = exclusive.id;
  CHECK(code_of(m.apply(wrong)) == ErrorCode::unsupported);
  REQUIRE(m.apply(m.claim(first, 11, 63)).reply.ok());
  REQUIRE(m.apply(Revoke{m.lease.id, "", 0, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(m.claim(first, 11, 63))) == ErrorCode::lease_revoked);
}

TEST_CASE("owners: the end of a lease ends them, and a hand-over makes the parts nobody's") {
  Owners m;
  REQUIRE(m.apply(m.claim(first, 11)).reply.ok());
  REQUIRE(m.apply(m.claim(first, 12, 5)).reply.ok());
  REQUIRE(m.apply(Transfer{m.lease.id, "alice", "bob", "", m.now_ns}).reply.ok());
  ClaimPart claim = m.claim(second_process, 13);
  claim.tenant = "bob";
  // The old holders are being shut out, and store until they are.
  CHECK(m.machine.find_owner(m.lease.id, 0)->process == first);
  CHECK(code_of(m.apply(claim)) == ErrorCode::busy);
  CHECK(m.restarted("boot-1").find_owner(m.lease.id, 0)->process == first);
  const Step handed = m.apply(RebindFinished{m.lease.id, {}, m.now_ns});
  REQUIRE(handed.reply.ok());
  CHECK(handed.delta.owners.size() == 2);
  CHECK(m.machine.find_owner(m.lease.id, 0)->process.pid == 0);
  CHECK(m.epoch_of(m.apply(claim)) == 2);
  const Step ended = m.apply(Release{m.lease.id, "bob", m.now_ns});
  CHECK_FALSE(ended.delta.owners.at(part_id(m.lease.id, 0)).has_value());
  CHECK_FALSE(ended.delta.owners.at(part_id(m.lease.id, 5)).has_value());
  CHECK(m.machine.owners_of(m.lease.id).empty());
}

TEST_CASE("owners: a move leaves them") {
  Owners m;
  REQUIRE(m.apply(m.claim(first, 11)).reply.ok());
  const Step begun = m.apply(BeginMove{m.lease.id, "alice", m.now_ns});
  REQUIRE(begun.reply.ok());
  const LeaseId target = std::get<GrantPending>(*begun.reply).lease;
  REQUIRE(m.apply(CarveFinished{target, {}, m.now_ns}).reply.ok());
  REQUIRE(m.apply(FinishMove{m.lease.id, target, "alice", true, m.now_ns}).reply.ok());
  CHECK(m.machine.find_owner(m.lease.id, 0)->process == first);
  CHECK(m.machine.owners_of(target).empty());
}

TEST_CASE("owners: a restart keeps them, a reboot keeps the epochs only") {
  Owners m;
  REQUIRE(m.apply(m.claim(first, 11)).reply.ok());
  const StateMachine same = m.restarted("boot-1");
  CHECK(same.find_owner(m.lease.id, 0)->process == first);
  StateMachine other = m.restarted("boot-2");
  CHECK(other.find_owner(m.lease.id, 0)->process.pid == 0);
  CHECK(m.epoch_of(other.apply(m.claim(second_process, 12))) == 2);
}

TEST_CASE("owners: a boot id that cannot be read ends nobody's ownership, then or later") {
  Owners m;
  REQUIRE(m.apply(m.claim(first, 11)).reply.ok());
  StateMachine unread = m.restarted("");
  CHECK(unread.find_owner(m.lease.id, 0)->process == first);
  CHECK(code_of(unread.apply(m.claim(second_process, 12))) == ErrorCode::busy);
  m.machine = std::move(unread);  // what claimed since then may be of this boot or of one before
  CHECK(m.restarted("boot-2").find_owner(m.lease.id, 0)->process == first);
}

TEST_CASE("recovery: owners that no lease can have are corrupt") {
  Owners m;
  REQUIRE(m.apply(m.claim(first, 11)).reply.ok());
  const LeaseRow exclusive = m.grant(1);
  const auto code = [&](auto change) {
    Image image = m.machine.image();
    change(image);
    StateMachine again;
    const auto recovery = again.recover(image, {{}, {"emu:0"}}, "boot-1", m.now_ns);
    return recovery.ok() ? ErrorCode::ok : recovery.error().code;
  };
  CHECK(code([](Image&) {}) == ErrorCode::ok);
  CHECK(code([](Image& i) { i.owners[0].id = part_id(LeaseId{99}, 0); }) == ErrorCode::corrupt);
  CHECK(code([&](Image& i) { i.owners[0].id = part_id(exclusive.id, 0); }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.owners[0].epoch = 0; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.owners.push_back(i.owners[0]); }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.owners[0].holder = "a\nb"; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.owners[0].request = 0; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.owners[0].process = {}; }) == ErrorCode::corrupt);  // half of an owner
  CHECK(code([](Image& i) { i.owners[0] = {.id = i.owners[0].id, .epoch = 3}; }) == ErrorCode::ok);
  CHECK(code([](Image& i) { i.pools[0].coherence = static_cast<PoolCoherence>(3); }) == ErrorCode::corrupt);
}

TEST_CASE("owners: a long name is refused, and so are more owners than the manager keeps") {
  Owners m;
  ClaimPart claim = m.claim(first, 11);
  claim.holder = std::string(owner_limits::holder_bytes_max + 1, 'x');
  CHECK(code_of(m.apply(claim)) == ErrorCode::invalid_argument);
  claim.holder.pop_back();
  CHECK(m.epoch_of(m.apply(claim)) == 1);

  constexpr uint64_t leases = owner_limits::rows_max / lease_parts_max;
  Manager many({leases + 1});
  Grant asked = many.request(granule);
  asked.mode = LeaseMode::shared_coherent;
  std::vector<LeaseId> ids;
  for (uint64_t i = 0; i <= leases; ++i) {  // without the checks of apply(), which look at everything each time
    const Step pending = many.machine.apply(asked);
    ids.push_back(std::get<GrantPending>(*pending.reply).lease);
    REQUIRE(many.machine.apply(CarveFinished{ids.back(), {}, many.now_ns}).reply.ok());
  }
  const auto own = [&](LeaseId lease, uint64_t part) {
    ClaimPart one = m.claim(first, 11, part);
    one.lease = lease;
    return many.machine.apply(one);
  };
  for (uint64_t i = 0; i < leases; ++i)
    for (uint64_t part = 0; part < lease_parts_max; ++part) REQUIRE(own(ids[i], part).reply.ok());
  CHECK(code_of(own(ids[leases], 0)) == ErrorCode::limit_exceeded);
  CHECK(own(ids[0], 0).reply.ok());  // has it already
  REQUIRE(many.machine.apply(Release{ids[0], "alice", many.now_ns}).reply.ok());
  CHECK(own(ids[leases], 0).reply.ok());
}

TEST_CASE("pools: their coherence is said when they are made, and changed later") {
  Manager m({10});
  CHECK(m.machine.find_pool("p")->coherence == PoolCoherence::unknown);
  const Step changed = m.apply(SetPoolCoherence{"p", PoolCoherence::coherent});
  CHECK(std::get<PoolReply>(*changed.reply).pool.coherence == PoolCoherence::coherent);
  CHECK(changed.delta.pools.size() == 1);
  CHECK(m.apply(SetPoolCoherence{"p", PoolCoherence::coherent}).delta.empty());
  CHECK(code_of(m.apply(SetPoolCoherence{"q", PoolCoherence::coherent})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(SetPoolCoherence{"p", static_cast<PoolCoherence>(3)})) == ErrorCode::invalid_argument);
  REQUIRE(m.adopt("emu:9", 4).reply.ok());
  CreatePool create{"q", {"emu:9"}};
  create.coherence = PoolCoherence::noncoherent;
  REQUIRE(m.apply(create).reply.ok());
  CHECK(m.machine.find_pool("q")->coherence == PoolCoherence::noncoherent);
}
