// SPDX-License-Identifier: Apache-2.0
// Owners of parts that are processes of several hosts: whose a part stays where caches of hosts are not coherent, and what the end
// of a host does to its owners.
#include <doctest/doctest.h>

#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

constexpr ProcessId claimant{100, 7, 1};

// A lease of the manager's own machine ("") that hostb and hostc have attached, too.
struct Hosts : Manager {
  explicit Hosts(PoolCoherence coherence = PoolCoherence::unknown, const std::string& agent = "")
      : Manager({10}) {
    REQUIRE(apply(SetPoolCoherence{"p", coherence}).reply.ok());
    Grant asked = request(4 * granule);
    asked.mode = LeaseMode::shared_coherent;
    asked.agent = agent;
    lease = grant(asked);
    for (const char* host : {"", "hostb", "hostc"})
      if (host != agent) open(host);
  }
  ViewRow open(const std::string& host) {
    const Step step = apply(OpenView{lease.id, "alice", host, now_ns});
    REQUIRE_MESSAGE(step.reply.ok(), step.reply.error().to_string());
    const ViewRow view = std::get<ViewReply>(*step.reply).view;
    apply(ViewOpened{view.id, view.object, {}, now_ns});
    return view;
  }
  ViewRow view_on(const std::string& host) const {
    for (const ViewRow& view : machine.views_of(lease.id))
      if (view.object.ends_with("@" + host)) return view;
    FAIL("no view");
    return {};
  }
  // Its host is lost, or gives it up.
  void close(const std::string& host, bool lines_may_remain) {
    const ViewRow view = view_on(host);
    apply(LoseObject{lease.id, view.object, "gone", now_ns});
    apply(ViewClosed{view.id, view.object, lines_may_remain, now_ns});
  }
  Step claim(const std::string& host, uint64_t dead_epoch = 0, uint64_t part = 0,
             const ProcessId& by = claimant) {
    ClaimPart command{.lease = lease.id, .tenant = "alice", .part = part};
    command.request = ++key_;
    command.process = by;
    command.host = host;
    command.holder = "python3[100]";
    command.dead_epoch = dead_epoch;
    command.now_ns = now_ns;
    return apply(command);
  }
  uint64_t epoch(const Step& step) const {
    REQUIRE_MESSAGE(step.reply.ok(), step.reply.error().to_string());
    return std::get<OwnerReply>(*step.reply).owner.epoch;
  }
  Step release(const std::string& host, uint64_t epoch, uint64_t part = 0) {
    return apply(ReleasePart{lease.id, "alice", part, epoch, claimant, host});
  }
  const OwnerRow& owner(uint64_t part = 0) const { return *machine.find_owner(lease.id, part); }
  StateMachine restarted(const std::string& boot) const {
    StateMachine again;
    const Observation observed{{{lease.object, lease.bytes}}, {"emu:0"}};
    const auto recovery = again.recover(machine.image(), observed, boot, now_ns);
    REQUIRE_MESSAGE(recovery.ok(), recovery.error().to_string());
    for (const std::string& problem : again.check_all()) FAIL_CHECK(problem);
    return again;
  }
  LeaseRow lease;

 private:
  uint64_t key_ = 0;
};

}  // namespace

TEST_CASE("owners on hosts: each host that has the lease has owners, who are named with it") {
  for (const char* own : {"", "hostb"}) {
    Hosts m(PoolCoherence::coherent, own);
    CHECK(m.epoch(m.claim("hostb")) == 1);
    CHECK(m.owner().host == "hostb");
    // The same numbers on another host are another process.
    for (const char* host : {"", "hostc"}) {
      const Step refused = m.claim(host);
      CHECK(code_of(refused) == ErrorCode::busy);
      CHECK(refused.reply.error().detail.find("process 100 on host hostb") != std::string::npos);
      CHECK(code_of(m.release(host, 1)) == ErrorCode::permission_denied);
    }
    CHECK(m.epoch(m.claim("", 0, 1)) == 1);
    CHECK(m.epoch(m.claim("hostc", 0, 2)) == 1);
    const Step elsewhere = m.claim("hostd");
    CHECK(code_of(elsewhere) == ErrorCode::unavailable);
    CHECK(elsewhere.reply.error().detail.find("hostd") != std::string::npos);
  }
}

