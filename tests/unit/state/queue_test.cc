// SPDX-License-Identifier: Apache-2.0
// Grants that wait for a full pool: order, fairness, deadlines, cancelling.
#include <algorithm>
#include <chrono>

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

const WaitingQueue& queue_of(const Manager& m) {
  const WaitingQueue* queue = m.machine.queue_of(m.machine.find_pool("p")->id);
  REQUIRE(queue != nullptr);
  return *queue;
}

// Lets the phase of the turn end.
Step next_phase(Manager& m) {
  m.now_ns = queue_of(m).phase_ends_ns();
  return m.apply(Tick{m.now_ns});
}

// From here on room is kept for the one whose turn it is.
void keep_room(Manager& m) {
  while (!queue_of(m).held()) (void)next_phase(m);
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
  CHECK(*m.machine.next_due_ns() == m.now_ns + 10 * second);  // the first phase of its turn
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

TEST_CASE("queue: while room is kept nothing overtakes, and who will not wait is told of the queue") {
  Manager m({4});
  const LeaseRow lease = m.grant(asks(m, "alice", 3, 0));
  const LeaseId large = wait(m, asks(m, "bob", 4));
  keep_room(m);
  const Step refused = m.apply(asks(m, "carol", 1, 0));
  CHECK(code_of(refused) == ErrorCode::capacity_exhausted);
  CHECK(refused.reply.error().detail.find("1 request waits") != std::string::npos);
  CHECK(refused.reply.error().detail.find("room is kept for the next for 10 s more") != std::string::npos);
  CHECK(code_of(m.apply(Resize{lease.id, "alice", 4 * granule, m.now_ns})) == ErrorCode::capacity_exhausted);
  const LeaseId small = wait(m, asks(m, "carol", 1));  // it would fit
  CHECK(served(free_up(m, lease.id)) == std::vector<LeaseId>{large});
  CHECK(m.phase(small) == LeasePhase::waiting);
}

// Found by an operator: one large request kept a pool from everybody for the hour that it waited.
TEST_CASE("queue: while a turn is open whoever fits is let in, waiting or not") {
  Manager m({8});
  const LeaseRow lease = m.grant(asks(m, "alice", 4, 0));
  const LeaseRow other = m.grant(asks(m, "alice", 2, 0));
  const LeaseId large = wait(m, asks(m, "bob", 7));
  (void)m.grant(asks(m, "carol", 1, 0));
  const LeaseRow grown = m.grant(asks(m, "dave", 1, 0));
  CHECK(m.use().free_bytes == 0);
  const LeaseId first = wait(m, asks(m, "carol", 3));
  const LeaseId second_one = wait(m, asks(m, "carol", 1));
  const LeaseId third = wait(m, asks(m, "erin", 1));
  // Those that fit, one of each tenant in turn.
  CHECK(served(free_up(m, other.id)) == std::vector<LeaseId>{second_one, third});
  keep_room(m);
  CHECK(served(free_up(m, lease.id)).empty());
  CHECK(code_of(m.apply(asks(m, "erin", 1, 0))) == ErrorCode::capacity_exhausted);
  CHECK(served(next_phase(m)) == std::vector<LeaseId>{first});
  CHECK(m.phase(large) == LeasePhase::waiting);
  CHECK(queue_of(m).turn() == large);
  CHECK(m.apply(Resize{grown.id, "dave", 2 * granule, m.now_ns}).reply.ok());
}

TEST_CASE(
    "queue: what others have reserved keeps out a tenant's larger request, and not its smaller one behind it") {
  Manager m({8});
  REQUIRE(m.apply(CreateReservation{"p", "carol", 2 * granule, 0, m.now_ns}).reply.ok());
  (void)m.grant(asks(m, "alice", 4, 0));
  const LeaseRow lease = m.grant(asks(m, "alice", 2, 0));
  (void)wait(m, asks(m, "bob", 6));
  const LeaseId larger = wait(m, asks(m, "erin", 3));
  const LeaseId smaller = wait(m, asks(m, "erin", 1));
  CHECK(served(free_up(m, lease.id)) == std::vector<LeaseId>{smaller});
  CHECK(m.phase(larger) == LeasePhase::waiting);
}

TEST_CASE("queue: room is kept for no longer than others were let in, five minutes at once at most") {
  Manager m({8});
  (void)m.grant(asks(m, "alice", 4, 0));
  (void)wait(m, asks(m, "bob", 8, 3600));
  const uint64_t end_ns = m.now_ns + 3600 * second;
  uint64_t blocked_ns = 0, open_ns = 0, longest_ns = 0, since_ns = m.now_ns;
  bool blocked = false;
  for (uint64_t t = m.now_ns; t < end_ns; t += second) {
    m.now_ns = t;
    if (*m.machine.next_due_ns() <= t) (void)m.apply(Tick{t});
    const Step tried = m.apply(asks(m, "carol", 1, 0));
    if (tried.reply.ok()) {
      const LeaseId id = std::get<GrantPending>(*tried.reply).lease;
      (void)m.apply(CarveFinished{id, failure(), t});  // it leaves its room again
    }
    if (!tried.reply.ok() != blocked) since_ns = t;
    blocked = !tried.reply.ok();
    (blocked ? blocked_ns : open_ns) += second;
    if (blocked) longest_ns = std::max(longest_ns, t + second - since_ns);
    REQUIRE(blocked_ns <= open_ns + second);
  }
  CHECK(blocked_ns > 1500 * second);
  CHECK(longest_ns <= limits::queue_hold_ns_max);
}

// Eight tenants hold a granule each for a minute, and want the next one as soon as it ends.
TEST_CASE("queue: small requests that come without end do not starve a large one") {
  Manager m({8});
  struct Held {
    LeaseId id;
    uint64_t until_ns;
  };
  std::vector<Held> held;
  const uint64_t begin_ns = m.now_ns;
  for (uint64_t i = 0; i < 8; ++i)
    held.push_back({m.grant(asks(m, "small-" + std::to_string(i), 1, 0)).id, m.now_ns + (i + 1) * 7 * second});
  const LeaseId large = wait(m, asks(m, "large", 6, 3600));
  for (int i = 0; i < 8; ++i) (void)wait(m, asks(m, "small-" + std::to_string(i), 1, 3600));
  uint64_t small_services = 0;
  const auto take = [&](const Step& step) {
    for (const LeaseId id : served(step)) {
      const LeaseRow lease = *m.machine.find_lease(id);
      REQUIRE(m.apply(CarveFinished{id, {}, m.now_ns}).reply.ok());
      if (id == large) continue;
      ++small_services;
      held.push_back({id, m.now_ns + 60 * second});
      Grant again = asks(m, lease.tenant, 1, 3600);
      const Step asked = m.apply(again);
      REQUIRE(asked.reply.ok());
      if (const LeaseId next = std::get<GrantPending>(*asked.reply).lease;
          m.phase(next) == LeasePhase::pending) {
        REQUIRE(m.apply(CarveFinished{next, {}, m.now_ns}).reply.ok());
        held.push_back({next, m.now_ns + 60 * second});
      }
    }
  };
  while (m.phase(large) == LeasePhase::waiting && m.now_ns < begin_ns + 3500 * second) {
    m.now_ns += second;
    if (*m.machine.next_due_ns() <= m.now_ns) take(m.apply(Tick{m.now_ns}));
    for (size_t i = 0; i < held.size(); ++i) {
      if (held[i].until_ns > m.now_ns) continue;
      const LeaseId id = held[i].id;
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i--));
      take(free_up(m, id));
    }
  }
  CHECK(m.phase(large) == LeasePhase::active);
  CHECK(m.now_ns - begin_ns < 7 * 60 * second);  // in any minute all of them end
  CHECK(small_services > 8);
}

