// SPDX-License-Identifier: Apache-2.0
// Session against a manager that dies, loses replies, hangs or has defects.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/base/units.h"
#include "terrace/session.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_gateway.h"

using namespace terrace;
using test::eventually;
using test::FakeGateway;
using test::Fault;
using Milliseconds = std::chrono::milliseconds;

namespace {

std::unique_ptr<Session> connect(const FakeGateway& gateway, uint64_t call_timeout_ns = 10 * ns_per_s) {
  SessionOptions options;
  options.socket_path = gateway.socket_path();
  options.call_timeout_ns = call_timeout_ns;
  auto session = Session::connect(options);
  REQUIRE_MESSAGE(session.ok(), session.error().to_string());
  return std::move(*session);
}

std::shared_ptr<Lease> grant(Session& session, uint64_t ttl_ns = 60 * ns_per_s) {
  LeaseRequest request;
  request.bytes = 2 * mib;
  request.ttl_ns = ttl_ns;
  auto lease = session.grant(request);
  REQUIRE_MESSAGE(lease.ok(), lease.error().to_string());
  return std::move(*lease);
}

uint64_t milliseconds_since(std::chrono::steady_clock::time_point start) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

TEST_CASE("Session: a restarted manager finds the leases attached again, and the memory never noticed") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session, 300 * ns_per_ms);
  void* memory = ::mmap(nullptr, 2 * mib, PROT_READ | PROT_WRITE, MAP_SHARED, lease->fd(), 0);
  REQUIRE(memory != MAP_FAILED);
  std::memset(memory, 0x11, 2 * mib);
  gateway.stop();
  REQUIRE(eventually([&] { return !session->connected(); }));
  std::memset(memory, 0x22, 2 * mib);
  CHECK(lease->state() == LeaseState::live);
  gateway.start();
  REQUIRE(eventually([&] { return session->connected(); }));
  CHECK(gateway.calls("attach") == 1);
  CHECK(lease->info().ok());
  const uint64_t renewals = gateway.lease(lease->id().value).renewals;
  CHECK(eventually([&] { return gateway.lease(lease->id().value).renewals > renewals + 2; }));
  CHECK(static_cast<unsigned char*>(memory)[mib] == 0x22);
  ::munmap(memory, 2 * mib);
}

TEST_CASE("Session: a grant whose reply was lost is not granted twice") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  gateway.fail_next("grant", Fault::drop_after, 3);
  auto lease = grant(*session);
  CHECK(gateway.calls("grant") == 4);
  CHECK(gateway.leases().size() == 1);
  auto other = grant(*session);  // another grant has another key
  CHECK(other->id() != lease->id());
}

TEST_CASE("Session: a grant that was cut off before it happened is sent again") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  gateway.fail_next("grant", Fault::drop_before, 2);
  auto lease = grant(*session);
  CHECK(gateway.leases().size() == 1);
}

TEST_CASE("Session: a grant that nobody waits for any more is released when it arrives") {
  FakeGateway gateway;
  gateway.start();
  // The grant goes on for as long again, in which it has to be sent anew.
  auto session = connect(gateway, 3 * ns_per_s);
  gateway.fail_next("grant", Fault::hang);
  LeaseRequest request;
  request.bytes = 2 * mib;
  const auto start = std::chrono::steady_clock::now();
  auto lease = session->grant(request);
  REQUIRE_FALSE(lease.ok());
  CHECK(lease.error().code == ErrorCode::unavailable);
  CHECK(milliseconds_since(start) >= 2990);
  CHECK(gateway.leases().size() == 1);  // it had happened
  gateway.drop_connections();           // sent again with the same key, and answered now
  CHECK(eventually([&] { return gateway.leases().empty(); }));
  CHECK(gateway.calls("release") == 1);
}

TEST_CASE("Lease: a release whose reply was lost is no error") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  std::atomic<int> notices{0};
  session->on_notice([&](const LeaseNotice&) { ++notices; });
  gateway.fail_next("release", Fault::drop_after);
  CHECK(lease->release().ok());
  CHECK(lease->state() == LeaseState::lost);
  CHECK(gateway.leases().empty());
  session->on_notice(nullptr);
  CHECK(notices == 0);  // the own release is no news
  CHECK_FALSE(session->next_notice().has_value());
}

TEST_CASE("Lease: a part that was given back while the manager was away is given back when it is there again") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway, 120 * ns_per_s);
  auto lease = grant(*session);
  gateway.stop();
  REQUIRE(eventually([&] { return !session->connected(); }));
  const Status released = lease->release_part(3, 1);
  REQUIRE_FALSE(released.ok());
  CHECK(released.error().code == ErrorCode::unavailable);
  lease.reset();  // who released it goes on without it
  gateway.start();
  CHECK(eventually([&] { return gateway.calls("releasePart") == 1; }));
}

TEST_CASE("Lease: a part that cannot be given back does not end the lease") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  gateway.refuse_with(ErrorCode::invalid_argument, "part 3 had no owner under epoch 1");
  gateway.fail_next("releasePart", Fault::refuse);
  CHECK(lease->release_part(3, 1).error().code == ErrorCode::invalid_argument);
  CHECK(lease->state() == LeaseState::live);
  CHECK(lease->info().ok());
}

