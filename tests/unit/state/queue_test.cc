// Grants that wait for a full pool: order, fairness, deadlines, cancelling.
#include <algorithm>

#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

Grant asks(const Manager& m, const std::string& tenant, uint64_t granules, uint64_t wait_s = 60) {
  Grant asked = m.request(granules * granule);
  asked.tenant = tenant;
  asked.persistent = true;
  asked.ttl_ns = 0;
  asked.wait_ns = wait_s * second;
  return asked;
}

LeaseId wait(Manager& m, const Grant& asked) {
  const Step step = m.apply(asked);
  REQUIRE(step.reply.ok());
  const LeaseId id = std::get<GrantPending>(*step.reply).lease;
  REQUIRE(m.phase(id) == LeasePhase::waiting);
  CHECK(step.delta.empty());
  CHECK(step.effects.empty());
  return id;
}

// The leases that a step began to carve.
std::vector<LeaseId> served(const Step& step) {
  std::vector<LeaseId> ids;
  for (const Effect& effect : step.effects)
    if (const auto* carve = std::get_if<CarveObject>(&effect)) ids.push_back(carve->lease);
  return ids;
}

Step free_up(Manager& m, LeaseId id) {
  REQUIRE(m.apply(Release{id, "", m.now_ns}).reply.ok());
  REQUIRE(m.apply(FenceFinished{id, {}, m.now_ns}).reply.ok());
  return m.apply(ScrubFinished{id, {}, m.now_ns});
}

}  // namespace

