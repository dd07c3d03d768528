// SPDX-License-Identifier: Apache-2.0
// The manager's health over the wire: what it gathers of itself, and that it answers when nothing else does.
#include <fstream>

#include "core/schema/words.h"
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

struct HealthRpc : Rpc {
  using Rpc::Rpc;

  // "device_absent emu:a, ...", in the order of the answer.
  std::string codes(terrace::rpc::Admin::Client& operator_) {
    std::string all;
    const auto reply = call(operator_.healthRequest());
    REQUIRE(reply.getError().getCode() == 0);
    for (const auto finding : reply.getFindings())
      all += (all.empty() ? "" : ", ") + std::string(schema::enum_word(finding.getCode())) + " " +
             finding.getName().cStr();
    return all;
  }
  void look_twice() {
    for (int i = 0; i < 2; ++i) engine->look_at_devices().wait(io.waitScope);
  }
};

}  // namespace

TEST_CASE("Health: each code has its section in the manual") {
  std::ifstream manual(TERRACE_SOURCE_FOLDER "/docs/operations/health.md");
  REQUIRE(manual.good());
  std::string sections;
  for (std::string line; std::getline(manual, line);)
    if (line.rfind("## ", 0) == 0) sections += line + "\n";
  for (const std::string& code : schema::enum_words<terrace::rpc::HealthCode>())
    CHECK_MESSAGE(sections.find("## " + code + "\n") != std::string::npos, code);
}

TEST_CASE("Health: an absent device is found, and is in the status; its memory is not free") {
  HealthRpc t(Rpc::Later{});
  t.engine_options.housekeeping_ns = 0;
  t.engine_options.lost_after_ns = 0;
  t.start();
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.make_pool(operator_);
  REQUIRE(t.grant(tenant, 2 * mib).getError().getCode() == 0);
  CHECK(t.codes(operator_).empty());
  t.backend.unplug("emu:b");
  t.look_twice();
  CHECK(t.codes(operator_) == "device_absent emu:b");
  const auto reply = t.call(operator_.healthRequest());
  const auto finding = reply.getFindings()[0];
  CHECK(finding.getSeverity() == terrace::rpc::HealthSeverity::WARNING);  // the lease lies on the other one
  CHECK(std::string(finding.getPage().cStr()) == "docs/operations/health.md#device_absent");
  CHECK(finding.getSinceWallNs() > 0);
  const auto status = t.call(operator_.statusRequest());
  CHECK(status.getHealth().getSeverity() == terrace::rpc::HealthSeverity::WARNING);
  CHECK(status.getHealth().getWarnings() == 1);
  CHECK(status.getHealth().getCritical() == 0);
  const auto pool = status.getPools()[0];
  CHECK(pool.getFreeBytes() == 62 * mib);
  CHECK(pool.getAbsentBytes() == 64 * mib);
  REQUIRE(pool.getAbsentDevices().size() == 1);
  CHECK(std::string(pool.getAbsentDevices()[0].cStr()) == "emu:b");
  uint64_t in_runs = 0;
  for (const auto runs : pool.getFreeClasses()) in_runs += runs.getBytes();
  CHECK(in_runs == 62 * mib);
  t.backend.plug("emu:b");
  t.look_twice();
  CHECK(t.codes(operator_).empty());
  CHECK(t.call(operator_.statusRequest()).getHealth().getSeverity() == terrace::rpc::HealthSeverity::HEALTHY);
}

TEST_CASE("Health: a pool that is full, and a tenant that is refused an operator's calls") {
  HealthRpc t;
  FixtureClient client(t, 0, 1), other(t, 1000, 2);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.make_pool(operator_);
  REQUIRE(t.grant(tenant, 126 * mib).getError().getCode() == 0);
  CHECK(t.codes(operator_) == "pool_nearly_full p");
  t.hello(other);
  for (int i = 0; i < 3; ++i)
    CHECK(t.call(other.gateway.openAdminRequest()).getError().getCode() == code(ErrorCode::permission_denied));
  CHECK(t.codes(operator_).find("calls_denied") != std::string::npos);
}

TEST_CASE("Health: it is answered while the store fails, when nothing else is") {
  HealthRpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  t.store.fail_commit = true;
  auto quota = operator_.setQuotaRequest();
  quota.initQuota().setTenant("t");
  quota.getQuota().setBytesMax(mib);
  CHECK(t.call(quota).getError().getCode() == code(ErrorCode::unavailable));
  CHECK(t.codes(operator_) == "store_failing ");
  CHECK(t.call(operator_.statusRequest()).getError().getCode() == code(ErrorCode::unavailable));
  t.store.fail_commit = false;
  for (int i = 0; i < 2000 && !t.engine->serving(); ++i) t.pump(5);
  CHECK(t.codes(operator_).empty());
}