TEST_CASE(
    "owners on hosts: a view that is being made or removed has none, and a movable lease on an agent's host "
    "has none") {
  Hosts m;
  const Step opened = m.apply(OpenView{m.lease.id, "alice", "hostd", m.now_ns});
  const ViewRow view = std::get<ViewReply>(*opened.reply).view;
  CHECK(code_of(m.claim("hostd")) == ErrorCode::unavailable);
  m.apply(ViewOpened{view.id, view.object, {}, m.now_ns});
  CHECK(m.epoch(m.claim("hostd")) == 1);
  m.apply(LoseObject{m.lease.id, view.object, "gone", m.now_ns});
  CHECK(code_of(m.claim("hostd", 0, 1)) == ErrorCode::unavailable);

  Grant asked = m.request(granule);
  asked.mode = LeaseMode::shared_coherent;
  asked.movable = true;
  asked.agent = "hostb";
  m.lease = m.grant(asked);
  CHECK(code_of(m.claim("hostb")) == ErrorCode::unsupported);
}

TEST_CASE("owners on hosts: where caches are coherent a part goes to any host, after a release or a death") {
  Hosts m(PoolCoherence::coherent);
  CHECK(m.epoch(m.claim("hostb")) == 1);
  REQUIRE(m.release("hostb", 1).reply.ok());
  CHECK(m.epoch(m.claim("")) == 2);
  CHECK(code_of(m.claim("hostc", 1)) == ErrorCode::busy);
  CHECK(m.epoch(m.claim("hostc", 2)) == 3);
}

TEST_CASE(
    "owners on hosts: where they are not, a part stays with its host, through releases, deaths and restarts") {
  for (const PoolCoherence coherence : {PoolCoherence::unknown, PoolCoherence::noncoherent}) {
    Hosts m(coherence);
    CHECK(m.epoch(m.claim("hostb")) == 1);
    const auto others_are_refused = [&m](uint64_t dead_epoch) {
      for (const char* host : {"", "hostc"}) {
        const Step refused = m.claim(host, dead_epoch);
        CHECK(code_of(refused) == ErrorCode::busy);
        CHECK(refused.reply.error().detail.find("hostb") != std::string::npos);
      }
    };
    others_are_refused(0);
    others_are_refused(1);  // dead, and its stores are in caches of hostb
    CHECK(m.epoch(m.claim("hostb", 1)) == 2);
    REQUIRE(m.release("hostb", 2).reply.ok());
    others_are_refused(0);
    m.machine = m.restarted("boot-2");  // the manager's machine was, not hostb
    others_are_refused(0);
    CHECK_FALSE(m.machine.same_caches(m.lease, m.owner(), ""));
    CHECK(m.machine.same_caches(m.lease, m.owner(), "hostb"));
    CHECK(m.epoch(m.claim("hostb")) == 3);
    CHECK(m.epoch(m.claim("", 0, 1)) == 1);  // another part
    REQUIRE(m.release("", 1, 1).reply.ok());
    CHECK(code_of(m.claim("hostb", 0, 1)) ==
          ErrorCode::busy);  // the manager's own host keeps its parts as well
  }
}

TEST_CASE(
    "owners on hosts: a host that let go of the lease and wrote its caches back leaves its parts to all") {
  Hosts m;
  CHECK(m.epoch(m.claim("hostb")) == 1);
  CHECK(m.epoch(m.claim("hostb", 0, 1)) == 1);
  REQUIRE(m.release("hostb", 1, 1).reply.ok());
  CHECK(m.epoch(m.claim("hostc", 0, 2)) == 1);
  const ViewRow view = m.view_on("hostb");
  m.apply(LoseObject{m.lease.id, view.object, "gone", m.now_ns});
  CHECK(m.owner().process == claimant);  // not before every process there is shut out
  CHECK(code_of(m.claim("hostc")) == ErrorCode::busy);
  const Step closed = m.apply(ViewClosed{view.id, view.object, false, m.now_ns});
  CHECK(closed.delta.owners.size() == 2);
  CHECK(m.owner() == OwnerRow{.id = m.owner().id, .epoch = 1, .host = any_host});
  CHECK(m.owner(2).host == "hostc");
  CHECK(m.machine.same_caches(m.lease, m.owner(), ""));
  CHECK(m.epoch(m.claim("hostc")) == 2);
  CHECK(m.epoch(m.claim("", 0, 1)) == 2);
}

TEST_CASE(
    "owners on hosts: the parts of a host that is lost are nobody's and stay its own, unless caches are "
    "coherent") {
  Hosts m;
  CHECK(m.epoch(m.claim("hostb")) == 1);
  m.close("hostb", true);
  CHECK(m.owner() ==
        OwnerRow{.id = m.owner().id, .epoch = 1, .host = "hostb"});  // who lives on there is shut out
  CHECK(code_of(m.claim("", 1)) == ErrorCode::busy);
  CHECK(code_of(m.claim("hostb")) == ErrorCode::unavailable);
  m.open("hostb");
  CHECK(m.epoch(m.claim("hostb")) == 2);
  m.close("hostb", false);
  CHECK(m.epoch(m.claim("")) == 3);

  // Or are found to be: the operator's word.
  Hosts said;
  CHECK(said.epoch(said.claim("hostb")) == 1);
  said.close("hostb", true);
  REQUIRE(said.apply(SetPoolCoherence{"p", PoolCoherence::coherent}).reply.ok());
  CHECK(said.epoch(said.claim("")) == 2);

  Hosts coherent(PoolCoherence::coherent);
  CHECK(coherent.epoch(coherent.claim("hostb")) == 1);
  coherent.close("hostb", true);
  CHECK(coherent.epoch(coherent.claim("")) == 2);
}

