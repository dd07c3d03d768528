// SPDX-License-Identifier: Apache-2.0
// The manager's interface, over a pipe: what a peer gets, what it is refused, and what it is told.
#include <doctest/doctest.h>

#include <sys/mman.h>

#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("Gateway: a peer of another protocol is told both ranges") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto request = client.gateway.helloRequest();
  request.setOldest(7);
  request.setNewest(9);
  auto reply = t.call(request);
  CHECK(reply.getError().getCode() == code(ErrorCode::version_mismatch));
  CHECK(std::string(reply.getError().getDetail().cStr()).find("7 to 9") != std::string::npos);
}

TEST_CASE("Gateway: nothing is handed out before hello") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  CHECK(t.call(client.gateway.openAdminRequest()).getError().getCode() == code(ErrorCode::invalid_argument));
  CHECK(t.call(client.gateway.openSessionRequest()).getError().getCode() == code(ErrorCode::invalid_argument));
}

TEST_CASE("Gateway: only admin uids get the operator's interface or another's tenant") {
  Rpc t;
  FixtureClient user(t, 1000, 1);
  t.hello(user);
  CHECK(t.call(user.gateway.openAdminRequest()).getError().getCode() == code(ErrorCode::permission_denied));
  auto open = user.gateway.openSessionRequest();
  open.setTenant("someone-else");
  CHECK(t.call(open).getError().getCode() == code(ErrorCode::permission_denied));
  auto own = user.gateway.openSessionRequest();
  auto reply = t.call(own);
  CHECK(std::string(reply.getTenant().cStr()) == "uid-1000");
}

TEST_CASE("Gateway: a uid without a tenant is refused when unmapped uids are") {
  ManagerFixture fixture;
  fixture.options.allow_unmapped_uids = false;
  fixture.start();
  FixtureClient user(fixture, 1000, 1);
  auto hello = user.gateway.helloRequest();
  hello.setOldest(1);
  hello.setNewest(1);
  hello.send().wait(fixture.io.waitScope);
  auto reply = user.gateway.openSessionRequest().send().wait(fixture.io.waitScope);
  CHECK(reply.getError().getCode() == code(ErrorCode::permission_denied));
}

TEST_CASE("Lease: its descriptor is the capability's own, and reads as zeros") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  auto reply = t.grant(tenant, 3 * mib);
  REQUIRE(reply.getError().getCode() == 0);
  CHECK(reply.getInfo().getBytes() == 4 * mib);  // whole granules
  CHECK(reply.getInfo().getEpoch() > 0);
  auto lease = reply.getLease();
  auto fd = lease.getFd().wait(t.io.waitScope);
  KJ_IF_MAYBE (number, fd) {
    void* at = ::mmap(nullptr, 4 * mib, PROT_READ | PROT_WRITE, MAP_SHARED, *number, 0);
    REQUIRE(at != MAP_FAILED);
    CHECK(static_cast<unsigned char*>(at)[4 * mib - 1] == 0);
    ::munmap(at, 4 * mib);
  } else {
    FAIL("the lease carries no descriptor");
  }
}

TEST_CASE("Lease: an exclusive one is refused to a second process, a shared one is read-only for it") {
  Rpc t;
  FixtureClient first(t, 0, 1), second(t, 0, 2);
  auto operator_ = t.admin(first);
  t.make_pool(operator_);
  auto writer = t.session(first);
  auto reader = t.session(second);
  const uint64_t exclusive = t.grant(writer, mib).getInfo().getId();
  CHECK(t.attach(reader, exclusive, terrace::rpc::Access::READ_ONLY).getError().getCode() ==
        code(ErrorCode::busy));
  const uint64_t shared = t.grant(writer, mib, terrace::rpc::LeaseMode::SHARED_READ_ONLY).getInfo().getId();
  CHECK(t.attach(reader, shared, terrace::rpc::Access::READ_WRITE).getError().getCode() ==
        code(ErrorCode::busy));
  auto reply = t.attach(reader, shared, terrace::rpc::Access::READ_ONLY);
  REQUIRE(reply.getError().getCode() == 0);
  auto fd = reply.getLease().getFd().wait(t.io.waitScope);
  KJ_IF_MAYBE (number, fd) {
    CHECK(::mmap(nullptr, mib, PROT_READ | PROT_WRITE, MAP_SHARED, *number, 0) == MAP_FAILED);
    CHECK(errno == EACCES);
  } else {
    FAIL("the lease carries no descriptor");
  }
}