TEST_CASE("queue: a grant waits for a full pool and is served when room is free") {
  Manager m({4});
  const LeaseRow lease = m.grant(asks(m, "alice", 4, 0));
  Grant asked = asks(m, "bob", 3);
  asked.label = "weights";
  asked.request_low = 5;
  const LeaseId id = wait(m, asked);
  CHECK(m.use().waiting == 1);
  CHECK(m.use().waiting_bytes == 3 * granule);
  CHECK(m.use().leases == 1);
  CHECK(m.machine.has_waiting(m.machine.find_pool("p")->id));
  CHECK(*m.machine.next_due_ns() == m.now_ns + 60 * second);
  CHECK(m.machine.image().leases.size() == 1);
  // It is known by its key and its label, and nobody's to use.
  CHECK(std::get<GrantPending>(*m.apply(asked).reply).lease == id);
  asked.request_low = 6;
  CHECK(code_of(m.apply(asked)) == ErrorCode::already_exists);
  CHECK(code_of(m.apply(Renew{id, "bob", 0, m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(Release{id, "bob", m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(Revoke{id, "", 0, m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(Resize{id, "bob", granule, m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(CarveFinished{id, {}, m.now_ns})) == ErrorCode::not_found);

  const LeaseEpoch old_epoch = m.machine.find_lease(lease.id)->epoch;
  const Step step = free_up(m, lease.id);
  CHECK(served(step) == std::vector<LeaseId>{id});
  CHECK(m.phase(id) == LeasePhase::pending);
  CHECK(m.machine.find_lease(id)->epoch > old_epoch);
  CHECK_FALSE(m.machine.has_waiting(m.machine.find_pool("p")->id));
  CHECK_FALSE(m.machine.next_due_ns().has_value());
  const Step carved = m.apply(CarveFinished{id, {}, m.now_ns});
  CHECK(std::get<LeaseReply>(*carved.reply).lease.label == "weights");
}

// Who waits with a client has to know which lease is in the queue, and must not guess it from the newest id.
TEST_CASE("queue: the reply says whether the grant is in the queue") {
  const auto pending = [](const Step& step) { return std::get<GrantPending>(*step.reply); };
  Manager m({4});
  REQUIRE(m.apply(CreateReservation{"p", "carol", granule, 0, m.now_ns}).reply.ok());
  CHECK_FALSE(pending(m.apply(asks(m, "alice", 1))).queued);  // room enough
  (void)m.grant(asks(m, "alice", 2, 0));
  Grant asked = asks(m, "bob", 2);
  asked.request_low = 5;
  const GrantPending first = pending(m.apply(asked));
  CHECK(first.queued);
  CHECK(m.phase(first.lease) == LeasePhase::waiting);
  const GrantPending again = pending(m.apply(asked));  // a retry, while another is the newest
  CHECK(again.queued);
  CHECK(again.lease == first.lease);
  CHECK_FALSE(pending(m.apply(asks(m, "carol", 1))).queued);  // what her reservation covers waits for nobody
  REQUIRE(m.apply(CancelGrant{first.lease}).reply.ok());
  const GrantPending anew = pending(m.apply(asked));
  CHECK(anew.queued);
  CHECK(anew.lease != first.lease);
}

// The sum of what waits is kept in 64 bits, and each of many may ask for all of a pool.
TEST_CASE("queue: requests for more bytes than can be counted do not wait") {
  Manager m;
  constexpr uint64_t granules = device_granules_max;
  constexpr uint64_t large = 4 * granule;
  REQUIRE(m.apply(AdoptDevice{"emu:0", "emulated", granules / 2 * large, large}).reply.ok());
  REQUIRE(m.apply(CreatePool{"p", {"emu:0"}}).reply.ok());
  Grant all = asks(m, "alice", 0);
  all.bytes = granules / 2 * large;  // 2^62
  Grant none = asks(m, "alice", 1, 0);
  (void)m.grant(none);
  std::vector<LeaseId> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(wait(m, all));
  CHECK(code_of(m.apply(all)) == ErrorCode::limit_exceeded);
  for (const LeaseId id : waiting) REQUIRE(m.apply(CancelGrant{id}).reply.ok());
  CHECK(m.use().waiting_bytes == 0);
}

// A LeaseEpoch orders the holders of the same bytes: one that was given while waiting would be too old.
TEST_CASE("queue: a served grant has a later epoch than whoever had its granules before") {
  Manager m({4});
  const LeaseRow first = m.grant(asks(m, "alice", 2, 0));
  const LeaseRow second_lease = m.grant(asks(m, "alice", 2, 0));
  const LeaseId waiting = wait(m, asks(m, "bob", 2));
  (void)first;
  REQUIRE(m.apply(Transfer{second_lease.id, "", "carol", "", m.now_ns}).reply.ok());
  REQUIRE(m.apply(RebindFinished{second_lease.id, {}, m.now_ns}).reply.ok());
  const LeaseEpoch before = m.machine.find_lease(second_lease.id)->epoch;
  (void)free_up(m, second_lease.id);
  CHECK(m.machine.find_lease(waiting)->epoch > before);
}

TEST_CASE("queue: what could never fit, waits too long or is refused otherwise does not queue") {
  Manager m({4});
  (void)m.grant(asks(m, "alice", 4, 0));
  CHECK(code_of(m.apply(asks(m, "bob", 5))) == ErrorCode::capacity_exhausted);
  CHECK(code_of(m.apply(asks(m, "bob", 1, 3601))) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(asks(m, "b b", 1))) == ErrorCode::invalid_argument);
  REQUIRE(m.apply(SetQuota{{"bob", granule, 0}}).reply.ok());
  CHECK(code_of(m.apply(asks(m, "bob", 2))) == ErrorCode::limit_exceeded);
  CHECK(m.use().waiting == 0);
}

TEST_CASE("queue: while somebody waits nothing overtakes, and who will not wait is told of the queue") {
  Manager m({4});
  const LeaseRow lease = m.grant(asks(m, "alice", 3, 0));
  const LeaseId large = wait(m, asks(m, "bob", 4));
  const Step refused = m.apply(asks(m, "carol", 1, 0));
  CHECK(code_of(refused) == ErrorCode::capacity_exhausted);
  CHECK(refused.reply.error().detail.find("1 request waits") != std::string::npos);
  CHECK(code_of(m.apply(Resize{lease.id, "alice", 4 * granule, m.now_ns})) == ErrorCode::capacity_exhausted);
  const LeaseId small = wait(m, asks(m, "carol", 1));  // it would fit
  CHECK(served(free_up(m, lease.id)) == std::vector<LeaseId>{large});
  CHECK(m.phase(small) == LeasePhase::waiting);
}

TEST_CASE("queue: a turn that ends without a lease lets the next ones in") {
  Manager m({4});
  (void)m.grant(asks(m, "alice", 2, 0));
  const LeaseId large = wait(m, asks(m, "bob", 3));
  const LeaseId small = wait(m, asks(m, "carol", 1));
  const LeaseId other = wait(m, asks(m, "carol", 1));
  CHECK(m.apply(CancelGrant{other}).effects.empty());  // not its turn: nothing changes for the others
  CHECK(m.machine.find_lease(other) == nullptr);
  const Step cancelled = m.apply(CancelGrant{large});
  CHECK(cancelled.reply.ok());
  CHECK(served(cancelled) == std::vector<LeaseId>{small});
  CHECK(m.machine.find_lease(large) == nullptr);
  CHECK(m.apply(CancelGrant{large}).reply.ok());
  CHECK(m.apply(CancelGrant{small}).effects.empty());  // already being carved: left alone
  CHECK(m.phase(small) == LeasePhase::pending);
}

TEST_CASE("queue: past its deadline a grant is refused in words, and the next are served") {
  Manager m({4});
  (void)m.grant(asks(m, "alice", 2, 0));
  const LeaseId large = wait(m, asks(m, "bob", 3, 5));
  const LeaseId small = wait(m, asks(m, "carol", 1, 50));
  CHECK(m.apply(Tick{m.now_ns + 5 * second - 1}).effects.empty());
  const Step due = m.apply(Tick{m.now_ns + 5 * second});
  CHECK(due.delta.empty());
  REQUIRE(due.effects.size() == 2);
  const auto& refused = std::get<RefuseGrant>(due.effects[0]);
  CHECK(refused.lease == large);
  CHECK(refused.error.code == ErrorCode::capacity_exhausted);
  CHECK(refused.error.detail.find("waited 5 s") != std::string::npos);
  CHECK(refused.error.detail.find("4 MiB free, 1 other waits") != std::string::npos);
  CHECK(served(due) == std::vector<LeaseId>{small});
  CHECK(m.machine.find_lease(large) == nullptr);
}

TEST_CASE("queue: a failed carve, a partial scrub and a removed reservation make room for those who wait") {
  Manager m({6});
  const LeaseId pending = std::get<GrantPending>(*m.apply(asks(m, "alice", 2, 0)).reply).lease;
  const LeaseRow lease = m.grant(asks(m, "alice", 4, 0));
  const LeaseId first = wait(m, asks(m, "bob", 2));
  const Step failed = m.apply(CarveFinished{pending, failure(), m.now_ns});
  CHECK(code_of(failed) == ErrorCode::io_error);
  CHECK(served(failed) == std::vector<LeaseId>{first});

  const LeaseId next = wait(m, asks(m, "bob", 3));
  REQUIRE(m.apply(Release{lease.id, "", m.now_ns}).reply.ok());
  REQUIRE(m.apply(FenceFinished{lease.id, {}, m.now_ns}).reply.ok());
  const Step some = m.apply(ScrubAdvanced{lease.id, 2, m.now_ns});
  CHECK(served(some).empty());
  CHECK(some.delta.leases.at(lease.id)->bytes == 2 * granule);
  CHECK(m.use().free_bytes == 2 * granule);
  CHECK(served(m.apply(ScrubAdvanced{lease.id, 9, m.now_ns})) == std::vector<LeaseId>{next});
  CHECK(m.machine.find_lease(lease.id)->bytes == granule);  // the last stays until the scrub has ended
  CHECK(m.apply(ScrubAdvanced{lease.id, 1, m.now_ns}).delta.empty());
  REQUIRE(m.apply(ScrubFinished{lease.id, {}, m.now_ns}).reply.ok());
  CHECK(m.use().free_bytes == granule);

  const Step reserved = m.apply(CreateReservation{"p", "dave", granule, 0, m.now_ns});
  const LeaseId kept_out = wait(m, asks(m, "carol", 1));
  const ReservationId id = std::get<ReservationReply>(*reserved.reply).reservation.id;
  CHECK(served(m.apply(RemoveReservation{id, m.now_ns})) == std::vector<LeaseId>{kept_out});
}

TEST_CASE("queue: a tenant's own reservation serves it past a queue, waiting or not") {
  Manager m({10});
  REQUIRE(m.apply(CreateReservation{"p", "alice", 4 * granule, 0, m.now_ns}).reply.ok());
  (void)m.grant(asks(m, "bob", 5, 0));
  const LeaseId large = wait(m, asks(m, "carol", 3));
  const LeaseRow lease = m.grant(asks(m, "alice", 3, 0));                            // covered: does not queue
  CHECK(code_of(m.apply(asks(m, "alice", 2, 0))) == ErrorCode::capacity_exhausted);  // only 1 of it is
  REQUIRE(m.apply(Release{lease.id, "", m.now_ns}).reply.ok());
  const LeaseId covered = wait(m, asks(m, "alice", 4));  // covered, and being erased
  REQUIRE(m.apply(FenceFinished{lease.id, {}, m.now_ns}).reply.ok());
  CHECK(served(m.apply(ScrubFinished{lease.id, {}, m.now_ns})) == std::vector<LeaseId>{covered});
  CHECK(m.phase(large) == LeasePhase::waiting);
}

TEST_CASE(
    "queue: a waiter whose tenant's quota was lowered meanwhile is refused at once, and the next has its "
    "turn") {
  Manager m({4});
  const LeaseRow lease = m.grant(asks(m, "alice", 4, 0));
  const LeaseId over = wait(m, asks(m, "bob", 3));
  const LeaseId next = wait(m, asks(m, "carol", 3));
  const Step lowered = m.apply(SetQuota{{"bob", granule, 0}});
  REQUIRE(lowered.reply.ok());
  REQUIRE(lowered.effects.size() == 1);
  CHECK(std::get<RefuseGrant>(lowered.effects[0]).lease == over);
  CHECK(std::get<RefuseGrant>(lowered.effects[0]).error.code == ErrorCode::limit_exceeded);
  CHECK(served(free_up(m, lease.id)) == std::vector<LeaseId>{next});
}

TEST_CASE("queue: its pool is not deleted, and a restart forgets it") {
  Manager m({4});
  const LeaseId pending = std::get<GrantPending>(*m.apply(asks(m, "alice", 4, 0)).reply).lease;
  const LeaseId id = wait(m, asks(m, "bob", 4));
  CHECK(code_of(m.apply(DeletePool{"p"})) == ErrorCode::busy);
  StateMachine machine;
  REQUIRE(machine.recover(m.machine.image(), {{}, {"emu:0"}}, "boot-1", m.now_ns).ok());
  CHECK(machine.leases().empty());
  (void)m.apply(CancelGrant{id});
  REQUIRE(m.apply(CarveFinished{pending, failure(), m.now_ns}).effects.empty());
  CHECK(m.apply(DeletePool{"p"}).reply.ok());
}

TEST_CASE("queue: it is bounded, for each tenant and in all") {
  StateMachine machine;
  Manager names({4});
  REQUIRE(machine.recover(names.machine.image(), {{}, {"emu:0"}}, "boot-1", names.now_ns).ok());
  REQUIRE(machine.apply(asks(names, "holder", 4, 0)).reply.ok());
  const auto fill = [&](const std::string& tenant) {
    uint64_t queued = 0;
    while (machine.apply(asks(names, tenant, 1)).reply.ok()) ++queued;
    return queued;
  };
  CHECK(fill("t-0") == limits::waiting_per_tenant_max);
  uint64_t all = limits::waiting_per_tenant_max;
  for (uint64_t i = 1; i <= limits::waiting_max / limits::waiting_per_tenant_max; ++i)
    all += fill("t-" + std::to_string(i));
  CHECK(all == limits::waiting_max);
  CHECK(code_of(machine.apply(asks(names, "last", 1))) == ErrorCode::limit_exceeded);
  CHECK(machine.check_all().empty());
  CHECK(machine.apply(Tick{names.now_ns + 60 * second}).effects.size() == limits::waiting_max);
  CHECK(machine.check_all().empty());
}

// One tenant floods the queue, one asks for a lot at a time, one for a little: room is freed granule by
// granule. Whoever waits is served in turn, so that in the end the numbers of services differ by no more than
// one.
TEST_CASE("queue: three tenants are served in turn, however they ask") {
  Manager m({8});
  std::vector<LeaseId> held;
  for (int i = 0; i < 8; ++i) held.push_back(m.grant(asks(m, "holder", 1, 0)).id);
  std::map<std::string, uint64_t> services;
  const std::map<std::string, uint64_t> sizes{{"flood", 1}, {"large", 6}, {"small", 1}};
  std::map<std::string, uint64_t> asked;
  const auto ask = [&](const std::string& tenant) {
    (void)wait(m, asks(m, tenant, sizes.at(tenant), 3600));
    ++asked[tenant];
  };
  for (int i = 0; i < 40; ++i) ask("flood");
  ask("large");
  ask("small");
  std::vector<std::string> order;
  for (int round = 0; round < 300 && order.size() < 30; ++round) {
    REQUIRE_FALSE(held.empty());
    const LeaseId oldest = held.front();
    held.erase(held.begin());
    for (const LeaseId id : served(free_up(m, oldest))) {
      const LeaseRow lease = *m.machine.find_lease(id);
      order.push_back(lease.tenant);
      ++services[lease.tenant];
      REQUIRE(m.apply(CarveFinished{id, {}, m.now_ns}).reply.ok());
      held.push_back(id);
      if (lease.tenant != "flood") ask(lease.tenant);  // one at a time
    }
  }
  REQUIRE(order.size() >= 30);
  const auto [least, most] = std::minmax({services["flood"], services["large"], services["small"]});
  CHECK(most - least <= 1);
}

// A request that never fits must not hold up the others for one deadline after the other.
TEST_CASE("queue: a turn that passes unused counts as a service") {
  Manager m({4});
  (void)m.grant(asks(m, "alice", 2, 0));
  (void)wait(m, asks(m, "greedy", 4, 5));
  (void)wait(m, asks(m, "greedy", 4, 10));
  const LeaseId small = wait(m, asks(m, "carol", 1, 60));
  CHECK(served(m.apply(Tick{m.now_ns + 5 * second})) == std::vector<LeaseId>{small});
}
