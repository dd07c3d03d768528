// SPDX-License-Identifier: Apache-2.0
// RemoteBackend: what becomes of calls about another host's objects when its agent answers, refuses, is away,
// does not say, or has lapsed.
#include "daemon/memory/remote/remote_memory.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <deque>
#include <utility>

#include "core/base/units.h"
#include "daemon/memory/machine/backend_set.h"
#include "tests/support/memory_backend.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

struct ScriptedAgents final : AgentOrders {
  AgentAnswer order(const std::string& host, const AgentOrder& given) override {
    CHECK(host == "hostb");
    orders.push_back(given);
    const OrderOutcome outcome = outcomes.empty() ? OrderOutcome::done : outcomes.front();
    if (!outcomes.empty()) outcomes.pop_front();
    Error error{.code = ErrorCode::io_error, .where = "test", .detail = "as scripted"};
    return {outcome, error, given.kind == AgentOrder::Kind::scrub ? uint64_t{7} : uint64_t{0},
            {},      kept,  {"one[7]"}};
  }
  bool wait_until_forgotten(const std::string&) override {
    ++waits;
    return true;
  }

  bool wait_until_settled() override { return true; }
  bool has_proved(const std::string&, const std::string&) const override { return true; }
  void set_proved(const std::string&, const std::string&) override {}

  std::deque<OrderOutcome> outcomes;
  Kept kept = Kept::no;
  std::vector<AgentOrder> orders;
  int waits = 0;
};

struct Remote {
  Remote() {
    local.in_place = true;
    set.add(local);
    set.add_remote(remote);
    set.know_devices({{DeviceId{3}, "emu:a", "emulated", 64 * mib, 2 * mib}});
  }
  ScriptedAgents agents;
  test::MemoryBackend local;
  BackendSet set;
  RemoteBackend remote{agents, set};
  const std::string name = "lease-7@hostb";
  const std::vector<Extent> extents{{DeviceId{3}, 4, 8}};
};

bool passes(const Status& status) {
  return !status.ok() && status.error().os_errno == EAGAIN;
}

}  // namespace

TEST_CASE("object names: the host is what follows '@', and hosts' names leave room for the rest") {
  CHECK(object_host("devdax:lease-7@hostb") == "hostb");
  CHECK(object_on_host("devdax:lease-7@hostb") == "devdax:lease-7");
  CHECK(object_host("devdax:lease-7").empty());
  CHECK(object_on_host("lease-7") == "lease-7");
  CHECK(valid_agent_name("rack7.host-b_2"));
  for (const char* wrong : {"", "a@b", "a:b", "-a", ".a", "a b", "a/b", "1234567890123456789012345"})
    CHECK_FALSE(valid_agent_name(wrong));
}

TEST_CASE("RemoteBackend: an order names extents by serial and bytes, and the object without its host") {
  Remote host;
  REQUIRE(host.set.carve(host.name, 16 * mib, host.extents).ok());
  REQUIRE(host.agents.orders.size() == 1);
  const AgentOrder& order = host.agents.orders[0];
  CHECK(order.kind == AgentOrder::Kind::carve);
  CHECK(order.object == "lease-7");
  CHECK(order.bytes == 16 * mib);
  REQUIRE(order.extents.size() == 1);
  CHECK(order.extents[0].serial == "emu:a");
  CHECK(order.extents[0].offset == 8 * mib);
  CHECK(order.extents[0].length == 16 * mib);
  CHECK(host.set.usage(host.name)->bytes == 16 * mib);
  CHECK(host.set.open(host.name, ObjectAccess::read_write).error().code == ErrorCode::unsupported);
}

TEST_CASE(
    "RemoteBackend: its agent ends who agreed to that, and nothing goes on while nobody can say that it did") {
  Remote host;
  const auto outcome_of = [&host](OrderOutcome outcome) {
    host.agents.outcomes = {outcome};
    return host.set.end_holders(host.name);
  };
  const HoldersEnded done = outcome_of(OrderOutcome::done);
  CHECK(done.status.ok());
  CHECK(done.ended == std::vector<std::string>{"one[7]"});
  CHECK(host.agents.orders.back().kind == AgentOrder::Kind::end_holders);
  CHECK(host.agents.orders.back().object == "lease-7");
  CHECK(outcome_of(OrderOutcome::lapsed).status.ok());  // the host did so by itself
  CHECK(outcome_of(OrderOutcome::refused).status.error().code == ErrorCode::io_error);
  CHECK(passes(outcome_of(OrderOutcome::not_sent).status));
  CHECK(passes(outcome_of(OrderOutcome::unknown).status));
}

TEST_CASE(
    "RemoteBackend: whether somebody still holds pages is the agent's to say, and whoever cannot be asked "
    "keeps them") {
  Remote host;
  for (const Kept said : {Kept::no, Kept::yes, Kept::ended}) {
    host.agents.kept = said;
    CHECK(host.set.kept(host.name, host.extents) == said);
  }
  CHECK(host.agents.orders.back().kind == AgentOrder::Kind::kept);
  CHECK(host.agents.orders.back().object == "lease-7");
  CHECK(host.agents.orders.back().extents.size() == 1);
  host.agents.kept = Kept::ended;
  for (const OrderOutcome outcome :
       {OrderOutcome::refused, OrderOutcome::not_sent, OrderOutcome::unknown, OrderOutcome::lapsed}) {
    host.agents.outcomes = {outcome};
    CHECK(host.set.kept(host.name, host.extents) == Kept::yes);
  }
}