TEST_CASE("Lease: calls wait for the manager to come back, and say so when it does not") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway, 1500 * ns_per_ms);
  auto lease = grant(*session);
  gateway.stop();
  const auto start = std::chrono::steady_clock::now();
  auto info = lease->info();
  REQUIRE_FALSE(info.ok());
  CHECK(info.error().code == ErrorCode::unavailable);
  CHECK(info.error().detail.find(gateway.socket_path()) != std::string::npos);
  CHECK(milliseconds_since(start) >= 1490);
  CHECK(milliseconds_since(start) < 60'000);
  CHECK(lease->state() == LeaseState::live);

  std::atomic<bool> answered{false};
  std::thread caller([&] {
    for (int i = 0; i < 20 && !answered; ++i) answered = session->pools().ok();
  });
  std::this_thread::sleep_for(Milliseconds(100));
  gateway.start();
  caller.join();
  CHECK(answered);
}

TEST_CASE("Lease: one that lapsed while the manager was away is lost, with a notice") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lapsed = grant(*session);
  auto kept = grant(*session);
  std::atomic<uint64_t> lost{0};
  session->on_notice([&](const LeaseNotice& notice) {
    if (notice.state == LeaseState::lost) lost += notice.lease.value;
  });
  gateway.stop();
  SUBCASE("gone") {
    gateway.lose_silently(lapsed->id().value);
  }
  SUBCASE("another epoch") {
    gateway.change_epoch(lapsed->id().value);
  }
  gateway.start();
  CHECK(eventually([&] { return lapsed->state() == LeaseState::lost; }));
  CHECK(eventually([&] { return lost == lapsed->id().value; }));
  CHECK(lapsed->info().error().code == ErrorCode::lease_expired);
  CHECK(kept->info().ok());
  CHECK(kept->state() == LeaseState::live);
  session->on_notice(nullptr);
}

TEST_CASE("Lease: a renewal that the manager refuses loses that lease and no other") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lapsed = grant(*session, 150 * ns_per_ms);
  auto kept = grant(*session, 150 * ns_per_ms);
  gateway.lose_silently(lapsed->id().value);
  CHECK(eventually([&] { return lapsed->state() == LeaseState::lost; }));
  const uint64_t renewals = gateway.lease(kept->id().value).renewals;
  CHECK(eventually([&] { return gateway.lease(kept->id().value).renewals > renewals + 2; }));
  CHECK(kept->state() == LeaseState::live);
}

TEST_CASE("Lease: a revocation that was missed while away is noticed on return") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  gateway.stop();
  gateway.revoke(lease->id().value, ns_per_s, "drained");
  gateway.start();
  CHECK(eventually([&] { return lease->state() == LeaseState::revoking; }));
  CHECK(lease->release().ok());
  CHECK(gateway.leases().empty());
}

TEST_CASE("Session: an unanswered renewal is taken for a dead connection") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  gateway.fail_next("renewMany", Fault::hang);
  auto lease = grant(*session, 150 * ns_per_ms);
  CHECK(eventually([&] { return gateway.connections() == 2; }));
  CHECK(eventually([&] { return gateway.calls("renewMany") >= 4; }));
  CHECK(lease->state() == LeaseState::live);
}

TEST_CASE("Session: defects of the manager become errors") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  gateway.fail_next("pools", Fault::defect);
  auto pools = session->pools();
  REQUIRE_FALSE(pools.ok());
  CHECK(pools.error().code == ErrorCode::unavailable);
  CHECK(pools.error().detail.find("a defect made by the test") != std::string::npos);
  gateway.fail_next("grant", Fault::no_descriptor);
  LeaseRequest request;
  request.bytes = 2 * mib;
  CHECK(session->grant(request).error().code == ErrorCode::unsupported);
  CHECK(session->pools().ok());
  CHECK(gateway.connections() == 1);
}

TEST_CASE("Session: a manager that breaks every connection is asked with back-off") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  gateway.fail_always("openSession", Fault::drop_before);
  gateway.drop_connections();
  std::this_thread::sleep_for(Milliseconds(1000));
  // 10, 20, 40, ... ms, each shortened by at most half: 6 to 9 attempts in a second, never a storm.
  const int attempts = gateway.connections() - 1;
  CHECK(attempts >= 2);
  CHECK(attempts <= 10);
  gateway.clear_faults();
  CHECK(eventually([&] { return session->connected(); }));
  CHECK(session->pools().ok());
}

TEST_CASE("Session: it ends at once, connected or not, and answers those who wait") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  gateway.fail_always("info", Fault::hang);
  std::atomic<int> code{-1};
  std::thread caller([&] {
    const auto info = lease->info();
    code = info.ok() ? 0 : static_cast<int>(info.error().code);
  });
  REQUIRE(eventually([&] { return gateway.calls("info") == 1; }));
  SUBCASE("connected") {}
  SUBCASE("disconnected") {
    gateway.stop();
    REQUIRE(eventually([&] { return !session->connected(); }));
  }
  const auto start = std::chrono::steady_clock::now();
  session.reset();
  caller.join();
  CHECK(milliseconds_since(start) < 3000);
  CHECK(code == static_cast<int>(ErrorCode::cancelled));
}
