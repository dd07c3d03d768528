// SPDX-License-Identifier: Apache-2.0
// Notices of leases: told on a thread of their own, in order, and how handlers come and go.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/units.h"
#include "libclient/session/notice_queue.h"
#include "terrace/session.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_gateway.h"

using namespace terrace;
using client::NoticeQueue;
using test::eventually;
using test::FakeGateway;

namespace {

struct Scene {
  Scene() {
    gateway.start();
    SessionOptions options;
    options.socket_path = gateway.socket_path();
    options.call_timeout_ns = 10 * ns_per_s;
    auto connected = Session::connect(options);
    REQUIRE_MESSAGE(connected.ok(), connected.error().to_string());
    session = std::move(*connected);
    lease = grant(60 * ns_per_s);
  }
  std::shared_ptr<Lease> grant(uint64_t ttl_ns) const {
    LeaseRequest request;
    request.bytes = 2 * mib;
    request.ttl_ns = ttl_ns;
    auto granted = session->grant(request);
    REQUIRE_MESSAGE(granted.ok(), granted.error().to_string());
    return std::move(*granted);
  }
  void revoke(const std::string& reason = "test") { gateway.revoke(lease->id().value, 60 * ns_per_s, reason); }

  FakeGateway gateway;
  std::unique_ptr<Session> session;
  std::shared_ptr<Lease> lease;
};

bool is_readable(int fd) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, 0) == 1;
}

LeaseNotice notice_of(uint64_t lease, LeaseState state, bool move_requested = false) {
  LeaseNotice notice;
  notice.lease = LeaseId{lease};
  notice.state = state;
  notice.move_requested = move_requested;
  return notice;
}

}  // namespace

TEST_CASE("Session: a handler that blocks keeps nobody from calling, and no lease from being renewed") {
  Scene scene;
  const auto short_lived = scene.grant(1 * ns_per_s);
  std::promise<void> go_on;
  std::atomic<bool> inside{false};
  scene.session->on_notice([&, until = go_on.get_future().share()](const LeaseNotice&) {
    inside = true;
    until.wait();
  });
  scene.revoke();
  REQUIRE(eventually([&] { return inside.load(); }));
  const int before = scene.gateway.calls("renewMany");
  CHECK(scene.session->leases().ok());
  CHECK(eventually([&] { return scene.gateway.calls("renewMany") >= before + 3; }));
  CHECK(short_lived->state() == LeaseState::live);
  go_on.set_value();
  scene.session->on_notice(nullptr);
}

TEST_CASE("Session: a handler may call into its session and its leases") {
  Scene scene;
  std::atomic<int> code{-1};
  scene.session->on_notice([&](const LeaseNotice&) {
    const Status released = scene.lease->release();
    code = released.ok() ? 0 : static_cast<int>(released.error().code);
  });
  scene.revoke();
  CHECK(eventually([&] { return code == 0; }));
  CHECK(scene.gateway.calls("release") == 1);
  scene.session->on_notice(nullptr);
}

TEST_CASE("Session: a handler may replace itself, and may remove itself") {
  Scene scene;
  std::atomic<int> first{0}, second{0};
  scene.session->on_notice([&](const LeaseNotice&) {
    ++first;
    scene.session->on_notice([&](const LeaseNotice&) {
      ++second;
      scene.session->on_notice(nullptr);
    });
  });
  scene.revoke();
  scene.gateway.fence(scene.lease->id().value, "grace over");
  CHECK(eventually([&] { return first == 1 && second == 1; }));
  const auto other = scene.grant(60 * ns_per_s);
  scene.gateway.fence(other->id().value, "gone");
  CHECK(eventually([&] { return is_readable(scene.session->notice_fd()); }));  // nobody takes it
  CHECK(first == 1);
  CHECK(second == 1);
}

