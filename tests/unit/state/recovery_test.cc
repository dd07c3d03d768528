// SPDX-License-Identifier: Apache-2.0
// Start-up: what a store held against what exists. Each phase with each state of its object, in the boot it
// belongs to and in another one.
#include <algorithm>

#include "core/base/limits.h"
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

enum class Object { whole, fenced, missing };

// A store with one lease of two granules in `phase`; `persistent` or with a TTL of 10 s.
struct Stored {
  Image image;
  LeaseRow lease;
  uint64_t now_ns = 0;
};

Stored stored(LeasePhase phase, bool persistent = false) {
  Manager m({4});
  Grant asked = m.request(2 * granule);
  asked.label = "weights";
  asked.request_low = 5;
  asked.persistent = persistent;
  if (persistent) asked.ttl_ns = 0;
  const LeaseRow lease = m.grant(asked);
  if (phase == LeasePhase::revoking) REQUIRE(m.apply(Revoke{lease.id, "", 5 * second, m.now_ns}).reply.ok());
  if (phase >= LeasePhase::fencing) REQUIRE(m.apply(Release{lease.id, "", m.now_ns}).reply.ok());
  if (phase >= LeasePhase::scrubbing) REQUIRE(m.apply(FenceFinished{lease.id, {}, m.now_ns}).reply.ok());
  if (phase == LeasePhase::quarantined)
    REQUIRE(m.apply(ScrubFinished{lease.id, failure(), m.now_ns}).reply.ok());
  return {m.machine.image(), *m.machine.find_lease(lease.id), m.now_ns};
}

Observation seen(const LeaseRow& lease, Object object) {
  Observation observed;
  observed.device_serials = {"emu:0"};
  if (object != Object::missing)
    observed.objects.emplace_back(lease.object, object == Object::whole ? lease.bytes : 0);
  return observed;
}

struct Recovered {
  StateMachine machine;
  Recovery recovery;
  const LeaseRow& lease() const { return machine.leases().begin()->second; }
};

// Recovers, and checks what holds for every recovery: the invariants, and that doing it again changes nothing.
Recovered recover(const Image& image, const Observation& observed, const std::string& boot, uint64_t now_ns) {
  Recovered result;
  auto recovery = result.machine.recover(image, observed, boot, now_ns);
  REQUIRE(recovery.ok());
  result.recovery = std::move(recovery).value();
  for (const std::string& problem : result.machine.check_all()) FAIL_CHECK(problem);
  StateMachine again;
  const auto repeated = again.recover(result.machine.image(), observed, boot, now_ns);
  REQUIRE(repeated.ok());
  CHECK(repeated->delta.empty());
  CHECK(repeated->effects.size() == result.recovery.effects.size());
  CHECK(repeated->orphans == result.recovery.orphans);
  CHECK(same_rows(again.image(), result.machine.image()));
  return result;
}

}  // namespace

TEST_CASE("recovery: an empty store is a new manager of this boot") {
  const Recovered r = recover({}, {}, "boot-7", 1);
  CHECK(r.recovery.delta.meta->boot_id == "boot-7");
  CHECK(r.recovery.effects.empty());
  CHECK(r.recovery.findings.empty());
}

TEST_CASE("recovery: a lease whose object is whole goes on unchanged within its boot") {
  for (const bool persistent : {false, true}) {
    const Stored s = stored(LeasePhase::active, persistent);
    const Recovered r = recover(s.image, seen(s.lease, Object::whole), "boot-1", s.now_ns + second);
    LeaseRow expected = s.lease;
    if (!persistent) expected.expiry_ns = s.now_ns + second + s.lease.ttl_ns;
    CHECK(r.lease() == expected);
    CHECK(r.recovery.delta.empty());
    CHECK(r.recovery.effects.empty());
    CHECK(r.machine.next_due_ns().has_value() == !persistent);
    CHECK(r.machine.find_lease_by_label("alice", "weights") != nullptr);
  }
}

