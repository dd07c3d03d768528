// SPDX-License-Identifier: Apache-2.0
// Quotas and reservations, as an operator sets and reads them.
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

std::string text(capnp::Text::Reader value) {
  return std::string(value.cStr());
}

uint16_t set_quota(Rpc& t, terrace::rpc::Admin::Client& operator_, const char* tenant, uint64_t bytes,
                   uint64_t leases) {
  auto request = operator_.setQuotaRequest();
  request.getQuota().setTenant(tenant);
  request.getQuota().setBytesMax(bytes);
  request.getQuota().setLeasesMax(leases);
  return t.call(request).getError().getCode();
}

}  // namespace

TEST_CASE("Quota: it bounds a tenant, shows its use, and goes when both bounds are 0") {
  Rpc t;
  FixtureClient root(t, 0, 1), user(t, 1000, 2);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  auto tenant = t.session(user);
  REQUIRE(set_quota(t, operator_, "uid-1000", 4 * mib, 0) == 0);
  REQUIRE(set_quota(t, operator_, "*", 0, 7) == 0);
  REQUIRE(t.grant(tenant, 4 * mib).getError().getCode() == 0);
  CHECK(t.grant(tenant, 2 * mib).getError().getCode() == code(ErrorCode::limit_exceeded));
  const auto reply = t.call(operator_.quotasRequest());
  REQUIRE(reply.getQuotas().size() == 2);
  CHECK(text(reply.getQuotas()[0].getTenant()) == "*");
  CHECK(reply.getQuotas()[0].getLeasesMax() == 7);
  CHECK(reply.getQuotas()[0].getBytes() == 0);
  CHECK(reply.getQuotas()[1].getBytesMax() == 4 * mib);
  CHECK(reply.getQuotas()[1].getBytes() == 4 * mib);
  CHECK(reply.getQuotas()[1].getLeases() == 1);
  REQUIRE(set_quota(t, operator_, "uid-1000", 0, 0) == 0);
  CHECK(t.call(operator_.quotasRequest()).getQuotas().size() == 1);
  CHECK(t.grant(tenant, 2 * mib).getError().getCode() == 0);
}

TEST_CASE("Reservation: room only its tenant can take, until it is removed") {
  Rpc t;
  FixtureClient root(t, 0, 1), user(t, 1000, 2);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  auto other = t.session(root);
  auto tenant = t.session(user);
  auto reserve = operator_.reserveRequest();
  reserve.setPool("p");
  reserve.setTenant("uid-1000");
  reserve.setBytes(64 * mib);
  const auto reserved = t.call(reserve);
  REQUIRE(reserved.getError().getCode() == 0);
  CHECK(reserved.getReservation().getBytes() == 64 * mib);
  CHECK(t.grant(other, 128 * mib).getError().getCode() == code(ErrorCode::capacity_exhausted));
  REQUIRE(t.grant(tenant, 2 * mib).getError().getCode() == 0);
  const auto listed = t.call(operator_.reservationsRequest());
  REQUIRE(listed.getReservations().size() == 1);
  CHECK(listed.getReservations()[0].getUsedBytes() == 2 * mib);
  CHECK(text(listed.getReservations()[0].getPool()) == "p");
  const auto pools = t.call(operator_.poolsRequest());
  CHECK(pools.getPools()[0].getReservedBytes() == 62 * mib);
  auto unreserve = operator_.unreserveRequest();
  unreserve.setReservation(reserved.getReservation().getId());
  CHECK(t.call(unreserve).getError().getCode() == 0);
  CHECK(t.grant(other, 126 * mib).getError().getCode() == 0);
}
