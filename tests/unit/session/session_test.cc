// SPDX-License-Identifier: Apache-2.0
// Session and Lease against a manager that behaves.
#include "terrace/session.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_gateway.h"

using namespace terrace;
using test::eventually;
using test::FakeGateway;
using test::Fault;

namespace {

SessionOptions options_for(const FakeGateway& gateway) {
  SessionOptions options;
  options.socket_path = gateway.socket_path();
  options.connect_timeout_ns = 5 * ns_per_s;
  options.call_timeout_ns = 10 * ns_per_s;
  return options;
}

std::unique_ptr<Session> connect(const FakeGateway& gateway) {
  auto session = Session::connect(options_for(gateway));
  REQUIRE_MESSAGE(session.ok(), session.error().to_string());
  return std::move(*session);
}

std::shared_ptr<Lease> grant(Session& session, uint64_t bytes, uint64_t ttl_ns = 60 * ns_per_s,
                             const std::string& label = "") {
  LeaseRequest request;
  request.bytes = bytes;
  request.ttl_ns = ttl_ns;
  request.label = label;
  auto lease = session.grant(request);
  REQUIRE_MESSAGE(lease.ok(), lease.error().to_string());
  return std::move(*lease);
}

}  // namespace

TEST_CASE("Session: connecting gives the tenant and shows the program's name") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  CHECK(session->tenant() == "tester");
  CHECK(session->connected());
  CHECK(gateway.last_client() == "unit_session");
}

TEST_CASE("Session: a manager that is not there is named") {
  FakeGateway gateway;
  auto session = Session::connect(options_for(gateway));
  REQUIRE_FALSE(session.ok());
  CHECK(session.error().code == ErrorCode::unavailable);
  CHECK(session.error().detail.find(gateway.socket_path()) != std::string::npos);
  CHECK(session.error().detail.find("terrace daemon") != std::string::npos);
}

TEST_CASE("Session: a manager that refuses, or speaks another version, is told apart") {
  FakeGateway gateway;
  gateway.start();
  SUBCASE("permission") {
    gateway.refuse_with(ErrorCode::permission_denied, "uid 7 has no tenant");
    gateway.fail_always("openSession", Fault::refuse);
    auto session = Session::connect(options_for(gateway));
    REQUIRE_FALSE(session.ok());
    CHECK(session.error().code == ErrorCode::permission_denied);
    CHECK(session.error().detail.find("uid 7 has no tenant") != std::string::npos);
  }
  SUBCASE("version") {
    gateway.set_version(9);
    CHECK(Session::connect(options_for(gateway)).error().code == ErrorCode::version_mismatch);
  }
  SUBCASE("hanging") {
    gateway.fail_always("hello", Fault::hang);
    SessionOptions options = options_for(gateway);
    options.connect_timeout_ns = 100 * ns_per_ms;
    CHECK(Session::connect(options).error().code == ErrorCode::unavailable);
  }
  SUBCASE("breaking") {
    gateway.fail_always("openSession", Fault::drop_before);
    CHECK(Session::connect(options_for(gateway)).error().code == ErrorCode::unavailable);
  }
}

TEST_CASE("Session: a socket path that no address can hold is refused") {
  SessionOptions options;
  options.socket_path = "/tmp/" + std::string(200, 'x');
  CHECK(Session::connect(options).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("Session: a grant brings memory, its facts and its own descriptor") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session, 3 * mib);
  CHECK(lease->bytes() == 4 * mib);
  CHECK(lease->id().value == 1);
  CHECK(lease->epoch().value == 100);
  CHECK(lease->state() == LeaseState::live);
  CHECK(lease->access() == LeaseAccess::read_write);
  struct stat status {};
  REQUIRE(::fstat(lease->fd(), &status) == 0);
  CHECK(status.st_size == 4 * 1024 * 1024);
  CHECK((::fcntl(lease->fd(), F_GETFD) & FD_CLOEXEC) != 0);

  auto info = lease->info();
  REQUIRE(info.ok());
  CHECK(info->pool == "pool");
  CHECK(info->phase == "active");
  REQUIRE(info->extents.size() == 1);
  CHECK(info->extents[0].device == "emu:fake");
  auto leases = session->leases();
  REQUIRE(leases.ok());
  CHECK(leases->size() == 1);
  auto pools = session->pools();
  REQUIRE(pools.ok());
  REQUIRE(pools->size() == 1);
  CHECK(pools->front().capacity_bytes == gib);
  CHECK(pools->front().devices == std::vector<std::string>{"emu:fake"});
}

