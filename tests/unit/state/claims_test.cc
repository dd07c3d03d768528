// SPDX-License-Identifier: Apache-2.0
// Quotas and reservations: what a tenant may have at most, and what is kept for it.
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

Grant of(const Manager& m, const std::string& tenant, uint64_t granules) {
  Grant asked = m.request(granules * granule);
  asked.tenant = tenant;
  return asked;
}

ReservationRow reserve(Manager& m, const std::string& tenant, uint64_t granules, uint64_t ttl_ns = 0) {
  const Step step = m.apply(CreateReservation{"p", tenant, granules * granule, ttl_ns, m.now_ns});
  REQUIRE(step.reply.ok());
  return std::get<ReservationReply>(*step.reply).reservation;
}

}  // namespace

TEST_CASE("quota: a tenant gets up to its bounds, and is told by how much it would pass them") {
  Manager m({20});
  const Step set = m.apply(SetQuota{{"alice", 5 * granule, 3}});
  REQUIRE(set.reply.ok());
  CHECK(set.delta.quotas.at("alice")->bytes_max == 5 * granule);
  const LeaseRow lease = m.grant(4);
  const Step refused = m.apply(of(m, "alice", 3));
  CHECK(code_of(refused) == ErrorCode::limit_exceeded);
  CHECK(refused.reply.error().detail.find("4 MiB too much") != std::string::npos);
  CHECK(refused.reply.error().detail.find("has 8 MiB") != std::string::npos);
  CHECK(m.apply(of(m, "bob", 10)).reply.ok());
  CHECK(m.apply(of(m, "alice", 1)).reply.ok());
  REQUIRE(m.apply(SetQuota{{"alice", 0, 2}}).reply.ok());
  const Step third = m.apply(of(m, "alice", 1));
  CHECK(code_of(third) == ErrorCode::limit_exceeded);
  CHECK(third.reply.error().detail.find("2 leases") != std::string::npos);
  REQUIRE(m.apply(Release{lease.id, "alice", m.now_ns}).reply.ok());
  CHECK(m.apply(of(m, "alice", 1)).reply.ok());  // what is being erased is not the tenant's any more
}

TEST_CASE("quota: * holds for tenants without a quota of their own") {
  Manager m({20});
  REQUIRE(m.apply(SetQuota{{"*", 2 * granule, 0}}).reply.ok());
  REQUIRE(m.apply(SetQuota{{"bob", 0, 9}}).reply.ok());
  CHECK(code_of(m.apply(of(m, "alice", 3))) == ErrorCode::limit_exceeded);
  CHECK(m.apply(of(m, "bob", 3)).reply.ok());
  const Step removed = m.apply(SetQuota{{"*", 0, 0}});
  CHECK_FALSE(removed.delta.quotas.at("*").has_value());
  CHECK(m.apply(of(m, "alice", 3)).reply.ok());
  CHECK(m.apply(SetQuota{{"*", 0, 0}}).delta.empty());
  CHECK(m.apply(SetQuota{{"bob", 0, 9}}).delta.empty());
  CHECK(code_of(m.apply(SetQuota{{"a b", 1, 1}})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(SetQuota{{"", 1, 1}})) == ErrorCode::invalid_argument);
}

TEST_CASE("quota: a bound lowered below the use takes nothing away; a keyed retry is answered as before") {
  Manager m({20});
  Grant asked = of(m, "alice", 4);
  asked.request_low = 7;
  const LeaseRow lease = m.grant(asked);
  REQUIRE(m.apply(SetQuota{{"alice", granule, 1}}).reply.ok());
  CHECK(m.apply(Renew{lease.id, "alice", 0, m.now_ns}).reply.ok());
  const Step again = m.apply(asked);
  REQUIRE(again.reply.ok());
  CHECK(std::get<LeaseReply>(*again.reply).lease.id == lease.id);
  CHECK(code_of(m.apply(of(m, "alice", 1))) == ErrorCode::limit_exceeded);
}

TEST_CASE("quota: growing counts, from its beginning, and shrinking is always allowed") {
  Manager m({20});
  REQUIRE(m.apply(SetQuota{{"alice", 5 * granule, 1}}).reply.ok());
  const LeaseRow lease = m.grant(2);
  CHECK(code_of(m.apply(Resize{lease.id, "alice", 6 * granule, m.now_ns})) == ErrorCode::limit_exceeded);
  REQUIRE(m.apply(Resize{lease.id, "alice", 4 * granule, m.now_ns}).reply.ok());
  CHECK(m.machine.tenant_use("alice").bytes == 4 * granule);
  REQUIRE(m.apply(SetQuota{{"alice", 5 * granule, 0}}).reply.ok());
  CHECK(code_of(m.apply(of(m, "alice", 2))) == ErrorCode::limit_exceeded);
  REQUIRE(m.apply(ResizeFinished{lease.id, {}, m.now_ns}).reply.ok());
  REQUIRE(m.apply(SetQuota{{"alice", granule, 0}}).reply.ok());
  CHECK(m.apply(Resize{lease.id, "alice", 3 * granule, m.now_ns}).reply.ok());
}

