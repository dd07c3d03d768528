// SPDX-License-Identifier: Apache-2.0
// Leases that change while they are held: resized, transferred, waited for; and why they are lost.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "core/base/units.h"
#include "terrace/mapping.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_gateway.h"

using namespace terrace;
using test::eventually;
using test::FakeGateway;
using test::Fault;

namespace {

std::unique_ptr<Session> connect(const FakeGateway& gateway, uint64_t call_timeout_ns = 10 * ns_per_s) {
  SessionOptions options;
  options.socket_path = gateway.socket_path();
  options.call_timeout_ns = call_timeout_ns;
  auto session = Session::connect(options);
  REQUIRE_MESSAGE(session.ok(), session.error().to_string());
  return std::move(*session);
}

std::shared_ptr<Lease> grant(Session& session, uint64_t bytes = 4 * mib) {
  LeaseRequest request;
  request.bytes = bytes;
  auto lease = session.grant(request);
  REQUIRE_MESSAGE(lease.ok(), lease.error().to_string());
  return std::move(*lease);
}

std::unique_ptr<Mapping> map(const std::shared_ptr<Lease>& lease) {
  auto mapping = Mapping::map(lease);
  REQUIRE_MESSAGE(mapping.ok(), mapping.error().to_string());
  return std::move(*mapping);
}

uint64_t file_bytes(int fd) {
  struct stat status {};
  REQUIRE(::fstat(fd, &status) == 0);
  return static_cast<uint64_t>(status.st_size);
}

}  // namespace

TEST_CASE("Lease: a resize changes size and memory behind the same descriptor; a mapping follows") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  SUBCASE("the object grows") {}
  SUBCASE("the object is another one") {
    gateway.use_new_file_on_resize();
  }
  SUBCASE("the reply is lost") {
    gateway.fail_next("resize", Fault::drop_after);
  }
  auto mapping = map(lease);
  std::memset(mapping->bytes().data(), 0x5a, 4 * mib);
  const int fd = lease->fd();
  auto info = lease->resize(7 * mib);
  REQUIRE_MESSAGE(info.ok(), info.error().to_string());
  CHECK(info->bytes == 8 * mib);
  CHECK(lease->bytes() == 8 * mib);
  CHECK(lease->fd() == fd);
  CHECK(file_bytes(fd) == 8 * mib);
  CHECK(mapping->bytes().size() == 4 * mib);

  const std::byte* before = mapping->const_bytes().data();
  auto grown = mapping->resize();
  REQUIRE_MESSAGE(grown.ok(), grown.error().to_string());
  REQUIRE(mapping->bytes().size() == 8 * mib);
  CHECK((mapping->const_bytes().data() == before) == (*grown == Remapped::in_place));
  CHECK(mapping->bytes()[4 * mib - 1] == std::byte{0x5a});
  CHECK(mapping->bytes()[4 * mib] == std::byte{0});
  std::memset(mapping->bytes().data() + 4 * mib, 0x66, 4 * mib);
  mapping->persist(mapping->bytes().subspan(3 * mib, 2 * mib));

  before = mapping->const_bytes().data();
  REQUIRE(lease->resize(2 * mib).ok());
  CHECK(*mapping->resize() == Remapped::in_place);
  CHECK(mapping->const_bytes().data() == before);
  CHECK(mapping->bytes().size() == 2 * mib);
  CHECK(mapping->bytes()[2 * mib - 1] == std::byte{0x5a});
  // The addresses were kept: growing again stays in place.
  REQUIRE(lease->resize(6 * mib).ok());
  CHECK(*mapping->resize() == Remapped::in_place);
  CHECK(mapping->bytes()[6 * mib - 1] == std::byte{0});
  CHECK(mapping->bytes()[2 * mib - 1] == std::byte{0x5a});
}

