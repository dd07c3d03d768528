// SPDX-License-Identifier: Apache-2.0
// Reports of what a program's memory does, over the wire: whose they are, what is refused, and that they end with
// the session.
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

auto report(Rpc& t, terrace::rpc::TenantSession::Client& tenant, const char* program, uint64_t promotions,
            uint64_t cxl_bytes = 0) {
  auto request = tenant.reportRunRequest();
  auto figures = request.initFigures();
  figures.setProgram(program);
  figures.setProcesses(1);
  figures.setCxlBytes(cxl_bytes);
  figures.initCounters().setPromotions(promotions);
  return t.call(request);
}

}  // namespace

TEST_CASE("Runs: a report is its peer's and its tenant's, whatever it says, until its session ends") {
  Rpc t;
  FixtureClient boss(t, 0, 1), client(t, 1000, 4242);
  auto operator_ = t.admin(boss);
  CHECK(t.call(operator_.runsRequest()).getRuns().size() == 0);
  {
    auto tenant = t.session(client);
    REQUIRE(report(t, tenant, "redis-server", 5, 3 * mib).getError().getCode() == 0);
    REQUIRE(report(t, tenant, "redis-server", 8, 4 * mib).getError().getCode() == 0);
    const auto reply = t.call(operator_.runsRequest());
    REQUIRE(reply.getRuns().size() == 1);
    const auto run = reply.getRuns()[0];
    CHECK(run.getPid() == 4242);
    CHECK(run.getUid() == 1000);
    CHECK(run.getTenant().size() != 0);
    CHECK(run.getAgent().size() == 0);
    CHECK(std::string(run.getFigures().getProgram().cStr()) == "redis-server");
    CHECK(run.getFigures().getCxlBytes() == 4 * mib);
    CHECK(run.getFigures().getCounters().getPromotions() == 8);
    const auto sums = t.service->runs().sums(t.service->now_ns());
    CHECK(sums.at(run.getTenant().cStr()).counters.promotions == 8);
  }
  t.pump(50);
  CHECK(t.call(operator_.runsRequest()).getRuns().size() == 0);
  uint64_t promotions = 0, runs = 0;
  for (const auto& [tenant, sums] : t.service->runs().sums(t.service->now_ns())) {
    promotions += sums.counters.promotions;
    runs += sums.runs;
  }
  CHECK(promotions == 8);
  CHECK(runs == 0);
}

TEST_CASE("Runs: the bands of a heap come through, and lists that do not belong together are refused") {
  Rpc t;
  FixtureClient boss(t, 0, 1), client(t, 1000, 4242);
  auto operator_ = t.admin(boss);
  auto tenant = t.session(client);
  const auto told = [&](uint32_t ddr_entries) {
    auto request = tenant.reportRunRequest();
    auto figures = request.initFigures();
    figures.setProgram("redis-server");
    auto heat = figures.initHeat();
    heat.setBandBytes(4 * mib);
    const auto fill = [](auto list, uint8_t first) {
      for (uint32_t i = 0; i < list.size(); ++i) list.set(i, static_cast<uint8_t>(first + i));
    };
    fill(heat.initHeat(3), 40);
    fill(heat.initDdrPercent(ddr_entries), 10);
    fill(heat.initCxlPercent(3), 50);
    return t.call(request);
  };
  REQUIRE(told(3).getError().getCode() == 0);
  const auto reply = t.call(operator_.runsRequest());
  const auto heat = reply.getRuns()[0].getFigures().getHeat();
  CHECK(heat.getBandBytes() == 4 * mib);
  REQUIRE(heat.getHeat().size() == 3);
  CHECK(heat.getHeat()[2] == 42);
  CHECK(heat.getDdrPercent()[1] == 11);
  CHECK(heat.getCxlPercent()[0] == 50);
  const auto wrong = told(2);
  CHECK(std::string(wrong.getError().getDetail().cStr()).find("as long as each other") != std::string::npos);
  CHECK(t.call(operator_.runsRequest()).getRuns()[0].getFigures().getHeat().getHeat().size() == 3);
  REQUIRE(report(t, tenant, "redis-server", 1).getError().getCode() == 0);
  CHECK(!t.call(operator_.runsRequest()).getRuns()[0].getFigures().hasHeat());
}

TEST_CASE("Runs: garbage is refused with its reason, and the last good report stays") {
  Rpc t;
  FixtureClient boss(t, 0, 1), client(t, 1000, 4242);
  auto operator_ = t.admin(boss);
  auto tenant = t.session(client);
  REQUIRE(report(t, tenant, "good", 5, 3 * mib).getError().getCode() == 0);
  const auto refused = [&](const auto& reply, const char* word) {
    CHECK(reply.getError().getCode() == static_cast<uint16_t>(ErrorCode::invalid_argument));
    const std::string detail = reply.getError().getDetail().cStr();
    CHECK_MESSAGE(detail.find(word) != std::string::npos, detail);
  };
  refused(report(t, tenant, "", 6), "name");
  refused(report(t, tenant, "\x1b[2J", 6), "name");
  refused(report(t, tenant, std::string(200, 'x').c_str(), 6), "name");
  refused(report(t, tenant, "good", 4), "promotions fell");
  refused(report(t, tenant, "good", UINT64_MAX), "promotions");
  refused(report(t, tenant, "good", 6, UINT64_MAX), "cxlBytes");
  const auto reply = t.call(operator_.runsRequest());
  REQUIRE(reply.getRuns().size() == 1);
  CHECK(reply.getRuns()[0].getFigures().getCounters().getPromotions() == 5);
  CHECK(reply.getRuns()[0].getFigures().getCxlBytes() == 3 * mib);
}

TEST_CASE("Runs: a connection has one report, whichever of its sessions sent it") {
  Rpc t;
  FixtureClient boss(t, 0, 1), client(t, 1000, 4242);
  auto operator_ = t.admin(boss);
  auto first = t.session(client);
  auto second = t.session(client);
  REQUIRE(report(t, first, "first", 5).getError().getCode() == 0);
  REQUIRE(report(t, second, "second", 1).getError().getCode() == 0);
  const auto reply = t.call(operator_.runsRequest());
  REQUIRE(reply.getRuns().size() == 1);
  CHECK(std::string(reply.getRuns()[0].getFigures().getProgram().cStr()) == "second");
}
