// SPDX-License-Identifier: Apache-2.0
// Handing a lease over: a new tenant, host, epoch and object; the bytes stay.
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

LeaseRow labelled(Manager& m, const std::string& tenant = "alice") {
  Grant asked = m.request(3 * granule);
  asked.tenant = tenant;
  asked.label = "weights";
  asked.request_low = 9;
  return m.grant(asked);
}

struct Recovered {
  StateMachine machine;
  Recovery recovery;
};
Recovered restart(const Manager& m, std::vector<std::pair<std::string, uint64_t>> objects) {
  Recovered r;
  const Observation observed{std::move(objects), {"emu:0"}};
  auto recovery = r.machine.recover(m.machine.image(), observed, "boot-1", m.now_ns);
  REQUIRE(recovery.ok());
  r.recovery = std::move(recovery).value();
  for (const std::string& problem : r.machine.check_all()) FAIL_CHECK(problem);
  return r;
}

}  // namespace

TEST_CASE("transfer: one step makes it the new tenant's under a new epoch, then its object follows") {
  Manager m({10});
  const LeaseRow lease = labelled(m);
  const Step step = m.apply(Transfer{lease.id, "alice", "bob", "node-2", m.now_ns});
  REQUIRE(step.reply.ok());
  CHECK(std::get<ChangePending>(*step.reply).lease == lease.id);
  const LeaseRow row = *step.delta.leases.at(lease.id);
  CHECK(row.phase == LeasePhase::transferring);
  CHECK(row.tenant == "bob");
  CHECK(row.host == "node-2");
  CHECK(row.epoch > lease.epoch);
  CHECK(row.expiry_ns == 0);
  CHECK(row.request_low == 0);
  CHECK(row.object == lease.object);
  CHECK(row.next_object != lease.object);
  CHECK(step.delta.meta->next_epoch == row.epoch.value + 1);
  REQUIRE(step.effects.size() == 2);
  const auto& notice = std::get<NotifyHolders>(step.effects[0]);
  CHECK(notice.fenced);
  CHECK(notice.cause == LeaseCause::revoked);
  CHECK(notice.reason == "handed to tenant bob");
  const auto& rebind = std::get<RebindObject>(step.effects[1]);
  CHECK(rebind.from == lease.object);
  CHECK(rebind.to == row.next_object);
  CHECK(m.machine.tenant_use("alice").leases == 0);
  CHECK(m.machine.tenant_use("bob").bytes == 3 * granule);
  CHECK(m.machine.find_lease_by_label("alice", "weights") == nullptr);
  CHECK(m.machine.find_lease_by_label("bob", "weights")->id == lease.id);
  CHECK_FALSE(m.machine.next_due_ns().has_value());

  // Nobody changes it meanwhile.
  CHECK(code_of(m.apply(Renew{lease.id, "alice", 0, m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(Renew{lease.id, "bob", 0, m.now_ns})) == ErrorCode::busy);
  CHECK(code_of(m.apply(Release{lease.id, "bob", m.now_ns})) == ErrorCode::busy);
  CHECK(code_of(m.apply(Revoke{lease.id, "", 0, m.now_ns})) == ErrorCode::busy);
  CHECK(code_of(m.apply(Resize{lease.id, "bob", granule, m.now_ns})) == ErrorCode::busy);
  CHECK(code_of(m.apply(Transfer{lease.id, "bob", "carol", "", m.now_ns})) == ErrorCode::busy);
  CHECK(code_of(m.apply(BeginMove{lease.id, "bob", m.now_ns})) == ErrorCode::busy);

  m.now_ns += second;
  const Step done = m.apply(RebindFinished{lease.id, {}, m.now_ns});
  REQUIRE(done.reply.ok());
  const LeaseRow bound = std::get<LeaseReply>(*done.reply).lease;
  CHECK(bound.phase == LeasePhase::active);
  CHECK(bound.object == row.next_object);
  CHECK(bound.next_object.empty());
  CHECK(bound.extents == lease.extents);
  CHECK(bound.expiry_ns == m.now_ns + 10 * second);
  CHECK(*done.delta.leases.at(lease.id) == bound);
  CHECK(code_of(m.apply(RebindFinished{lease.id, {}, m.now_ns})) == ErrorCode::not_found);
  CHECK(m.apply(Renew{lease.id, "bob", 0, m.now_ns}).reply.ok());
  (void)labelled(m);  // alice's label and key are free again
}

TEST_CASE("transfer: to the same tenant and host it only shuts the present holders out") {
  Manager m({10});
  const LeaseRow lease = labelled(m);
  REQUIRE(m.apply(Transfer{lease.id, "", "alice", "", m.now_ns}).reply.ok());
  REQUIRE(m.apply(RebindFinished{lease.id, {}, m.now_ns}).reply.ok());
  const LeaseRow after = *m.machine.find_lease(lease.id);
  CHECK(after.epoch > lease.epoch);
  CHECK(after.object != lease.object);
  CHECK(after.host == lease.host);
  CHECK(m.machine.tenant_use("alice").leases == 1);
}

TEST_CASE("transfer: who may not, names that cannot be, labels and quotas of the receiver refuse it") {
  Manager m({20});
  const LeaseRow lease = labelled(m);
  CHECK(code_of(m.apply(Transfer{lease.id, "bob", "bob", "", m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(Transfer{lease.id, "alice", "b b", "", m.now_ns})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(Transfer{lease.id, "alice", "", "", m.now_ns})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(Transfer{lease.id, "alice", "bob", "-", m.now_ns})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(Transfer{lease.id, "alice", "bob", "", lease.expiry_ns})) == ErrorCode::lease_expired);
  const LeaseRow other = labelled(m, "bob");
  CHECK(code_of(m.apply(Transfer{lease.id, "alice", "bob", "", m.now_ns})) == ErrorCode::already_exists);
  REQUIRE(m.apply(Release{other.id, "bob", m.now_ns}).reply.ok());
  REQUIRE(m.apply(SetQuota{{"bob", 2 * granule, 0}}).reply.ok());
  CHECK(code_of(m.apply(Transfer{lease.id, "alice", "bob", "", m.now_ns})) == ErrorCode::limit_exceeded);
  REQUIRE(m.apply(Revoke{lease.id, "", 5 * second, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(Transfer{lease.id, "alice", "carol", "", m.now_ns})) == ErrorCode::lease_revoked);
}

// Unasked transfers filled a victim's quota, and planted bytes under a label that it attaches.
TEST_CASE("offer: until the receiver accepts it, nothing of the lease changes and nothing of the receiver's") {
  Manager m({20});
  const LeaseRow lease = labelled(m);
  REQUIRE(m.apply(SetQuota{{"bob", 2 * granule, 1}}).reply.ok());
  const Image before = m.machine.image();
  const Step offered = m.apply(OfferLease{lease.id, "alice", "bob", "", m.now_ns});
  REQUIRE(offered.reply.ok());
  CHECK(std::get<LeaseReply>(*offered.reply).lease == lease);
  CHECK(offered.delta.empty());
  CHECK(offered.effects.empty());
  CHECK(same_rows(before, m.machine.image()));
  CHECK(m.machine.offers().at(lease.id).to_tenant == "bob");
  CHECK(m.machine.tenant_use("bob").leases == 0);
  CHECK(m.machine.find_lease_by_label("bob", "weights") == nullptr);
  CHECK(m.apply(Renew{lease.id, "alice", 0, m.now_ns}).reply.ok());

  // Others cannot accept it, and the receiver's own bounds hold; the offer outlives a refusal.
  CHECK(code_of(m.apply(AcceptOffer{lease.id, "carol", m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(AcceptOffer{lease.id, "alice", m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(AcceptOffer{lease.id, "bob", m.now_ns})) == ErrorCode::limit_exceeded);
  REQUIRE(m.apply(SetQuota{{"bob", 0, 0}}).reply.ok());
  const LeaseRow own = labelled(m, "bob");
  CHECK(code_of(m.apply(AcceptOffer{lease.id, "bob", m.now_ns})) == ErrorCode::already_exists);
  REQUIRE(m.apply(Release{own.id, "bob", m.now_ns}).reply.ok());

  const Step accepted = m.apply(AcceptOffer{lease.id, "bob", m.now_ns});
  REQUIRE(accepted.reply.ok());
  CHECK(std::get<ChangePending>(*accepted.reply).lease == lease.id);
  CHECK(m.machine.offers().empty());
  REQUIRE(m.apply(RebindFinished{lease.id, {}, m.now_ns}).reply.ok());
  CHECK(m.machine.find_lease(lease.id)->epoch > lease.epoch);
  CHECK(m.machine.find_lease_by_label("bob", "weights")->id == lease.id);
  CHECK(m.machine.tenant_use("alice").leases == 0);
}

TEST_CASE("offer: it is withdrawn, replaced, and ends with the lease, a hand-over and the manager") {
  Manager m({20});
  const LeaseRow lease = labelled(m);
  const auto offer = [&](const char* to) { return m.apply(OfferLease{lease.id, "alice", to, "", m.now_ns}); };
  CHECK(code_of(m.apply(OfferLease{lease.id, "bob", "bob", "", m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(offer("alice")) == ErrorCode::invalid_argument);
  CHECK(code_of(offer("b b")) == ErrorCode::invalid_argument);
  REQUIRE(offer("bob").reply.ok());
  REQUIRE(offer("carol").reply.ok());
  CHECK(code_of(m.apply(AcceptOffer{lease.id, "bob", m.now_ns})) == ErrorCode::not_found);
  REQUIRE(offer("").reply.ok());
  CHECK(offer("").reply.ok());
  CHECK(code_of(m.apply(AcceptOffer{lease.id, "carol", m.now_ns})) == ErrorCode::not_found);
  REQUIRE(offer("bob").reply.ok());
  CHECK(restart(m, {{lease.object, lease.bytes}}).machine.offers().empty());
  REQUIRE(m.apply(Revoke{lease.id, "", 5 * second, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(AcceptOffer{lease.id, "bob", m.now_ns})) == ErrorCode::lease_revoked);
  REQUIRE(m.apply(Release{lease.id, "alice", m.now_ns}).reply.ok());
  CHECK(m.machine.offers().empty());
  const LeaseRow other = m.grant(1);
  REQUIRE(m.apply(OfferLease{other.id, "alice", "bob", "node-2", m.now_ns}).reply.ok());
  REQUIRE(m.apply(Transfer{other.id, "", "carol", "", m.now_ns}).reply.ok());
  CHECK(m.machine.offers().empty());
}

TEST_CASE("transfer: a rebind that fails ends the lease, and both its objects are fenced and erased") {
  Manager m({10});
  const LeaseRow lease = labelled(m);
  REQUIRE(m.apply(Transfer{lease.id, "alice", "bob", "", m.now_ns}).reply.ok());
  const std::string next = m.machine.find_lease(lease.id)->next_object;
  const Step failed = m.apply(RebindFinished{lease.id, failure(), m.now_ns});
  CHECK(code_of(failed) == ErrorCode::io_error);
  const LeaseRow row = *failed.delta.leases.at(lease.id);
  CHECK(row.phase == LeasePhase::fencing);
  CHECK(row.reason.find("could not be handed over") == 0);
  CHECK(std::get<FenceObject>(failed.effects.at(0)).object == lease.object);
  CHECK(code_of(m.apply(Renew{lease.id, "bob", 0, m.now_ns})) == ErrorCode::lease_revoked);

  REQUIRE(m.apply(FenceFinished{lease.id, {}, m.now_ns}).reply.ok());
  CHECK(m.apply(ScrubAdvanced{lease.id, 1, m.now_ns}).delta.empty());  // the other object may show them
  const Step scrubbed = m.apply(ScrubFinished{lease.id, {}, m.now_ns});
  CHECK(std::get<FenceObject>(scrubbed.effects.at(0)).object == next);
  CHECK(scrubbed.delta.leases.at(lease.id)->object == next);
  CHECK(m.use().free_bytes == 7 * granule);
  m.finish(lease.id);
  CHECK(m.use().free_bytes == 10 * granule);
}

TEST_CASE("transfer: a failed one that could not be fenced either goes through both objects once released") {
  Manager m({10});
  const LeaseRow lease = labelled(m);
  REQUIRE(m.apply(Transfer{lease.id, "alice", "bob", "", m.now_ns}).reply.ok());
  (void)m.apply(RebindFinished{lease.id, failure(), m.now_ns});
  REQUIRE(m.apply(FenceFinished{lease.id, failure(), m.now_ns}).reply.ok());
  const Recovered r = restart(m, {});
  CHECK(r.machine.find_lease(lease.id)->phase == LeasePhase::quarantined);
  REQUIRE(m.apply(Release{lease.id, "", m.now_ns}).reply.ok());
  m.finish(lease.id);
  m.finish(lease.id);
  CHECK(m.use().free_bytes == 10 * granule);
}

TEST_CASE("recovery: a transfer goes on with whichever object is left, and is lost with both") {
  Manager m({10});
  const LeaseRow lease = labelled(m);
  REQUIRE(m.apply(Transfer{lease.id, "alice", "bob", "", m.now_ns}).reply.ok());
  const std::string next = m.machine.find_lease(lease.id)->next_object;
  using Objects = std::vector<std::pair<std::string, uint64_t>>;
  for (const Objects& objects : {Objects{{lease.object, lease.bytes}}, Objects{{next, lease.bytes}},
                                 Objects{{lease.object, 0}, {next, 5}}}) {
    Recovered r = restart(m, objects);
    CHECK(r.recovery.orphans.empty());
    CHECK(r.machine.find_lease_by_label("bob", "weights")->id == lease.id);
    const auto& rebind = std::get<RebindObject>(r.recovery.effects.at(0));
    CHECK(rebind.from == lease.object);
    CHECK(rebind.to == next);
    REQUIRE(r.machine.apply(RebindFinished{lease.id, {}, m.now_ns}).reply.ok());
    CHECK(r.machine.find_lease(lease.id)->object == next);
    CHECK(r.machine.check_all().empty());
  }
  const Recovered r = restart(m, {});
  CHECK(r.machine.find_lease(lease.id)->phase == LeasePhase::fencing);
  CHECK(r.machine.find_lease(lease.id)->cause == LeaseCause::object_lost);
}

TEST_CASE("recovery: rows of a transfer or a shrink that cannot be are refused as corrupt") {
  Manager m({10});
  const LeaseRow lease = labelled(m);
  (void)m.grant(3);
  REQUIRE(m.apply(Transfer{lease.id, "alice", "bob", "", m.now_ns}).reply.ok());
  const Image sound = m.machine.image();
  const auto code = [&](auto spoil) {
    Image image = sound;
    spoil(image.leases.at(0), image.leases.at(1));
    StateMachine machine;
    const Observation observed{{{lease.object, lease.bytes}, {image.leases[1].object, 3 * granule}}, {"emu:0"}};
    const auto recovery = machine.recover(image, observed, "boot-1", m.now_ns);
    return recovery.ok() ? ErrorCode::ok : recovery.error().code;
  };
  CHECK(code([](LeaseRow&, LeaseRow&) {}) == ErrorCode::ok);
  CHECK(code([](LeaseRow& t, LeaseRow&) { t.next_object.clear(); }) == ErrorCode::corrupt);
  CHECK(code([](LeaseRow& t, LeaseRow&) { t.next_object = "a/b"; }) == ErrorCode::corrupt);
  CHECK(code([](LeaseRow& t, LeaseRow& o) { t.next_object = o.object; }) == ErrorCode::corrupt);
  CHECK(code([](LeaseRow& t, LeaseRow&) { t.next_object = t.object; }) == ErrorCode::corrupt);
  CHECK(code([](LeaseRow& t, LeaseRow&) { t.expiry_ns = 5; }) == ErrorCode::corrupt);
  CHECK(code([](LeaseRow& t, LeaseRow&) { t.target_bytes = granule; }) == ErrorCode::corrupt);
  CHECK(code([](LeaseRow&, LeaseRow& o) { o.next_object = "x"; }) == ErrorCode::corrupt);
  CHECK(code([](LeaseRow& t, LeaseRow& o) { (o.tenant = "bob", o.label = t.label); }) == ErrorCode::corrupt);
  CHECK(code([](LeaseRow&, LeaseRow& o) { o.target_bytes = granule; }) == ErrorCode::ok);
  CHECK(code([](LeaseRow&, LeaseRow& o) { o.target_bytes = granule / 2; }) == ErrorCode::corrupt);
  CHECK(code([](LeaseRow&, LeaseRow& o) { o.target_bytes = o.bytes; }) == ErrorCode::corrupt);
  CHECK(code([](LeaseRow&, LeaseRow& o) { o.cause = static_cast<LeaseCause>(7); }) == ErrorCode::corrupt);
}