TEST_CASE("RemoteBackend: a carve of unknown outcome fails only when its object can be no more") {
  Remote host;
  SUBCASE("the agent answers again: it is destroyed") {
    host.agents.outcomes = {OrderOutcome::unknown, OrderOutcome::done, OrderOutcome::done};
    CHECK_FALSE(host.set.carve(host.name, 16 * mib, host.extents).ok());
    REQUIRE(host.agents.orders.size() == 3);
    CHECK(host.agents.orders[1].kind == AgentOrder::Kind::fence);
    CHECK(host.agents.orders[2].kind == AgentOrder::Kind::scrub);
    CHECK(host.agents.waits == 0);
  }
  SUBCASE("it does not: its registration, or its end, is waited for") {
    host.agents.outcomes = {OrderOutcome::unknown, OrderOutcome::not_sent};
    CHECK_FALSE(host.set.carve(host.name, 16 * mib, host.extents).ok());
    CHECK(host.agents.waits == 1);
  }
  SUBCASE("one that was never sent fails at once") {
    host.agents.outcomes = {OrderOutcome::not_sent};
    const Status status = host.set.carve(host.name, 16 * mib, host.extents);
    CHECK(status.error().code == ErrorCode::unavailable);
    CHECK_FALSE(passes(status));
    CHECK(host.agents.waits == 0);
  }
}

TEST_CASE("RemoteBackend: a fence is done when the agent says so or has lapsed, and not before") {
  Remote host;
  for (const OrderOutcome outcome : {OrderOutcome::not_sent, OrderOutcome::unknown}) {
    host.agents.outcomes = {outcome};
    CHECK(passes(host.set.fence(host.name)));
  }
  host.agents.outcomes = {OrderOutcome::refused};
  CHECK(host.set.fence(host.name).error().code == ErrorCode::io_error);
  host.agents.outcomes = {OrderOutcome::lapsed};
  CHECK(host.set.fence(host.name).ok());
  CHECK(host.set.fence(host.name).ok());
}

TEST_CASE("RemoteBackend: what a lapsed host left is erased on the manager's own device") {
  Remote host;
  CHECK(host.set.erases_in_place(host.name));
  host.agents.outcomes = {OrderOutcome::not_sent};
  CHECK(passes(host.set.erase(host.name, host.extents, 0, 16 * mib)));
  host.agents.outcomes = {OrderOutcome::lapsed, OrderOutcome::lapsed};
  CHECK(host.set.erase(host.name, host.extents, 0, 16 * mib).ok());
  host.local.fail_erase = true;
  CHECK_FALSE(host.set.erase(host.name, host.extents, 0, 16 * mib).ok());
  const auto scrubbed = host.set.scrub(host.name);  // the script is over: the agent is back
  REQUIRE(scrubbed.ok());
  CHECK(*scrubbed == 7);
}

TEST_CASE("RemoteBackend: a growth that may have happened is ordered again, one that cannot have is refused") {
  Remote host;
  host.agents.outcomes = {OrderOutcome::unknown};
  CHECK(passes(host.set.resize(host.name, 8 * mib, 16 * mib, host.extents)));
  host.agents.outcomes = {OrderOutcome::not_sent};
  CHECK_FALSE(passes(host.set.resize(host.name, 8 * mib, 16 * mib, host.extents)));
  host.agents.outcomes = {OrderOutcome::not_sent};
  CHECK(passes(
      host.set.resize(host.name, 16 * mib, 8 * mib, host.extents)));  // a shrink is on record: it goes on
}

TEST_CASE("RemoteBackend: at a start the objects of hosts are taken to be as the rows say") {
  Remote host;
  host.set.know_objects({{"lease-1", 2 * mib, {}}, {host.name, 16 * mib, host.extents}});
  const auto all = host.set.list();
  REQUIRE(all.ok());
  bool found = false;
  for (const ObservedObject& object : *all) {
    if (object.name != host.name) continue;
    found = true;
    CHECK(object.bytes == 16 * mib);
  }
  CHECK(found);
}

TEST_CASE(
    "RemoteBackend: a view is hidden once its agent has shut it out, written back and removed it, or its host "
    "has lapsed") {
  Remote host;
  const auto hide = [&host] { return host.remote.hide(host.name, host.extents); };
  REQUIRE(hide().ok());
  REQUIRE(host.agents.orders.size() == 4);
  CHECK(host.agents.orders[0].kind == AgentOrder::Kind::fence);
  CHECK(host.agents.orders[1].kind == AgentOrder::Kind::kept);
  CHECK(host.agents.orders[2].kind == AgentOrder::Kind::write_back);
  CHECK(host.agents.orders[2].extents.size() == 1);
  CHECK(host.agents.orders[3].kind == AgentOrder::Kind::scrub);

  using Outcome = OrderOutcome;
  for (const std::deque<Outcome>& away :
       std::vector<std::deque<Outcome>>{{Outcome::not_sent},
                                        {Outcome::unknown},
                                        {Outcome::done, Outcome::done, Outcome::unknown},
                                        {Outcome::done, Outcome::done, Outcome::done, Outcome::not_sent}}) {
    host.agents.outcomes = away;
    CHECK(passes(hide().error()));
  }
  for (const std::deque<Outcome>& lapsed :
       std::vector<std::deque<Outcome>>{{Outcome::lapsed},
                                        {Outcome::done, Outcome::lapsed},
                                        {Outcome::done, Outcome::done, Outcome::lapsed}}) {
    host.agents.outcomes = lapsed;
    CHECK(hide().value() == Hidden::lines_may_remain);
  }
  // Written back, and lost after that.
  host.agents.outcomes = {Outcome::done, Outcome::done, Outcome::done, Outcome::lapsed};
  CHECK(hide().value() == Hidden::written_back);
  host.agents.outcomes = {};
  host.agents.kept = Kept::yes;  // pinned: shut out, and not removed before it is let go
  CHECK(passes(hide().error()));
  CHECK(host.agents.orders.back().kind == AgentOrder::Kind::kept);
}