TEST_CASE("queue: room is kept for nothing that could not fit however many leases end") {
  Manager m({4, 4});
  (void)m.grant(asks(m, "alice", 2, 0));
  const LeaseId large = wait(m, asks(m, "bob", 8, 3600));
  REQUIRE(m.apply(DrainDevice{"emu:1"}).reply.ok());
  for (int i = 0; i < 5; ++i) {
    (void)next_phase(m);
    CHECK_FALSE(queue_of(m).held());
  }
  REQUIRE(m.apply(UndrainDevice{"emu:1", m.now_ns}).reply.ok());
  (void)next_phase(m);
  CHECK(queue_of(m).held());
  (void)next_phase(m);
  REQUIRE(m.apply(CreateReservation{"p", "carol", granule, 0, m.now_ns}).reply.ok());
  for (int i = 0; i < 3; ++i) {
    (void)next_phase(m);
    CHECK_FALSE(queue_of(m).held());
  }
  CHECK(m.phase(large) == LeasePhase::waiting);
}

// A client whose time to wait is over asks once more, without, to learn what became of its request. That call
// kept the request in the queue, and the pool from others, when its process had ended.
TEST_CASE("queue: a request that waits is not joined by one that will not wait") {
  Manager m({4});
  (void)m.grant(asks(m, "alice", 4, 0));
  Grant asked = asks(m, "bob", 2);
  asked.request_low = 5;
  const LeaseId id = wait(m, asked);
  asked.wait_ns = 0;
  const Step again = m.apply(asked);
  CHECK(code_of(again) == ErrorCode::capacity_exhausted);
  CHECK(again.reply.error().detail ==
        "it waits already, as request " + std::to_string(id.value) + "; ask with a time to wait to join it");
  CHECK(m.phase(id) == LeasePhase::waiting);
  CHECK(m.machine.find_lease(id)->deadline_ns == m.now_ns + 60 * second);
}