TEST_CASE("Session: taking a handler away waits for its running call") {
  Scene scene;
  std::promise<void> go_on;
  std::atomic<bool> inside{false}, left{false}, taken{false};
  scene.session->on_notice([&, until = go_on.get_future().share()](const LeaseNotice&) {
    inside = true;
    until.wait();
    left = true;
  });
  scene.revoke();
  REQUIRE(eventually([&] { return inside.load(); }));
  std::thread taker([&] {
    scene.session->on_notice(nullptr);
    CHECK(left);
    taken = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(taken);
  go_on.set_value();
  taker.join();
  CHECK(taken);
}

TEST_CASE("Session: a handler may destroy its session") {
  Scene scene;
  std::atomic<bool> done{false};
  scene.session->on_notice([&](const LeaseNotice&) {
    scene.session.reset();
    done = true;
  });
  scene.revoke();
  CHECK(eventually([&] { return done.load(); }));
  CHECK(scene.lease->info().error().code == ErrorCode::unavailable);
}

TEST_CASE("Session: without a handler notices wait, in their order, and a descriptor says so") {
  Scene scene;
  CHECK_FALSE(is_readable(scene.session->notice_fd()));
  CHECK_FALSE(scene.session->next_notice().has_value());
  scene.revoke("rack 4");
  scene.gateway.fence(scene.lease->id().value, "grace over");
  CHECK(eventually([&] { return scene.lease->state() == LeaseState::lost; }));
  REQUIRE(eventually([&] { return is_readable(scene.session->notice_fd()); }));
  const auto revoking = scene.session->next_notice();
  REQUIRE(revoking.has_value());
  CHECK(revoking->state == LeaseState::revoking);
  CHECK(revoking->reason == "rack 4");
  CHECK(revoking->grace_ns <= 60 * ns_per_s);
  CHECK(revoking->grace_ns > 0);
  REQUIRE(eventually([&] { return is_readable(scene.session->notice_fd()); }));
  CHECK(scene.session->next_notice()->state == LeaseState::lost);
  CHECK_FALSE(is_readable(scene.session->notice_fd()));
  CHECK_FALSE(scene.session->next_notice().has_value());
}

TEST_CASE("Session: the child of a fork can destroy its copy while the parent's handler waits") {
  Scene scene;
  std::promise<void> go_on;
  std::atomic<bool> inside{false};
  scene.session->on_notice([&, until = go_on.get_future().share()](const LeaseNotice&) {
    inside = true;
    until.wait();
  });
  scene.revoke();
  REQUIRE(eventually([&] { return inside.load(); }));
  std::thread taker([&] { scene.session->on_notice(nullptr); });
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);  // ends it if it hangs
    scene.session->on_notice([](const LeaseNotice&) {});
    const bool nothing = !scene.session->next_notice().has_value();
    scene.session.reset();
    ::_exit(nothing ? 0 : 1);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  go_on.set_value();
  taker.join();
}

TEST_CASE("NoticeQueue: a handler gets what waited for it, then what comes, one at a time") {
  auto queue = NoticeQueue::make();
  REQUIRE(queue.ok());
  for (uint64_t lease = 1; lease <= 5; ++lease) (*queue)->post(notice_of(lease, LeaseState::lost));
  CHECK(is_readable((*queue)->fd()));
  std::mutex mutex;
  std::vector<uint64_t> seen;
  std::atomic<int> running{0};
  (*queue)->set_handler([&](const LeaseNotice& notice) {
    CHECK(++running == 1);
    {
      const std::lock_guard lock(mutex);
      seen.push_back(notice.lease.value);
    }
    --running;
  });
  CHECK_FALSE(is_readable((*queue)->fd()));
  CHECK_FALSE((*queue)->next().has_value());
  for (uint64_t lease = 6; lease <= 9; ++lease) (*queue)->post(notice_of(lease, LeaseState::lost));
  CHECK(eventually([&] {
    const std::lock_guard lock(mutex);
    return seen == std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9};
  }));
  (*queue)->close();
}

TEST_CASE("NoticeQueue: what nobody takes is bounded, the oldest goes, and move requests do not pile up") {
  auto queue = NoticeQueue::make();
  REQUIRE(queue.ok());
  for (int i = 0; i < 3; ++i) (*queue)->post(notice_of(1, LeaseState::live, true));
  CHECK((*queue)->next()->move_requested);
  CHECK_FALSE((*queue)->next().has_value());
  constexpr uint64_t more = 10;
  for (uint64_t lease = 1; lease <= NoticeQueue::notices_max + more; ++lease)
    (*queue)->post(notice_of(lease, LeaseState::lost));
  CHECK((*queue)->next()->lease.value == more + 1);
  (*queue)->close();
  (*queue)->post(notice_of(1, LeaseState::lost));
  CHECK_FALSE(is_readable((*queue)->fd()));
}
