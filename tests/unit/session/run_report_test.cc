// SPDX-License-Identifier: Apache-2.0
// What a program's memory does, on its way to the manager: how often, over which connection, and what was told before.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "core/base/units.h"
#include "terrace/session.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_gateway.h"

using namespace terrace;
using test::eventually;
using test::FakeGateway;
using test::Fault;

namespace {

std::unique_ptr<Session> connect(const FakeGateway& gateway) {
  SessionOptions options;
  options.socket_path = gateway.socket_path();
  auto session = Session::connect(options);
  REQUIRE_MESSAGE(session.ok(), session.error().to_string());
  return std::move(*session);
}

std::shared_ptr<Lease> grant(Session& session) {
  LeaseRequest request;
  request.bytes = 2 * mib;
  auto lease = session.grant(request);
  REQUIRE_MESSAGE(lease.ok(), lease.error().to_string());
  return std::move(*lease);
}

RunFigures figures(uint64_t promotions, uint64_t ddr_bytes = 0) {
  RunFigures made;
  made.program = "me";
  made.ddr_bytes = ddr_bytes;
  made.counters.promotions = promotions;
  return made;
}

}  // namespace

TEST_CASE("Session: a run is reported while it has leases, and once when the last one went") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  session->report_run(figures(1));
  REQUIRE(session->pools().ok());  // goes the same way, behind it
  CHECK(gateway.calls("reportRun") == 0);
  auto lease = grant(*session);
  session->report_run(figures(2, 100));
  REQUIRE(eventually([&] { return gateway.runs().size() == 1; }));
  CHECK(gateway.runs()[0].figures.program == "me");
  CHECK(gateway.runs()[0].figures.ddr_bytes == 100);
  CHECK(gateway.runs()[0].figures.counters.promotions == 2);
  REQUIRE(lease->release().ok());
  session->report_run(figures(3));
  REQUIRE(eventually([&] { return gateway.runs().size() == 2; }));
  CHECK(gateway.runs()[1].figures.counters.promotions == 3);
  session->report_run(figures(4));
  REQUIRE(session->pools().ok());
  CHECK(gateway.calls("reportRun") == 2);
}

TEST_CASE("Session: whoever reports all the time sends a report now and then") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  uint64_t told = 0;
  while (std::chrono::steady_clock::now() < until) session->report_run(figures(++told));
  REQUIRE(session->pools().ok());
  CHECK(told > 100);
  // One in four seconds; on a very busy machine the loop above may have taken longer.
  CHECK(gateway.calls("reportRun") <= 2);
  CHECK(gateway.calls("reportRun") >= 1);
}

TEST_CASE(
    "Session: the last report of a run is sent at once, also when others came just before and no lease is "
    "left") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  RunFigures ended = figures(9);
  ended.processes = 0;
  session->report_run(ended);  // of a run that was never told
  REQUIRE(session->pools().ok());
  CHECK(gateway.calls("reportRun") == 0);
  auto lease = grant(*session);
  session->report_run(figures(2));
  REQUIRE(eventually([&] { return gateway.runs().size() == 1; }));
  REQUIRE(lease->release().ok());
  session->report_run(figures(2));
  REQUIRE(eventually([&] { return gateway.runs().size() == 2; }));
  REQUIRE(session->pools().ok());  // the answer is here as well
  session->report_run(ended);
  REQUIRE(eventually([&] { return gateway.runs().size() == 3; }));
  CHECK(gateway.runs()[2].figures.counters.promotions == 9);
  REQUIRE(session->pools().ok());
  session->report_run(ended);  // nothing new
  REQUIRE(session->pools().ok());
  CHECK(gateway.calls("reportRun") == 3);
}

TEST_CASE("Session: what an earlier connection told is named on the next one, and no counter falls") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  session->report_run(figures(7));
  REQUIRE(eventually([&] { return gateway.runs().size() == 1; }));
  CHECK(gateway.runs()[0].told_before.promotions == 0);
  gateway.restart();
  REQUIRE(eventually([&] {
    session->report_run(figures(5));  // fell: as a process that ended and was not added up yet
    return gateway.runs().size() == 2;
  }));
  CHECK(gateway.runs()[1].told_before.promotions == 7);
  CHECK(gateway.runs()[1].figures.counters.promotions == 7);
}

TEST_CASE("Session: what a refused or lost report said is told again") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  gateway.fail_next("reportRun", Fault::drop_before);
  session->report_run(figures(7));
  REQUIRE(eventually([&] {
    session->report_run(figures(8));
    return gateway.runs().size() == 1;
  }));
  CHECK(gateway.runs()[0].told_before.promotions == 0);
  CHECK(gateway.runs()[0].figures.counters.promotions == 8);
}

TEST_CASE("Session: a manager that does not know the call is not asked again over the same connection") {
  FakeGateway gateway;
  gateway.start();
  gateway.fail_always("reportRun", Fault::unknown);
  auto session = connect(gateway);
  auto lease = grant(*session);
  session->report_run(figures(1));
  REQUIRE(eventually([&] { return gateway.calls("reportRun") == 1; }));
  REQUIRE(lease->info().ok());  // the connection is as good as before
  CHECK(gateway.connections() == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(4200));  // the next one would be due
  session->report_run(figures(2));
  REQUIRE(session->pools().ok());
  CHECK(gateway.calls("reportRun") == 1);
  // The next manager may be a newer one.
  gateway.clear_faults();
  gateway.restart();
  REQUIRE(eventually([&] {
    session->report_run(figures(3));
    return gateway.runs().size() == 1;
  }));
  CHECK(gateway.runs()[0].told_before.promotions == 0);
}