TEST_CASE("queue: a request waits until the last of those who ask for it would give up") {
  Manager m({4});
  const LeaseRow lease = m.grant(asks(m, "alice", 4, 0));
  Grant asked = asks(m, "bob", 2, 10);
  asked.request_low = 5;
  const uint64_t begin_ns = m.now_ns;
  const LeaseId id = wait(m, asked);
  asked.wait_ns = 5 * second;
  CHECK(std::get<GrantPending>(*m.apply(asked).reply).queued);
  CHECK(m.machine.find_lease(id)->deadline_ns == begin_ns + 10 * second);
  asked.now_ns = m.now_ns = begin_ns + 5 * second;
  asked.wait_ns = 55 * second;
  CHECK(std::get<GrantPending>(*m.apply(asked).reply).lease == id);
  CHECK(m.machine.find_lease(id)->deadline_ns == begin_ns + 60 * second);
  asked.wait_ns = limits::wait_ns_max + 1;
  CHECK(code_of(m.apply(asked)) == ErrorCode::invalid_argument);
  CHECK(m.apply(Tick{begin_ns + 60 * second - 1}).effects.empty());
  const Step due = m.apply(Tick{begin_ns + 60 * second});
  REQUIRE(due.effects.size() == 1);
  CHECK(std::get<RefuseGrant>(due.effects[0]).error.detail.find("waited 1 min") != std::string::npos);
  (void)lease;
}

TEST_CASE("queue: an administrator takes a request out, and those who wait are told why and by whom") {
  Manager m({4});
  const LeaseRow lease = m.grant(asks(m, "alice", 2, 0));
  const LeaseId large = wait(m, asks(m, "bob", 4));
  keep_room(m);
  const LeaseId small = wait(m, asks(m, "carol", 1));
  const Step cancelled = m.apply(CancelWaiting{large, "maintenance", "uid 0", m.now_ns});
  REQUIRE(cancelled.reply.ok());
  CHECK(std::get<LeaseReply>(*cancelled.reply).lease.tenant == "bob");
  REQUIRE(cancelled.effects.size() == 2);
  const auto& refused = std::get<RefuseGrant>(cancelled.effects[0]);
  CHECK(refused.lease == large);
  CHECK(refused.error.code == ErrorCode::cancelled);
  CHECK(refused.error.detail == "request " + std::to_string(large.value) +
                                    " was taken out of the queue of pool p by uid 0: maintenance");
  CHECK(served(cancelled) == std::vector<LeaseId>{small});

  const Step unknown = m.apply(CancelWaiting{large, "", "", m.now_ns});
  CHECK(code_of(unknown) == ErrorCode::not_found);
  CHECK(unknown.reply.error().detail.find("terrace queue list") != std::string::npos);
  CHECK(code_of(m.apply(CancelWaiting{small, "", "", m.now_ns})) == ErrorCode::busy);  // being carved
  const Step granted = m.apply(CancelWaiting{lease.id, "", "", m.now_ns});
  CHECK(code_of(granted) == ErrorCode::busy);
  CHECK(granted.reply.error().detail.find("terrace lease revoke " + std::to_string(lease.id.value)) !=
        std::string::npos);
  const LeaseId last = wait(m, asks(m, "dave", 4));
  CHECK(code_of(m.apply(CancelWaiting{last, "a\nb", "", m.now_ns})) == ErrorCode::invalid_argument);
  CHECK(m.phase(last) == LeasePhase::waiting);
}