// A tenant had twice its quota by asking for moves and never finishing them.
TEST_CASE("quota: a move that a tenant asks for counts twice until it ends, one for a drain does not") {
  Manager m({20, 20});
  REQUIRE(m.apply(SetQuota{{"alice", 6 * granule, 1}}).reply.ok());
  const LeaseRow lease = m.grant(4);
  const auto begin = [&](const char* who) { return m.apply(BeginMove{lease.id, who, m.now_ns}); };
  const auto target_of = [](const Step& step) { return std::get<GrantPending>(*step.reply).lease; };
  CHECK(code_of(begin("alice")) == ErrorCode::limit_exceeded);
  REQUIRE(m.apply(SetQuota{{"alice", 8 * granule, 0}}).reply.ok());
  const LeaseId target = target_of(begin("alice"));
  CHECK(m.machine.tenant_use("alice").leases == 1);
  CHECK(code_of(m.apply(m.request(granule))) == ErrorCode::limit_exceeded);
  REQUIRE(m.apply(CarveFinished{target, {}, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(m.request(granule))) == ErrorCode::limit_exceeded);
  REQUIRE(m.apply(FinishMove{lease.id, target, "alice", true, m.now_ns}).reply.ok());
  CHECK(m.machine.tenant_use("alice").bytes == 4 * granule);
  CHECK(m.apply(m.request(4 * granule)).reply.ok());

  // Full, and its holder, or the manager, takes it off the device that an operator wants out.
  const DeviceId device = m.machine.find_lease(lease.id)->extents.at(0).device;
  CHECK(code_of(begin("alice")) == ErrorCode::limit_exceeded);
  for (const char* who : {"", "alice"}) {
    if (*who != '\0') REQUIRE(m.apply(DrainDevice{m.machine.find_device(device)->serial}).reply.ok());
    const LeaseId away = target_of(begin(who));
    REQUIRE(m.apply(CarveFinished{away, {}, m.now_ns}).reply.ok());
    REQUIRE(m.apply(FinishMove{lease.id, away, who, false, m.now_ns}).reply.ok());
  }
}

TEST_CASE("reservation: what is kept for one tenant is refused to others and granted to it") {
  Manager m({10});
  const ReservationRow row = reserve(m, "alice", 6);
  CHECK(row.expiry_ns == 0);
  CHECK(m.use().reserved_bytes == 6 * granule);
  const Step refused = m.apply(of(m, "bob", 5));
  CHECK(code_of(refused) == ErrorCode::capacity_exhausted);
  CHECK(refused.reply.error().detail.find("12 MiB is reserved") != std::string::npos);
  (void)m.grant(of(m, "bob", 4));
  CHECK(code_of(m.apply(of(m, "bob", 1))) == ErrorCode::capacity_exhausted);
  const LeaseRow lease = m.grant(of(m, "alice", 5));
  CHECK(m.use().reserved_bytes == granule);
  CHECK(code_of(m.apply(of(m, "bob", 1))) == ErrorCode::capacity_exhausted);
  // Once released it is the tenant's room again, as soon as it is erased.
  REQUIRE(m.apply(Release{lease.id, "alice", m.now_ns}).reply.ok());
  m.finish(lease.id);
  CHECK(code_of(m.apply(of(m, "bob", 1))) == ErrorCode::capacity_exhausted);
  (void)m.grant(of(m, "alice", 6));
}

TEST_CASE("reservation: it is refused where its room is not free, counting what its tenant has there") {
  Manager m({10});
  (void)m.grant(of(m, "alice", 4));
  const Step refused = m.apply(CreateReservation{"p", "bob", 7 * granule, 0, m.now_ns});
  CHECK(code_of(refused) == ErrorCode::capacity_exhausted);
  CHECK(refused.reply.error().detail.find("12 MiB free") != std::string::npos);
  (void)reserve(m, "alice", 7);  // 4 of it are filled
  CHECK(m.use().reserved_bytes == 3 * granule);
  CHECK(code_of(m.apply(CreateReservation{"p", "bob", 4 * granule, 0, m.now_ns})) ==
        ErrorCode::capacity_exhausted);
  (void)reserve(m, "bob", 3);
  CHECK(code_of(m.apply(CreateReservation{"p", "bob", 1, 0, m.now_ns})) == ErrorCode::capacity_exhausted);
  CHECK(code_of(m.apply(CreateReservation{"p", "bob", UINT64_MAX, 0, m.now_ns})) ==
        ErrorCode::capacity_exhausted);
  CHECK(code_of(m.apply(CreateReservation{"q", "bob", 1, 0, m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(CreateReservation{"p", "b b", 1, 0, m.now_ns})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(CreateReservation{"p", "bob", 0, 0, m.now_ns})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(CreateReservation{"p", "bob", 1, 1, m.now_ns})) == ErrorCode::invalid_argument);
}

TEST_CASE("reservation: it ends at its expiry or when it is removed, and its room is everybody's") {
  Manager m({10});
  const ReservationRow timed = reserve(m, "alice", 4, 10 * second);
  const ReservationRow lasting = reserve(m, "alice", 4);
  CHECK(*m.machine.next_due_ns() == m.now_ns + 10 * second);
  CHECK(m.apply(Tick{timed.expiry_ns - 1}).delta.empty());
  const Step due = m.apply(Tick{timed.expiry_ns});
  CHECK_FALSE(due.delta.reservations.at(timed.id).has_value());
  CHECK_FALSE(m.machine.next_due_ns().has_value());
  CHECK(code_of(m.apply(of(m, "bob", 7))) == ErrorCode::capacity_exhausted);
  CHECK(m.apply(RemoveReservation{lasting.id, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(RemoveReservation{lasting.id, m.now_ns})) == ErrorCode::not_found);
  CHECK(m.apply(of(m, "bob", 10)).reply.ok());
}

TEST_CASE("reservation: its pool is not deleted") {
  Manager m({10});
  const ReservationRow row = reserve(m, "alice", 4);
  CHECK(code_of(m.apply(DeletePool{"p"})) == ErrorCode::busy);
  REQUIRE(m.apply(RemoveReservation{row.id, m.now_ns}).reply.ok());
  CHECK(m.apply(DeletePool{"p"}).reply.ok());
}

TEST_CASE("reservation: a transfer away from it needs the room that it leaves open") {
  Manager m({10});
  const LeaseRow lease = m.grant(of(m, "alice", 4));
  (void)reserve(m, "alice", 4);
  (void)m.grant(of(m, "carol", 5));
  CHECK(code_of(m.apply(Transfer{lease.id, "alice", "bob", "", m.now_ns})) == ErrorCode::capacity_exhausted);
  CHECK(m.apply(Transfer{lease.id, "alice", "alice", "other", m.now_ns}).reply.ok());
}

TEST_CASE("quota and reservation: both outlive a restart; another boot gives a full TTL again") {
  Manager m({10});
  REQUIRE(m.apply(SetQuota{{"alice", 5 * granule, 3}}).reply.ok());
  const ReservationRow row = reserve(m, "bob", 4, 10 * second);
  const Observation observed{{}, {"emu:0"}};
  for (const char* boot : {"boot-1", "boot-2"}) {
    StateMachine machine;
    const auto recovery = machine.recover(m.machine.image(), observed, boot, m.now_ns + 3 * second);
    REQUIRE(recovery.ok());
    CHECK(machine.check_all().empty());
    CHECK(machine.quota_of("alice").bytes_max == 5 * granule);
    const bool same = std::string(boot) == "boot-1";
    CHECK(machine.reservations().at(row.id).expiry_ns == (same ? row.expiry_ns : m.now_ns + 13 * second));
    CHECK(recovery->delta.reservations.size() == (same ? 0 : 1));
    CHECK(code_of(machine.apply(of(m, "carol", 7))) == ErrorCode::capacity_exhausted);
    const Step next = machine.apply(CreateReservation{"p", "bob", granule, 0, m.now_ns});
    REQUIRE(next.reply.ok());
    CHECK(std::get<ReservationReply>(*next.reply).reservation.id > row.id);
  }
}

TEST_CASE("quota and reservation: rows that cannot be are refused as corrupt") {
  Manager m({10});
  REQUIRE(m.apply(SetQuota{{"alice", 5 * granule, 3}}).reply.ok());
  (void)reserve(m, "bob", 4, 10 * second);
  const Image sound = m.machine.image();
  const auto code = [&](auto spoil) {
    Image image = sound;
    spoil(image);
    StateMachine machine;
    const auto recovery = machine.recover(image, {{}, {"emu:0"}}, "boot-1", m.now_ns);
    return recovery.ok() ? ErrorCode::ok : recovery.error().code;
  };
  CHECK(code([](Image&) {}) == ErrorCode::ok);
  CHECK(code([](Image& i) { i.quotas[0].tenant = "a b"; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.quotas.push_back(i.quotas[0]); }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.quotas[0].bytes_max = i.quotas[0].leases_max = 0; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.reservations[0].id = ReservationId{9}; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.reservations.push_back(i.reservations[0]); }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.reservations[0].pool = PoolId{9}; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.reservations[0].tenant = "*"; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.reservations[0].bytes = 0; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.reservations[0].bytes = UINT64_MAX; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.reservations[0].expiry_ns = 0; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.reservations[0].ttl_ns = 1; }) == ErrorCode::corrupt);
  CHECK(code([](Image& i) { i.meta.next_reservation = 0; }) == ErrorCode::corrupt);
}
