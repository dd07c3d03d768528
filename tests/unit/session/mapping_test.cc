// SPDX-License-Identifier: Apache-2.0
// Mapping over leases of the fake manager.
#include "terrace/mapping.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "core/base/units.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_gateway.h"

using namespace terrace;
using test::FakeGateway;

namespace {

std::unique_ptr<Session> connect(const FakeGateway& gateway) {
  SessionOptions options;
  options.socket_path = gateway.socket_path();
  auto session = Session::connect(options);
  REQUIRE(session.ok());
  return std::move(*session);
}

}  // namespace

TEST_CASE("Mapping: writers and readers of one lease see one memory") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  LeaseRequest request;
  request.bytes = 4 * mib;
  auto lease = session->grant(request);
  REQUIRE(lease.ok());
  auto writer = Mapping::map(*lease);
  REQUIRE_MESSAGE(writer.ok(), writer.error().to_string());
  CHECK((*writer)->bytes().size() == 4 * mib);
  CHECK(std::string((*writer)->store_granularity()) == "page");
  CHECK((*writer)->lease() == *lease);

  auto attached = session->attach((*lease)->id(), "", LeaseAccess::read_only);
  REQUIRE(attached.ok());
  auto reader = Mapping::map(*attached);
  REQUIRE(reader.ok());
  CHECK((*reader)->bytes().empty());
  CHECK((*reader)->const_bytes().size() == 4 * mib);
  std::memset((*writer)->bytes().data() + mib, 0x77, 4096);
  (*writer)->persist((*writer)->bytes().subspan(mib, 4096));
  CHECK((*reader)->const_bytes()[mib + 4095] == std::byte{0x77});

  // The memory stays mapped without session and manager.
  session.reset();
  gateway.stop();
  (*writer)->bytes()[0] = std::byte{1};
  CHECK((*reader)->const_bytes()[0] == std::byte{1});
}

TEST_CASE("Mapping: a lease that is gone cannot be mapped, whether that was heard of or not") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  LeaseRequest request;
  request.bytes = 2 * mib;
  auto lease = session->grant(request);
  REQUIRE(lease.ok());
  SUBCASE("released") {
    REQUIRE((*lease)->release().ok());
    CHECK(Mapping::map(*lease).error().code == ErrorCode::lease_expired);
  }
  SUBCASE("fenced without a word") {
    gateway.lose_silently((*lease)->id().value);
    auto mapping = Mapping::map(*lease);
    REQUIRE_FALSE(mapping.ok());
    CHECK(mapping.error().code == ErrorCode::lease_expired);
    CHECK(mapping.error().detail.find("lease 1") != std::string::npos);
  }
  SUBCASE("revoked") {
    gateway.revoke((*lease)->id().value, 0, "test");
    REQUIRE(test::eventually([&] { return (*lease)->state() == LeaseState::revoking; }));
    gateway.lose_silently((*lease)->id().value);
    CHECK(Mapping::map(*lease).error().code == ErrorCode::lease_revoked);
  }
  SUBCASE("fenced") {
    gateway.fence((*lease)->id().value, "test");
    REQUIRE(test::eventually([&] { return (*lease)->state() == LeaseState::lost; }));
    CHECK(Mapping::map(*lease).error().code == ErrorCode::lease_revoked);
  }
}
