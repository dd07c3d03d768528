// SPDX-License-Identifier: Apache-2.0
// A shared lease on several hosts: its memory objects there, who loses what, and that nothing is free before all are gone.
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

LeaseRow shared(Manager& m, const std::string& agent = "") {
  Grant asked = m.request(3 * granule);
  asked.mode = LeaseMode::shared_coherent;
  asked.agent = agent;
  return m.grant(asked);
}

ViewReply open(Manager& m, const LeaseRow& lease, const std::string& agent) {
  const Step step = m.apply(OpenView{lease.id, "alice", agent, m.now_ns});
  REQUIRE(step.reply.ok());
  return std::get<ViewReply>(*step.reply);
}
// Made as well.
ViewRow view(Manager& m, const LeaseRow& lease, const std::string& agent) {
  const ViewReply reply = open(m, lease, agent);
  CHECK(reply.view.opening);
  REQUIRE(m.apply(ViewOpened{reply.view.id, reply.view.object, {}, m.now_ns}).reply.ok());
  return m.machine.views().at(reply.view.id);
}

template <typename E>
std::vector<E> effects_of(const Step& step) {
  std::vector<E> found;
  for (const Effect& effect : step.effects)
    if (const auto* one = std::get_if<E>(&effect)) found.push_back(*one);
  return found;
}

}  // namespace

TEST_CASE(
    "views: in the store before the object is made, one for each host, under a name that is never used again") {
  Manager m({10});
  const LeaseRow lease = shared(m);
  const Step step = m.apply(OpenView{lease.id, "alice", "hostb", m.now_ns});
  REQUIRE(step.reply.ok());
  const ViewRow row = std::get<ViewReply>(*step.reply).view;
  CHECK(step.delta.views.at(row.id) == row);
  const auto shows = effects_of<ShowObject>(step);
  REQUIRE(shows.size() == 1);
  CHECK(shows[0].view == row.object);
  CHECK(shows[0].object == lease.object);
  CHECK(shows[0].extents == lease.extents);
  CHECK(row.object.ends_with("@hostb"));
  CHECK_FALSE(m.machine.object_on(lease, "hostb").has_value());  // not yet

  // Asked for by a second program meanwhile, and once it is there.
  CHECK(open(m, lease, "hostb").view.opening);
  m.apply(ViewOpened{row.id, row.object, {}, m.now_ns});
  const Step again = m.apply(OpenView{lease.id, "alice", "hostb", m.now_ns});
  CHECK(again.delta.empty());
  CHECK_FALSE(std::get<ViewReply>(*again.reply).view.opening);
  CHECK(m.machine.object_on(lease, "hostb") == row.object);
  CHECK(m.machine.object_on(lease, "") == lease.object);

  const ViewRow other = view(m, lease, "hostc");
  CHECK(other.id != row.id);
  m.apply(LoseObject{lease.id, row.object, "lost", m.now_ns});
  m.apply(ViewClosed{row.id, row.object, false, m.now_ns});
  CHECK(view(m, lease, "hostb").object != row.object);
}