TEST_CASE("recovery: a request key is still known after a restart") {
  const Stored s = stored(LeasePhase::active);
  Recovered r = recover(s.image, seen(s.lease, Object::whole), "boot-1", s.now_ns);
  Manager m;
  Grant asked = m.request(2 * granule);
  asked.request_low = 5;
  const Step step = r.machine.apply(asked);
  REQUIRE(step.reply.ok());
  CHECK(std::get<LeaseReply>(*step.reply).lease.id == s.lease.id);
}

TEST_CASE("recovery: a lease that lapsed while the manager was down has time to be renewed, then falls due") {
  const Stored s = stored(LeasePhase::active);
  const uint64_t start_ns = s.lease.expiry_ns + second;
  Recovered r = recover(s.image, seen(s.lease, Object::whole), "boot-1", start_ns);
  const uint64_t due_ns = start_ns + s.lease.ttl_ns;
  CHECK(*r.machine.next_due_ns() == due_ns);
  CHECK(!r.recovery.delta.leases.contains(s.lease.id));  // the next start gives a full TTL again
  CHECK(r.machine.apply(Tick{due_ns - 1}).effects.empty());
  Recovered renewed = recover(s.image, seen(s.lease, Object::whole), "boot-1", start_ns);
  CHECK(renewed.machine.apply(Renew{s.lease.id, "", 0, due_ns - 1}).reply.ok());
  const Step step = r.machine.apply(Tick{due_ns});
  CHECK(std::get<FenceObject>(step.effects.at(0)).lease == s.lease.id);
}

TEST_CASE("recovery: a lease has at least the time that its last renewal acknowledged, which no store has") {
  Manager m({4});
  const LeaseRow lease = m.grant(1);
  const Image stored = m.machine.image();
  for (int i = 0; i < 20; ++i) {
    m.now_ns += 9 * second;
    REQUIRE(m.apply(Renew{lease.id, "alice", 0, m.now_ns}).reply.ok());
  }
  const uint64_t acknowledged_ns = m.machine.find_lease(lease.id)->expiry_ns;
  for (const uint64_t away_ns : {uint64_t{0}, 9 * second, 3600 * second}) {
    Recovered r = recover(stored, seen(lease, Object::whole), "boot-1", m.now_ns + away_ns);
    CHECK(r.lease().phase == LeasePhase::active);
    CHECK(r.lease().expiry_ns >= acknowledged_ns);
    CHECK(r.lease().expiry_ns == m.now_ns + away_ns + lease.ttl_ns);
  }
}

TEST_CASE("recovery: after another boot a lease whose object survived has a full TTL from now") {
  const Stored s = stored(LeasePhase::active);
  const Recovered r = recover(s.image, seen(s.lease, Object::whole), "boot-2", 3 * second);
  CHECK(r.lease().phase == LeasePhase::active);
  CHECK(r.lease().expiry_ns == 13 * second);
  CHECK(*r.recovery.delta.leases.at(s.lease.id) == r.lease());
  CHECK(r.recovery.delta.meta->boot_id == "boot-2");
}

// Found by review: two unreadable boot ids were equal, so that times of one boot were used in another.
TEST_CASE("recovery: where the boot id cannot be read, every start counts as another boot") {
  Stored s = stored(LeasePhase::active);
  s.image.meta.boot_id.clear();
  StateMachine machine;
  REQUIRE(machine.recover(s.image, seen(s.lease, Object::whole), "", 3 * second).ok());
  CHECK(machine.find_lease(s.lease.id)->expiry_ns == 13 * second);
}

TEST_CASE("recovery: a lease without its whole object is fenced, and its memory reclaimed") {
  for (const LeasePhase phase : {LeasePhase::active, LeasePhase::revoking}) {
    for (const Object object : {Object::missing, Object::fenced}) {
      for (const char* boot : {"boot-1", "boot-2"}) {
        for (const bool persistent : {false, true}) {
          const Stored s = stored(phase, persistent);
          Recovered r = recover(s.image, seen(s.lease, object), boot, s.now_ns);
          CHECK(r.lease().phase == LeasePhase::fencing);
          CHECK(r.recovery.delta.leases.at(s.lease.id)->phase == LeasePhase::fencing);
          REQUIRE(r.recovery.effects.size() == 1);
          CHECK(std::get<FenceObject>(r.recovery.effects[0]).object == s.lease.object);
          CHECK_FALSE(r.recovery.findings.empty());
          CHECK(r.machine.find_lease_by_label("alice", "weights") == nullptr);
          REQUIRE(r.machine.apply(FenceFinished{s.lease.id, {}, s.now_ns}).reply.ok());
          REQUIRE(r.machine.apply(ScrubFinished{s.lease.id, {}, s.now_ns}).reply.ok());
          CHECK(r.machine.leases().empty());
        }
      }
    }
  }
}