TEST_CASE("queue: a tenant does not wait for more than its quota leaves it") {
  Manager m({8});
  (void)m.grant(asks(m, "alice", 8, 0));
  REQUIRE(m.apply(SetQuota{{"bob", 4 * granule, 3}}).reply.ok());
  const LeaseId first = wait(m, asks(m, "bob", 3));
  const Step refused = m.apply(asks(m, "bob", 2));
  CHECK(code_of(refused) == ErrorCode::limit_exceeded);
  CHECK(refused.reply.error().detail.find("with the 1 request of its that wait") != std::string::npos);
  CHECK(code_of(m.apply(asks(m, "bob", 2, 0))) ==
        ErrorCode::capacity_exhausted);  // who does not wait is not counted
  (void)wait(m, asks(m, "bob", 1));
  REQUIRE(m.apply(SetQuota{{"bob", 0, 2}}).reply.ok());
  CHECK(code_of(m.apply(asks(m, "bob", 1))) == ErrorCode::limit_exceeded);
  REQUIRE(m.apply(CancelGrant{first, m.now_ns}).reply.ok());
  (void)wait(m, asks(m, "bob", 1));
  (void)wait(m, asks(m, "carol", 8));
}

TEST_CASE("queue: a turn that ends without a lease lets the next ones in") {
  Manager m({4});
  (void)m.grant(asks(m, "alice", 2, 0));
  const LeaseId large = wait(m, asks(m, "bob", 3));
  keep_room(m);
  const LeaseId small = wait(m, asks(m, "carol", 1));
  const LeaseId other = wait(m, asks(m, "carol", 1));
  CHECK(m.apply(CancelGrant{other, m.now_ns}).effects.empty());  // not its turn: nothing changes for the others
  CHECK(m.machine.find_lease(other) == nullptr);
  const Step cancelled = m.apply(CancelGrant{large, m.now_ns});
  CHECK(cancelled.reply.ok());
  CHECK(served(cancelled) == std::vector<LeaseId>{small});
  CHECK(m.machine.find_lease(large) == nullptr);
  CHECK(m.apply(CancelGrant{large, m.now_ns}).reply.ok());
  CHECK(m.apply(CancelGrant{small, m.now_ns}).effects.empty());  // already being carved: left alone
  CHECK(m.phase(small) == LeasePhase::pending);
}

