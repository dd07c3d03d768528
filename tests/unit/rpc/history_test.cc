// SPDX-License-Identifier: Apache-2.0
// The last hour over the wire: what was noted, as columns of one length.
#include "daemon/history/history_watch.h"
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("History: a manager that keeps none answers with none") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  const auto reply = t.call(operator_.historyRequest());
  CHECK(reply.getError().getCode() == 0);
  CHECK(reply.getAgeNs().size() == 0);
}

TEST_CASE("History: what was granted is in the next moment, and a pool of later has zeros before") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  const daemon::HistoryWatch before(*t.engine);  // each notes a moment at once
  t.make_pool(operator_);
  REQUIRE(t.grant(tenant, 2 * mib).getError().getCode() == 0);
  const daemon::HistoryWatch after(*t.engine);
  daemon::History both;
  both.add(before.history().moments()[0]);
  both.add(after.history().moments()[0]);
  t.service->set_history(&both);
  const auto reply = t.call(operator_.historyRequest());
  REQUIRE(reply.getAgeNs().size() == 2);
  CHECK(reply.getAgeNs()[0] > reply.getAgeNs()[1]);
  CHECK(reply.getGrants()[1] - reply.getGrants()[0] == 1);
  CHECK(reply.getCommits()[1] > reply.getCommits()[0]);
  REQUIRE(reply.getPools().size() == 1);
  const auto pool = reply.getPools()[0];
  CHECK(std::string(pool.getName().cStr()) == "p");
  REQUIRE(pool.getLeasedBytes().size() == 2);
  CHECK(pool.getCapacityBytes()[0] == 0);
  CHECK(pool.getCapacityBytes()[1] == 128 * mib);
  CHECK(pool.getLeasedBytes()[1] == 2 * mib);
  CHECK(pool.getFreeBytes()[1] == 126 * mib);
  CHECK(pool.getLeases()[1] == 1);
  t.service->set_history(nullptr);
}