TEST_CASE("Mapping: without free addresses behind it a grown one goes elsewhere, with its bytes") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  auto mapping = map(lease);
  mapping->bytes()[1] = std::byte{7};
  const std::byte* before = mapping->const_bytes().data();
  // Taken, whether something lies there already or not.
  void* behind = ::mmap(mapping->bytes().data() + 4 * mib, 4096, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  REQUIRE(lease->resize(16 * mib).ok());
  auto grown = mapping->resize();
  REQUIRE(grown.ok());
  CHECK(*grown == Remapped::elsewhere);
  CHECK(mapping->const_bytes().data() != before);
  CHECK(mapping->bytes().size() == 16 * mib);
  CHECK(mapping->bytes()[1] == std::byte{7});
  CHECK(mapping->bytes()[16 * mib - 1] == std::byte{0});
  if (behind != MAP_FAILED) ::munmap(behind, 4096);
}

TEST_CASE("Lease: the other handles of a resized lease follow; a read-only one may not resize") {
  FakeGateway gateway;
  gateway.start();
  gateway.use_new_file_on_resize();
  auto session = connect(gateway);
  auto lease = grant(*session);
  auto reader = session->attach(lease->id(), "", LeaseAccess::read_only);
  REQUIRE(reader.ok());
  CHECK((*reader)->resize(mib).error().code == ErrorCode::permission_denied);
  CHECK((*reader)->transfer("other").error().code == ErrorCode::permission_denied);
  CHECK((*reader)->begin_move().error().code == ErrorCode::permission_denied);
  REQUIRE(lease->resize(8 * mib).ok());
  CHECK((*reader)->bytes() == 8 * mib);
  CHECK(file_bytes((*reader)->fd()) == 8 * mib);
}

TEST_CASE("Lease: a size that an operator changed is seen after the next question") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  gateway.resize_as_operator(lease->id().value, 10 * mib);
  SUBCASE("asked") {
    CHECK(lease->info()->bytes == 10 * mib);
  }
  SUBCASE("attached again") {
    gateway.restart();
  }
  CHECK(eventually([&] { return lease->bytes() == 10 * mib; }));
  CHECK(lease->state() == LeaseState::live);
}

TEST_CASE("Lease: a resize that is refused changes nothing") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  gateway.refuse_with(ErrorCode::capacity_exhausted, "2 MiB are free");
  gateway.fail_next("resize", Fault::refuse);
  CHECK(lease->resize(gib).error().code == ErrorCode::capacity_exhausted);
  CHECK(lease->bytes() == 4 * mib);
  CHECK(lease->state() == LeaseState::live);
}

TEST_CASE("Lease: after a transfer it is lost here, without a notice, and its bytes are the other's") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  std::atomic<int> notices{0};
  session->on_notice([&](const LeaseNotice&) { ++notices; });
  SUBCASE("answered") {}
  SUBCASE("the reply is lost") {
    gateway.fail_next("transfer", Fault::drop_after);
  }
  SUBCASE("cut off before") {
    gateway.fail_next("transfer", Fault::drop_before);
  }
  const Status done = lease->transfer("other", "host-2");
  REQUIRE_MESSAGE(done.ok(), done.error().to_string());
  CHECK(lease->state() == LeaseState::lost);
  CHECK(lease->info().error().code == ErrorCode::lease_expired);
  CHECK(gateway.lease(1).tenant == "other");
  CHECK(gateway.lease(1).host == "host-2");
  CHECK(file_bytes(lease->fd()) == 0);
  CHECK(Mapping::map(lease).error().code == ErrorCode::lease_expired);
  session->on_notice(nullptr);
  CHECK(notices == 0);
  CHECK_FALSE(session->next_notice().has_value());
}

TEST_CASE("Lease: a transfer to a tenant that is not there leaves it live and renewed") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session);
  gateway.refuse_with(ErrorCode::not_found, "there is no tenant nobody");
  gateway.fail_next("transfer", Fault::refuse);
  CHECK(lease->transfer("nobody").error().code == ErrorCode::not_found);
  CHECK(lease->state() == LeaseState::live);
  CHECK(lease->info().ok());
  const uint64_t renewals = gateway.lease(1).renewals;
  CHECK(lease->renew().ok());
  CHECK(gateway.lease(1).renewals > renewals);
}