TEST_CASE("Session: what the manager refuses comes back with its code and its words") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  gateway.refuse_with(ErrorCode::capacity_exhausted, "512 MiB are free in pool");
  gateway.fail_next("grant", Fault::refuse);
  LeaseRequest request;
  request.bytes = gib;
  auto lease = session->grant(request);
  REQUIRE_FALSE(lease.ok());
  CHECK(lease.error().code == ErrorCode::capacity_exhausted);
  CHECK(lease.error().detail.find("512 MiB are free") != std::string::npos);
  CHECK(std::string(lease.error().where) == "Session::grant");
}

TEST_CASE("Session: an older manager that does not know what is asked for at a fence gets its lease back") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  LeaseRequest request;
  request.bytes = 2 * mib;
  request.label = "pinned";
  request.on_fence = OnFence::kill;
  const auto lease = session->grant(request);
  REQUIRE(!lease.ok());
  CHECK(lease.error().code == ErrorCode::version_mismatch);
  const auto left = session->leases();
  REQUIRE(left.ok());
  CHECK(left->empty());
  CHECK(grant(*session, 2 * mib)->on_fence() == OnFence::keep);
}

TEST_CASE("Session: attaching by label gives a second handle; a read-only one cannot be written") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session, 2 * mib, 60 * ns_per_s, "weights");
  auto reader = session->attach(LeaseId{}, "weights", LeaseAccess::read_only);
  REQUIRE(reader.ok());
  CHECK((*reader)->id() == lease->id());
  CHECK((*reader)->access() == LeaseAccess::read_only);
  CHECK((::fcntl((*reader)->fd(), F_GETFL) & O_ACCMODE) == O_RDONLY);
  CHECK(session->attach(LeaseId{77}, "", LeaseAccess::read_only).error().code == ErrorCode::not_found);
}

TEST_CASE("Session: a list longer than a page is whole") {
  FakeGateway gateway;
  gateway.start();
  gateway.add_bare_leases(10'001);
  auto session = connect(gateway);
  auto leases = session->leases();
  REQUIRE(leases.ok());
  CHECK(leases->size() == 10'001);
  CHECK(gateway.calls("list") == 2);
  CHECK(leases->back().id.value == 10'001);
}

TEST_CASE("Lease: usage, renewal and release reach the manager") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session, 2 * mib);
  REQUIRE(lease->report_usage({.ddr_bytes = 5, .cxl_bytes = 6, .live_bytes = 7, .holder = "me[1]"}).ok());
  CHECK(gateway.lease(1).holder == "me[1]");
  CHECK(lease->info()->usage.ddr_bytes == 5);
  REQUIRE(lease->renew(90 * ns_per_s).ok());
  CHECK(gateway.lease(1).ttl_ns == 90 * ns_per_s);

  std::atomic<int> notices{0};
  session->on_notice([&](const LeaseNotice&) { ++notices; });
  REQUIRE(lease->release().ok());
  CHECK(lease->state() == LeaseState::lost);
  CHECK(gateway.leases().empty());
  CHECK(lease->release().ok());
  CHECK(gateway.calls("release") == 1);
  CHECK(lease->info().error().code == ErrorCode::lease_expired);
  CHECK(lease->renew().error().code == ErrorCode::lease_expired);
  session->on_notice(nullptr);
  CHECK(notices == 0);
  CHECK_FALSE(session->next_notice().has_value());
}

TEST_CASE("Lease: held leases are renewed at a third of the shortest TTL; a dropped handle is not") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto slow = grant(*session, 2 * mib, 3600 * ns_per_s);
  auto fast = grant(*session, 2 * mib, 150 * ns_per_ms);
  LeaseRequest request{
      .pool = "", .bytes = 2 * mib, .mode = LeaseMode::exclusive, .ttl_ns = 0, .persistent = true, .label = ""};
  auto persistent = session->grant(request);
  REQUIRE(persistent.ok());
  CHECK(eventually([&] { return gateway.lease(fast->id().value).renewals >= 5; }));
  CHECK(gateway.lease(slow->id().value).renewals >= 3);  // in the same calls
  CHECK(gateway.lease((*persistent)->id().value).renewals == 0);

  const uint64_t id = fast->id().value;
  fast.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const uint64_t renewals = gateway.lease(id).renewals;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(gateway.lease(id).renewals == renewals);
  CHECK(gateway.lease(id).id == id);  // dropping a handle releases nothing
}