TEST_CASE("Lease: another tenant's does not exist") {
  Rpc t;
  FixtureClient root(t, 0, 1), user(t, 1000, 2);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  auto owner = t.session(root);
  auto other = t.session(user);
  const uint64_t id = t.grant(owner, mib).getInfo().getId();
  CHECK(t.attach(other, id, terrace::rpc::Access::READ_ONLY).getError().getCode() ==
        code(ErrorCode::not_found));
  CHECK(t.call(other.listRequest()).getLeases().size() == 0);
  CHECK(t.call(owner.listRequest()).getLeases().size() == 1);
}

TEST_CASE("Revocation: the holder is told first, then fenced, and its memory is free again") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  auto granted = t.grant(tenant, mib);
  auto revoke = operator_.revokeRequest();
  revoke.setLease(granted.getInfo().getId());
  revoke.setGraceNs(30 * ns_per_ms);
  revoke.setReason("maintenance");
  CHECK(t.call(revoke).getInfo().getPhase() == terrace::rpc::LeasePhase::REVOKING);
  t.pump(5);
  REQUIRE_FALSE(t.notices.empty());  // on a slow machine the grace may be over already
  CHECK_FALSE(t.notices[0].fenced);
  CHECK(t.notices[0].reason == "maintenance");
  for (int turns = 0; turns < 1000 && t.notices.size() < 2; ++turns) t.pump(10);
  REQUIRE(t.notices.size() == 2);
  CHECK(t.notices[1].fenced);
  t.pump(100);
  CHECK(t.call(operator_.leasesRequest()).getLeases().size() == 0);
  CHECK(t.call(operator_.poolsRequest()).getPools()[0].getFreeBytes() == 128 * mib);
  CHECK(t.call(operator_.checkRequest()).getProblems().size() == 0);
}

TEST_CASE("Grant: a failed carve gives the extents back and says why") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  t.backend.fail_carve = true;
  CHECK(t.grant(tenant, mib).getError().getCode() == code(ErrorCode::capacity_exhausted));
  t.backend.fail_carve = false;
  CHECK(t.grant(tenant, 128 * mib).getError().getCode() == 0);
}

TEST_CASE("Store: a commit that fails refuses the grant, and the manager recovers what was durable") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  const uint64_t kept = t.grant(tenant, mib).getInfo().getId();
  t.store.fail_commit = true;
  CHECK(t.grant(tenant, mib).getError().getCode() == code(ErrorCode::unavailable));
  CHECK(t.grant(tenant, mib).getError().getCode() == code(ErrorCode::unavailable));
  t.store.fail_commit = false;
  t.pump(600);
  const auto leases = t.call(operator_.leasesRequest());
  REQUIRE(leases.getLeases().size() == 1);
  CHECK(leases.getLeases()[0].getId() == kept);
  CHECK(t.grant(tenant, mib).getError().getCode() == 0);
  CHECK(t.call(operator_.checkRequest()).getProblems().size() == 0);
}

TEST_CASE("Scrub: what cannot be scrubbed is quarantined and never granted again") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  auto granted = t.grant(tenant, 64 * mib);
  t.backend.fail_scrub = true;
  auto lease = granted.getLease();
  CHECK(t.call(lease.releaseRequest()).getError().getCode() == 0);
  t.pump(50);
  const auto pools = t.call(operator_.poolsRequest());
  CHECK(pools.getPools()[0].getQuarantinedBytes() == 64 * mib);
  CHECK(t.grant(tenant, 128 * mib).getError().getCode() == code(ErrorCode::capacity_exhausted));
}

TEST_CASE("Connection: calls beyond the limit are refused, the connection lives on") {
  ManagerFixture fixture;
  fixture.options.calls_outstanding_max = 2;
  fixture.start();
  FixtureClient client(fixture, 0, 1);
  auto hello = client.gateway.helloRequest();
  hello.setOldest(1);
  hello.setNewest(1);
  hello.send().wait(fixture.io.waitScope);
  auto operator_ = client.gateway.openAdminRequest().send().wait(fixture.io.waitScope).getAdmin();
  fixture.backend.held = true;
  std::vector<kj::Promise<uint16_t>> adoptions;
  for (const char* serial : {"emu:a", "emu:b"}) {
    auto adopt = operator_.adoptRequest();
    adopt.setSerial(serial);
    adoptions.push_back(adopt.send().then([](auto&& reply) -> uint16_t { return reply.getError().getCode(); }));
  }
  for (int i = 0; i < 30; ++i)
    CHECK(operator_.poolsRequest().send().wait(fixture.io.waitScope).getError().getCode() ==
          code(ErrorCode::limit_exceeded));
  fixture.backend.held = false;
  for (auto& adoption : adoptions) CHECK(adoption.wait(fixture.io.waitScope) == 0);
  CHECK(operator_.poolsRequest().send().wait(fixture.io.waitScope).getError().getCode() == 0);
}