TEST_CASE("views: what is one host's, moves or changes is not attached on several, and the other way round") {
  Manager m({20});
  const LeaseRow exclusive = m.grant(1);
  CHECK(code_of(m.apply(OpenView{exclusive.id, "alice", "hostb", m.now_ns})) == ErrorCode::unsupported);
  Grant asked = m.request(granule);
  asked.mode = LeaseMode::shared_read_only;
  asked.movable = true;
  CHECK(code_of(m.apply(OpenView{m.grant(asked).id, "alice", "hostb", m.now_ns})) == ErrorCode::unsupported);

  const LeaseRow lease = shared(m);
  CHECK(code_of(m.apply(OpenView{lease.id, "bob", "hostb", m.now_ns})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(OpenView{lease.id, "alice", "", m.now_ns})) == ErrorCode::invalid_argument);
  view(m, lease, "hostb");
  const std::vector<Command> changes{
      Resize{lease.id, "alice", 4 * granule, m.now_ns}, Resize{lease.id, "alice", granule, m.now_ns},
      Transfer{lease.id, "", "bob", "", m.now_ns}, OfferLease{lease.id, "alice", "bob", "", m.now_ns},
      BeginMove{lease.id, "alice", m.now_ns}};
  for (const Command& change : changes) {
    const Step refused = m.apply(change);
    CHECK(code_of(refused) == ErrorCode::busy);
    CHECK(refused.reply.error().detail.find("host hostb") != std::string::npos);
  }
  const LeaseRow growing = shared(m);
  REQUIRE(m.apply(Resize{growing.id, "alice", 4 * granule, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(OpenView{growing.id, "alice", "hostb", m.now_ns})) == ErrorCode::busy);
}

TEST_CASE(
    "views: a fence names all of them, also those that are being made or removed, and they go with the lease") {
  Manager m({10});
  const LeaseRow lease = shared(m);
  const ViewRow whole = view(m, lease, "hostb");
  const ViewRow half = open(m, lease, "hostc").view;
  const ViewRow closing = view(m, lease, "hostd");
  m.apply(LoseObject{lease.id, closing.object, "lost", m.now_ns});

  const Step revoked = m.apply(Revoke{lease.id, "", 0, m.now_ns});
  const auto fences = effects_of<FenceObject>(revoked);
  REQUIRE(fences.size() == 1);
  CHECK(fences[0].views == std::vector<std::string>{whole.object, half.object, closing.object});
  CHECK(fences[0].extents == lease.extents);
  // What comes of the others now changes nothing.
  CHECK(m.apply(ViewOpened{half.id, half.object, failure(), m.now_ns}).effects.empty());
  CHECK(code_of(m.apply(OpenView{lease.id, "alice", "hoste", m.now_ns})) == ErrorCode::lease_revoked);
  CHECK(m.machine.views().size() == 3);
  m.finish(lease.id);
  CHECK(m.machine.views().empty());
  CHECK(m.use().free_bytes == 10 * granule);
}

TEST_CASE("views: one that cannot be made is removed, and its host may ask again") {
  Manager m({10});
  const LeaseRow lease = shared(m);
  const ViewRow row = open(m, lease, "hostb").view;
  const Step failed = m.apply(ViewOpened{row.id, row.object, failure(), m.now_ns});
  CHECK(effects_of<HideObject>(failed).size() == 1);
  CHECK(code_of(m.apply(OpenView{lease.id, "alice", "hostb", m.now_ns})) == ErrorCode::unavailable);
  m.apply(ViewClosed{row.id, "lease-1-of-before@hostb", false, m.now_ns});  // not this one
  CHECK(m.machine.views().size() == 1);
  m.apply(ViewClosed{row.id, row.object, false, m.now_ns});
  CHECK(m.machine.views().empty());
  view(m, lease, "hostb");
}

TEST_CASE("views: a lease whose own object is lost goes on in a view, and ends where there is none") {
  Manager m({10});
  const LeaseRow lease = shared(m, "hostb");
  const ViewRow half = open(m, lease, "hostc").view;
  const ViewRow local = view(m, lease, "");
  const Step lost = m.apply(LoseObject{lease.id, lease.object, "hostb is gone", m.now_ns});
  CHECK(m.phase(lease.id) == LeasePhase::active);
  CHECK(m.machine.find_lease(lease.id)->object == local.object);
  const auto hides = effects_of<HideObject>(lost);
  REQUIRE(hides.size() == 1);
  CHECK(hides[0].view == lease.object);
  CHECK(lost.delta.leases.at(lease.id)->object == local.object);
  m.apply(ViewClosed{hides[0].id, lease.object, false, m.now_ns});

  // The half made one is no help.
  const Step ended = m.apply(LoseObject{lease.id, local.object, "this machine's is gone", m.now_ns});
  CHECK(m.phase(lease.id) == LeasePhase::fencing);
  CHECK(effects_of<FenceObject>(ended).at(0).views == std::vector<std::string>{half.object});
  CHECK(m.machine.find_lease(lease.id)->cause == LeaseCause::object_lost);
  m.finish(lease.id);
}

TEST_CASE(
    "views: a start goes on with those of further hosts, and closes what was half removed or is gone here") {
  Manager m({10});
  const LeaseRow lease = shared(m, "hostb");
  const ViewRow far = view(m, lease, "hostc");
  const ViewRow local = view(m, lease, "");
  const ViewRow closing = view(m, lease, "hostd");
  m.apply(LoseObject{lease.id, closing.object, "lost", m.now_ns});
  const ViewRow half = open(m, lease, "hoste").view;  // what came of it nobody knows
  const auto start = [&](std::vector<std::pair<std::string, uint64_t>> objects) {
    std::pair<StateMachine, Recovery> started;
    auto recovery =
        started.first.recover(m.machine.image(), {std::move(objects), {"emu:0"}}, "boot-1", m.now_ns);
    REQUIRE(recovery.ok());
    started.second = std::move(*recovery);
    for (const std::string& problem : started.first.check_all()) FAIL_CHECK(problem);
    return started;
  };
  const auto hidden = [](const Recovery& recovery) {
    std::vector<std::string> names;
    for (const Effect& effect : recovery.effects)
      if (const auto* one = std::get_if<HideObject>(&effect)) names.push_back(one->view);
    return names;
  };
  {
    auto [machine, recovery] =
        start({{lease.object, lease.bytes}, {far.object, lease.bytes}, {local.object, lease.bytes}});
    CHECK(hidden(recovery) == std::vector<std::string>{closing.object, half.object});
    CHECK(recovery.orphans.empty());
    CHECK(machine.object_on(lease, "hostc") == far.object);
  }
  {
    auto [machine, recovery] = start({{lease.object, lease.bytes}, {far.object, lease.bytes}});
    CHECK(hidden(recovery) == std::vector<std::string>{local.object, closing.object, half.object});
  }
  {  // its own is gone: another takes its place
    auto [machine, recovery] = start({{local.object, lease.bytes}});
    CHECK(machine.find_lease(lease.id)->phase == LeasePhase::active);
    CHECK(machine.find_lease(lease.id)->object == far.object);
    CHECK(hidden(recovery) == std::vector<std::string>{lease.object, closing.object, half.object});
  }
}

TEST_CASE("views: a store whose views contradict its leases is not served") {
  Manager m({10});
  const LeaseRow lease = shared(m);
  view(m, lease, "hostb");
  const Image good = m.machine.image();
  const auto opens = [&](const Image& image) {
    StateMachine machine;
    return machine.recover(image, {{{lease.object, lease.bytes}}, {"emu:0"}}, "boot-1", m.now_ns).ok();
  };
  CHECK(opens(good));
  Image bad = good;
  bad.views[0].id = view_id(LeaseId{99}, 0);
  CHECK_FALSE(opens(bad));
  bad = good;
  bad.leases[0].mode = LeaseMode::exclusive;
  CHECK_FALSE(opens(bad));
  bad = good;
  bad.leases[0].movable = true;
  CHECK_FALSE(opens(bad));
  bad = good;
  bad.views.push_back({.id = view_id(lease.id, 1), .object = good.views[0].object});
  CHECK_FALSE(opens(bad));
  bad = good;
  bad.views[0].object = lease.object;
  CHECK_FALSE(opens(bad));
}