TEST_CASE("Lease: a revocation is announced with its grace, then the fence") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session, 2 * mib);
  auto second = session->attach(lease->id(), "", LeaseAccess::read_only);
  REQUIRE(second.ok());
  std::mutex mutex;
  std::vector<LeaseNotice> notices;
  session->on_notice([&](const LeaseNotice& notice) {
    const std::lock_guard lock(mutex);
    notices.push_back(notice);
  });
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return notices.size();
  };
  gateway.revoke(lease->id().value, 5 * ns_per_s, "rack 4 is drained");
  REQUIRE(eventually([&] { return count() == 1; }));
  CHECK(lease->state() == LeaseState::revoking);
  CHECK((*second)->state() == LeaseState::revoking);
  CHECK(notices[0].state == LeaseState::revoking);
  CHECK(notices[0].grace_ns <= 5 * ns_per_s);  // less what passed since it was told
  CHECK(notices[0].grace_ns > 0);
  CHECK(notices[0].reason == "rack 4 is drained");
  CHECK(lease->info()->reason == "rack 4 is drained");  // still usable for calls

  gateway.fence(lease->id().value, "grace over");
  REQUIRE(eventually([&] { return count() == 2; }));
  CHECK(notices[1].state == LeaseState::lost);
  CHECK(lease->state() == LeaseState::lost);
  CHECK((*second)->state() == LeaseState::lost);
  CHECK(lease->info().error().code == ErrorCode::lease_revoked);
  CHECK(lease->release().ok());
  CHECK(gateway.calls("release") == 0);
}

TEST_CASE("Lease: a fence without a warning says whether the lease lapsed or was taken") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lapsed = grant(*session, 2 * mib);
  auto taken = grant(*session, 2 * mib);
  gateway.fence(lapsed->id().value, "expired");
  gateway.fence(taken->id().value, "rack 4 is drained");
  REQUIRE(
      eventually([&] { return lapsed->state() == LeaseState::lost && taken->state() == LeaseState::lost; }));
  CHECK(lapsed->info().error().code == ErrorCode::lease_expired);
  CHECK(taken->info().error().code == ErrorCode::lease_revoked);
  CHECK(taken->info().error().detail == "rack 4 is drained");
}

TEST_CASE("Session: the process's signal dispositions are left alone") {
  ::signal(SIGPIPE, SIG_DFL);  // the fake managers of other cases run kj in this process
  FakeGateway gateway;
  auto refused = Session::connect(options_for(gateway));
  REQUIRE_FALSE(refused.ok());
  struct sigaction after {};
  REQUIRE(::sigaction(SIGPIPE, nullptr, &after) == 0);
  const bool untouched_after = after.sa_handler == SIG_DFL;
  CHECK(untouched_after);
}

TEST_CASE("Session: in the child of a fork it refuses, and goes away without waiting") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session, 2 * mib);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = !session->pools().ok() && !lease->info().ok() && !lease->release().ok();
    lease.reset();
    session.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; }));
  CHECK(status == 0);
  CHECK(lease->info().ok());  // the parent's goes on
}

TEST_CASE("Session: the userfaultfd device is a descriptor of the caller's own, and outlives the session") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto device = session->userfaultfd_device();
  REQUIRE_MESSAGE(device.ok(), device.error().to_string());
  CHECK((::fcntl(device->get(), F_GETFD) & FD_CLOEXEC) != 0);
  const auto second = session->userfaultfd_device();
  REQUIRE(second.ok());
  CHECK(second->get() != device->get());
  session.reset();
  struct stat status {};
  CHECK(::fstat(device->get(), &status) == 0);
}

TEST_CASE(
    "Session: a userfaultfd device that is refused, lost on the way or without a descriptor is an error") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  gateway.refuse_with(ErrorCode::permission_denied, "not here");
  gateway.fail_next("userfaultfd", Fault::refuse);
  const auto refused = session->userfaultfd_device();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::permission_denied);
  CHECK(refused.error().detail.find("not here") != std::string::npos);
  gateway.fail_next("userfaultfd", Fault::no_descriptor);
  CHECK(session->userfaultfd_device().error().code == ErrorCode::unsupported);
  gateway.fail_next("userfaultfd", Fault::drop_after);
  CHECK(session->userfaultfd_device().ok());  // asked again on the next connection
}

TEST_CASE("Lease: it outlives its session and then refuses calls") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  auto lease = grant(*session, 2 * mib);
  session.reset();
  CHECK(lease->info().error().code == ErrorCode::unavailable);
  CHECK(lease->release().error().code == ErrorCode::unavailable);
  struct stat status {};
  CHECK(::fstat(lease->fd(), &status) == 0);
  CHECK(gateway.leases().size() == 1);
}

TEST_CASE("default_socket_path: the environment decides first") {
  ::setenv("TERRACE_SOCKET", "/somewhere/t.sock", 1);
  CHECK(default_socket_path() == "/somewhere/t.sock");
  ::unsetenv("TERRACE_SOCKET");
  ::setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
  const std::string path = default_socket_path();
  const bool system = path == "/run/terrace/terraced.sock";
  CHECK((system || path == "/run/user/1/terrace/terraced.sock"));
  if (::geteuid() == 0) CHECK(system);
  ::unsetenv("XDG_RUNTIME_DIR");
}