TEST_CASE(
    "owners on hosts: a host that loses the lease's own object ends its owners when that is gone, and no "
    "others") {
  Hosts m;
  CHECK(m.epoch(m.claim("")) == 1);
  CHECK(m.epoch(m.claim("hostc", 0, 1)) == 1);
  const std::string own = m.lease.object;
  m.apply(LoseObject{m.lease.id, own, "gone", m.now_ns});
  CHECK(m.machine.find_lease(m.lease.id)->object != own);
  CHECK(m.owner().process == claimant);
  for (const ViewRow& view : m.machine.views_of(m.lease.id))
    if (view.object == own) m.apply(ViewClosed{view.id, own, false, m.now_ns});
  CHECK(m.owner().process.pid == 0);
  CHECK(m.owner(1).process == claimant);
}

TEST_CASE("owners on hosts: a hand-over leaves parts with the hosts whose caches were not written back") {
  for (const bool lost : {false, true}) {
    Hosts m;
    CHECK(m.epoch(m.claim("")) == 1);
    CHECK(m.epoch(m.claim("hostb", 0, 1)) == 1);
    REQUIRE(m.release("hostb", 1, 1).reply.ok());
    m.close("hostb", true);  // its row stays, its view is gone
    m.close("hostc", false);
    Transfer request{m.lease.id, "alice", "alice", "hostd", m.now_ns};
    request.to_agent = "hostd";
    REQUIRE(m.apply(request).reply.ok());
    CHECK(m.owner().process == claimant);  // not before it is shut out
    REQUIRE(m.apply(RebindFinished{m.lease.id, {}, m.now_ns, lost}).reply.ok());
    CHECK(m.owner() == OwnerRow{.id = m.owner().id, .epoch = 1, .host = lost ? "" : any_host});
    CHECK(m.owner(1).host == "hostb");
  }
  // To another tenant of the same host nothing was written back.
  Hosts m;
  CHECK(m.epoch(m.claim("")) == 1);
  m.close("hostb", false);
  m.close("hostc", false);
  REQUIRE(m.apply(Transfer{m.lease.id, "alice", "bob", "", m.now_ns}).reply.ok());
  REQUIRE(m.apply(RebindFinished{m.lease.id, {}, m.now_ns}).reply.ok());
  CHECK(m.owner() == OwnerRow{.id = m.owner().id, .epoch = 1});
}

TEST_CASE("owners on hosts: another boot of the manager's machine ends its owners, and no other host's") {
  Hosts m;
  CHECK(m.epoch(m.claim("")) == 1);
  CHECK(m.epoch(m.claim("hostb", 0, 1)) == 1);
  const StateMachine again = m.restarted("boot-2");
  CHECK(again.find_owner(m.lease.id, 0)->process.pid == 0);
  CHECK(again.find_owner(m.lease.id, 0)->host == any_host);  // its caches are empty
  CHECK(again.find_owner(m.lease.id, 1)->process == claimant);
  CHECK(m.restarted("boot-1").find_owner(m.lease.id, 0)->process == claimant);
}

TEST_CASE("recovery: owners on hosts that cannot be are corrupt") {
  Hosts m;
  CHECK(m.epoch(m.claim("hostb")) == 1);
  const auto code = [&](auto change) {
    Image image = m.machine.image();
    change(image.owners[0]);
    StateMachine again;
    const auto recovery = again.recover(image, {{}, {"emu:0"}}, "boot-1", m.now_ns);
    return recovery.ok() ? ErrorCode::ok : recovery.error().code;
  };
  CHECK(code([](OwnerRow&) {}) == ErrorCode::ok);
  CHECK(code([](OwnerRow& row) { row.host = "host b"; }) == ErrorCode::corrupt);
  CHECK(code([](OwnerRow& row) { row.host = "\n"; }) == ErrorCode::corrupt);
  CHECK(code([](OwnerRow& row) { row.host = any_host; }) == ErrorCode::corrupt);  // whose process?
  CHECK(code([](OwnerRow& row) { row = {.id = row.id, .epoch = 3, .host = any_host}; }) == ErrorCode::ok);
  CHECK(code([](OwnerRow& row) { row = {.id = row.id, .epoch = 3, .host = "hostb"}; }) == ErrorCode::ok);
}