TEST_CASE("Session: a grant waits in the queue of a full pool for longer than the call timeout") {
  FakeGateway gateway;
  gateway.start();
  gateway.set_full(true);
  auto session = connect(gateway, ns_per_s);
  LeaseRequest request;
  request.bytes = 2 * mib;
  CHECK(session->grant(request).error().code == ErrorCode::capacity_exhausted);
  request.wait_ns = 60 * ns_per_s;
  request.movable = true;
  std::thread room([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    gateway.set_full(false);
  });
  auto lease = session->grant(request);
  room.join();
  REQUIRE_MESSAGE(lease.ok(), lease.error().to_string());
  CHECK(gateway.lease((*lease)->id().value).movable);
  gateway.set_full(true);
  request.wait_ns = 100 * ns_per_ms;
  CHECK(session->grant(request).error().code == ErrorCode::capacity_exhausted);
}

TEST_CASE("Session: a waiting grant survives a restart, with what is left of its wait") {
  FakeGateway gateway;
  gateway.start();
  gateway.set_full(true);
  auto session = connect(gateway);
  std::thread operations([&] {
    eventually([&] { return gateway.waits_ns().size() == 1; });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    gateway.restart();
    eventually([&] { return gateway.waits_ns().size() == 2; });
    gateway.set_full(false);
  });
  LeaseRequest request;
  request.bytes = 2 * mib;
  request.wait_ns = 60 * ns_per_s;
  auto lease = session->grant(request);
  operations.join();
  REQUIRE_MESSAGE(lease.ok(), lease.error().to_string());
  const auto waits = gateway.waits_ns();
  REQUIRE(waits.size() == 2);
  CHECK(waits[0] > 59 * ns_per_s);
  CHECK(waits[1] + 200 * ns_per_ms <= waits[0]);
  CHECK(waits[1] > 30 * ns_per_s);
  CHECK(gateway.leases().size() == 1);
}

TEST_CASE("Session: closing it ends a waiting grant at once") {
  FakeGateway gateway;
  gateway.start();
  gateway.set_full(true);
  auto session = connect(gateway);
  std::atomic<int> code{-1};
  std::thread caller([&, raw = session.get()] {
    LeaseRequest request;
    request.bytes = 2 * mib;
    request.wait_ns = 3600 * ns_per_s;
    const auto lease = raw->grant(request);
    code = lease.ok() ? 0 : static_cast<int>(lease.error().code);
  });
  REQUIRE(eventually([&] { return gateway.waits_ns().size() == 1; }));
  session.reset();
  caller.join();
  CHECK(code == static_cast<int>(ErrorCode::cancelled));
}

TEST_CASE("Lease: the cause of a fence decides what a lost lease says, whatever the words of the reason") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lapsed = grant(*session);
  auto taken = grant(*session);
  std::mutex mutex;
  std::vector<LeaseNotice> notices;
  session->on_notice([&](const LeaseNotice& notice) {
    const std::lock_guard lock(mutex);
    notices.push_back(notice);
  });
  gateway.fence(lapsed->id().value, "not renewed for 60 s", LeaseCause::expired);
  gateway.fence(taken->id().value, "expired", LeaseCause::device_lost);
  REQUIRE(
      eventually([&] { return lapsed->state() == LeaseState::lost && taken->state() == LeaseState::lost; }));
  CHECK(lapsed->info().error().code == ErrorCode::lease_expired);
  CHECK(taken->info().error().code == ErrorCode::lease_revoked);
  // They come on a thread of their own, behind the state.
  REQUIRE(eventually([&] {
    const std::lock_guard lock(mutex);
    return notices.size() == 2;
  }));
  session->on_notice(nullptr);
  const std::lock_guard lock(mutex);
  CHECK(notices[0].cause == LeaseCause::expired);
  CHECK(notices[1].cause == LeaseCause::device_lost);
  CHECK(lease_cause_name(notices[1].cause) == "device_lost");
}
