// SPDX-License-Identifier: Apache-2.0
// The audit log, as an operator reads it.
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

std::string text(capnp::Text::Reader value) {
  return std::string(value.cStr());
}

}  // namespace

TEST_CASE("Audit: every change says who made it: uid, program and process") {
  Rpc t;
  FixtureClient root(t, 0, 41), user(t, 1000, 42);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  auto tenant = t.session(user);
  const auto granted = t.grant(tenant, 2 * mib);
  REQUIRE(t.call(granted.getLease().releaseRequest()).getError().getCode() == 0);
  auto by_verb = [&](const char* verb) {
    auto request = operator_.auditRequest();
    request.getQuery().setVerb(verb);
    return t.call(request);
  };
  const auto pools = by_verb("pool create");
  REQUIRE(pools.getEntries().size() == 1);
  CHECK(text(pools.getEntries()[0].getActor()) == "admin uid 0 (test[41])");
  const auto grants = by_verb("grant");
  REQUIRE(grants.getEntries().size() == 1);
  CHECK(text(grants.getEntries()[0].getActor()) == "uid 1000 (test[42])");
  CHECK(text(grants.getEntries()[0].getTenant()) == "uid-1000");
  CHECK(text(grants.getEntries()[0].getSubject()) == "lease " + std::to_string(granted.getInfo().getId()));
  CHECK(grants.getNewest() >= grants.getEntries()[0].getSequence());
  CHECK(by_verb("release").getEntries().size() == 1);
}

TEST_CASE("Audit: a page is as long as was asked for, and the next one begins after it") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);  // two adoptions and a pool
  auto first = operator_.auditRequest();
  first.getQuery().setLimit(2);
  const auto page = t.call(first);
  REQUIRE(page.getEntries().size() == 2);
  auto second = operator_.auditRequest();
  second.getQuery().setAfter(page.getEntries()[1].getSequence());
  CHECK(t.call(second).getEntries().size() == 1);
}

TEST_CASE("Audit: what a tenant was denied is there, a few a second, and says how many are not") {
  Rpc t;
  FixtureClient root(t, 0, 41), user(t, 1000, 42);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  auto quota = operator_.setQuotaRequest();
  quota.getQuota().setTenant("uid-1000");
  quota.getQuota().setBytesMax(2 * mib);
  REQUIRE(t.call(quota).getError().getCode() == 0);
  auto tenant = t.session(user);
  auto denied = [&](const char* verb) {
    auto request = operator_.auditRequest();
    request.getQuery().setVerb(verb);
    return t.call(request);
  };
  CHECK(t.call(user.gateway.openAdminRequest()).getError().getCode() == code(ErrorCode::permission_denied));
  auto open = user.gateway.openSessionRequest();
  open.setTenant("uid-0");
  CHECK(t.call(open).getError().getCode() == code(ErrorCode::permission_denied));
  CHECK(t.grant(tenant, 4 * mib).getError().getCode() == code(ErrorCode::limit_exceeded));
  for (const char* verb : {"denied admin", "denied session", "denied grant"}) {
    const auto reply = denied(verb);
    REQUIRE(reply.getEntries().size() == 1);
    CHECK(text(reply.getEntries()[0].getTenant()) == "uid-1000");
    CHECK(text(reply.getEntries()[0].getActor()) == "uid 1000 (test[42])");
    CHECK(text(reply.getEntries()[0].getDetail()) != "");
  }
  CHECK(text(denied("denied grant").getEntries()[0].getSubject()) == "pool p");
  for (int n = 0; n < 50; ++n) CHECK(t.grant(tenant, 4 * mib).getError().getCode() != 0);
  t.pump(1100);
  CHECK(t.grant(tenant, 4 * mib).getError().getCode() != 0);
  const auto all = denied("denied grant");
  CHECK(all.getEntries().size() < 20);
  CHECK(text(all.getEntries()[all.getEntries().size() - 1].getDetail()).find(" more before it) ") !=
        std::string::npos);
}