TEST_CASE("recovery: a revocation goes on to its deadline, and its holders are told again") {
  const Stored s = stored(LeasePhase::revoking);
  const Recovered r = recover(s.image, seen(s.lease, Object::whole), "boot-1", s.now_ns + 2 * second);
  CHECK(r.lease() == s.lease);
  REQUIRE(r.recovery.effects.size() == 1);
  CHECK(std::get<NotifyHolders>(r.recovery.effects[0]).grace_ns == 3 * second);
  CHECK(*r.machine.next_due_ns() == s.lease.deadline_ns);
}

TEST_CASE("recovery: after another boot a revocation is due at once") {
  const Stored s = stored(LeasePhase::revoking);
  Recovered r = recover(s.image, seen(s.lease, Object::whole), "boot-2", 7 * second);
  CHECK(*r.machine.next_due_ns() == 7 * second);
  CHECK(r.machine.apply(Tick{7 * second}).effects.size() == 1);
}

TEST_CASE("recovery: a lease that was being fenced or scrubbed is fenced again, whatever is left of it") {
  for (const LeasePhase phase : {LeasePhase::fencing, LeasePhase::scrubbing}) {
    for (const Object object : {Object::whole, Object::fenced, Object::missing}) {
      for (const char* boot : {"boot-1", "boot-2"}) {
        const Stored s = stored(phase);
        const Recovered r = recover(s.image, seen(s.lease, object), boot, s.now_ns);
        CHECK(r.lease().phase == LeasePhase::fencing);
        REQUIRE(r.recovery.effects.size() == 1);
        CHECK(std::get<FenceObject>(r.recovery.effects[0]).lease == s.lease.id);
        CHECK_FALSE(r.machine.next_due_ns().has_value());
      }
    }
  }
}

TEST_CASE("recovery: quarantine outlives restarts and boots, with and without the object") {
  for (const Object object : {Object::whole, Object::fenced, Object::missing}) {
    for (const char* boot : {"boot-1", "boot-2"}) {
      const Stored s = stored(LeasePhase::quarantined);
      const Recovered r = recover(s.image, seen(s.lease, object), boot, s.now_ns);
      CHECK(r.lease() == s.lease);
      CHECK(r.recovery.effects.empty());
      CHECK(r.recovery.orphans.empty());
      CHECK(r.machine.pool_use(s.lease.pool).quarantined_bytes == s.lease.bytes);
    }
  }
}

TEST_CASE("recovery: objects without a lease are listed, those of leases in any phase are not") {
  const Stored s = stored(LeasePhase::fencing);
  Observation observed = seen(s.lease, Object::whole);
  observed.objects.emplace_back("lease-98", granule);
  observed.objects.emplace_back("lease-99", 0);
  const Recovered r = recover(s.image, observed, "boot-1", s.now_ns);
  CHECK(r.recovery.orphans == std::vector<std::string>{"lease-98", "lease-99"});
}

TEST_CASE("recovery: nothing is granted on a device that is not seen, until it is adopted again") {
  Manager m({4, 2});
  StateMachine machine;
  const auto recovery = machine.recover(m.machine.image(), {{}, {"emu:1"}}, "boot-1", m.now_ns);
  REQUIRE(recovery.ok());
  CHECK(recovery->findings.size() == 1);
  m.machine = std::move(machine);
  CHECK(code_of(m.apply(m.request(3 * granule))) == ErrorCode::capacity_exhausted);
  CHECK(m.grant(2).extents[0].device == m.machine.find_device("emu:1")->id);
  REQUIRE(m.adopt("emu:0", 4).reply.ok());  // it is back, with the size it had
  CHECK(m.grant(4).extents[0].device == m.machine.find_device("emu:0")->id);
}