TEST_CASE("queue: past its deadline a grant is refused in words, and the next are served") {
  Manager m({4});
  (void)m.grant(asks(m, "alice", 2, 0));
  const uint64_t deadline_ns = m.now_ns + 5 * second;
  const LeaseId large = wait(m, asks(m, "bob", 3, 5));
  keep_room(m);
  const LeaseId small = wait(m, asks(m, "carol", 1, 50));
  CHECK(m.apply(Tick{queue_of(m).phase_ends_ns() - 1}).effects.empty());
  const Step due = m.apply(Tick{deadline_ns});
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
  keep_room(m);
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

TEST_CASE("queue: one that would be let in beside a turn is refused when its quota forbids it by now") {
  Manager m({6});
  m.grant(asks(m, "alice", 4, 0));
  const LeaseRow small = m.grant(asks(m, "alice", 2, 0));
  wait(m, asks(m, "bob", 6));  // its turn
  const LeaseId over = wait(m, asks(m, "carol", 2));
  REQUIRE(m.apply(SetQuota{{"carol", granule, 0}}).effects.empty());
  const Step freed = free_up(m, small.id);
  CHECK(served(freed).empty());
  REQUIRE(freed.effects.size() == 1);
  CHECK(std::get<RefuseGrant>(freed.effects[0]).lease == over);
  CHECK(std::get<RefuseGrant>(freed.effects[0]).error.code == ErrorCode::limit_exceeded);
}

TEST_CASE("queue: a device that takes leases again, or has grown, serves those who wait") {
  Manager m({2});
  const LeaseRow lease = m.grant(asks(m, "alice", 2, 0));
  REQUIRE(m.apply(DrainDevice{"emu:0"}).reply.ok());
  const LeaseId first = wait(m, asks(m, "bob", 1));
  CHECK(served(free_up(m, lease.id)).empty());
  CHECK(served(m.apply(UndrainDevice{"emu:0"})) == std::vector<LeaseId>{first});
  const LeaseId second = wait(m, asks(m, "bob", 2));
  CHECK(served(m.adopt("emu:0", 4)) == std::vector<LeaseId>{second});
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

// One tenant floods the queue, another asks for as much one at a time: room is freed granule by granule.
// Whoever waits is served in turn, so that in the end the numbers of services differ by no more than one. One
// that asks for a lot is served again and again in between.
TEST_CASE("queue: tenants are served in turn, however they ask") {
  Manager m({8});
  std::vector<LeaseId> held;
  for (int i = 0; i < 8; ++i) held.push_back(m.grant(asks(m, "holder", 1, 0)).id);
  std::map<std::string, uint64_t> services;
  const std::map<std::string, uint64_t> sizes{{"flood", 1}, {"large", 6}, {"small", 1}};
  const auto ask = [&](const std::string& tenant) { (void)wait(m, asks(m, tenant, sizes.at(tenant), 3600)); };
  for (int i = 0; i < 200; ++i) ask("flood");
  ask("large");
  ask("small");
  const auto take = [&](const Step& step) {
    for (const LeaseId id : served(step)) {
      const LeaseRow lease = *m.machine.find_lease(id);
      ++services[lease.tenant];
      REQUIRE(m.apply(CarveFinished{id, {}, m.now_ns}).reply.ok());
      held.push_back(id);
      if (lease.tenant != "flood") ask(lease.tenant);  // one at a time
    }
  };
  for (int round = 0; round < 1000 && services["flood"] < 100; ++round) {
    m.now_ns += second;  // each lease lives for as many seconds as there are others
    if (*m.machine.next_due_ns() <= m.now_ns) take(m.apply(Tick{m.now_ns}));
    if (held.empty()) continue;
    const LeaseId oldest = held.front();
    held.erase(held.begin());
    take(free_up(m, oldest));
  }
  REQUIRE(services["flood"] == 100);
  CHECK(std::max(services["small"], services["flood"]) - std::min(services["small"], services["flood"]) <= 1);
  CHECK(services["large"] >= 5);
}

// A request that never fits must not hold up the others for one deadline after the other.
TEST_CASE("queue: a turn that passes unused counts as a service") {
  Manager m({4});
  (void)m.grant(asks(m, "alice", 2, 0));
  const uint64_t deadline_ns = m.now_ns + 5 * second;
  (void)wait(m, asks(m, "greedy", 4, 5));
  (void)wait(m, asks(m, "greedy", 4, 10));
  keep_room(m);
  const LeaseId small = wait(m, asks(m, "carol", 1, 60));
  CHECK(served(m.apply(Tick{deadline_ns})) == std::vector<LeaseId>{small});
}

// Room comes granule by granule for all that may wait at once. A cost of each service that grows with those who
// wait would show here as minutes.
TEST_CASE("queue: thousands that wait do not make a release or a grant slow") {
  StateMachine machine;
  Manager names({limits::waiting_max});
  REQUIRE(machine.recover(names.machine.image(), {{}, {"emu:0"}}, "boot-1", names.now_ns).ok());
  std::vector<LeaseId> held;
  const auto carve = [&](LeaseId id) {
    REQUIRE(machine.apply(CarveFinished{id, {}, names.now_ns}).reply.ok());
    held.push_back(id);
  };
  for (uint64_t i = 0; i < limits::waiting_max; ++i)
    carve(std::get<GrantPending>(*machine.apply(asks(names, "holder", 1, 0)).reply).lease);
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [](std::chrono::steady_clock::time_point from) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
  };
  // The first of them does not fit for long: all others are let in before it.
  for (uint64_t i = 0; i < limits::waiting_max; ++i) {
    const std::string tenant = "t-" + std::to_string(i % 1000);
    REQUIRE(machine.apply(asks(names, tenant, i == 0 ? limits::waiting_max : 1 + i % 2, 3600)).reply.ok());
  }
  const double queued_s = since(begin);
  const auto serving = std::chrono::steady_clock::now();
  uint64_t services = 0;
  for (const LeaseId id : std::vector<LeaseId>(held)) {
    REQUIRE(machine.apply(Release{id, "", names.now_ns}).reply.ok());
    REQUIRE(machine.apply(FenceFinished{id, {}, names.now_ns}).reply.ok());
    services += served(machine.apply(ScrubFinished{id, {}, names.now_ns})).size();
    CHECK(code_of(machine.apply(asks(names, "late", 9, 0))) == ErrorCode::capacity_exhausted);
  }
  const double served_s = since(serving);
  CHECK(services > limits::waiting_max / 2);
  CHECK(machine.check_all().empty());
  MESSAGE("4096 requests: " << queued_s << " s to queue, " << served_s << " s to serve " << services);
  CHECK(queued_s + served_s < 60);
}
