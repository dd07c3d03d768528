// SPDX-License-Identifier: Apache-2.0
// libterrace's tiered ranges as programs use them.
#include "terrace/tiering.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "core/base/units.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_session.h"
#include "tests/support/skip.h"

using namespace terrace;
using namespace terrace::test;

namespace {

template <typename Value>
Value take(Result<Value> result) {
  REQUIRE_MESSAGE(result.ok(), (result.ok() ? std::string() : result.error().to_string()));
  return std::move(*result);
}

struct Ranges {
  explicit Ranges(TieringOptions options = {}) : session(gib), tiering(take(Tiering::start(options))) {}
  std::shared_ptr<Lease> lease(uint64_t bytes) {
    LeaseRequest request;
    request.bytes = bytes;
    return *session.grant(request);
  }
  FakeSession session;
  std::unique_ptr<Tiering> tiering;
};

// A session that hands on what was opened earlier, as a manager with more rights does.
class GivenSession final : public Session {
 public:
  GivenSession(Session& below, UniqueFd device) : below_(below), device_(std::move(device)) {}
  Result<std::shared_ptr<Lease>> grant(const LeaseRequest& request) override { return below_.grant(request); }
  using Session::attach;
  Result<std::shared_ptr<Lease>> attach(LeaseId id, const std::string& label, LeaseAccess access) override {
    return below_.attach(id, label, access);
  }
  Result<std::vector<LeaseInfo>> leases() override { return below_.leases(); }
  Result<std::vector<PoolInfo>> pools() override { return below_.pools(); }
  Result<UniqueFd> userfaultfd_device() override { return std::move(device_); }
  std::string tenant() const override { return below_.tenant(); }
  bool connected() const override { return true; }
  void on_notice(LeaseNoticeHandler handler) override { below_.on_notice(std::move(handler)); }

 private:
  Session& below_;
  UniqueFd device_;
};

void fill(std::span<std::byte> bytes) {
  auto* words = reinterpret_cast<uint64_t*>(bytes.data());
  for (uint64_t i = 0; i < bytes.size() / 8; ++i) words[i] = i * 0x9e3779b97f4a7c15u;
}

bool whole(std::span<std::byte> bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
  for (uint64_t i = 0; i < bytes.size() / 8; ++i)
    if (words[i] != i * 0x9e3779b97f4a7c15u) return false;
  return true;
}

}  // namespace

TEST_CASE("TieredRange: begins in DDR, goes on in the leases, and what is told to move moves with its bytes") {
  Ranges ranges;
  auto range = take(
      ranges.tiering->make_range({.bytes = 32 * mib, .ddr_bytes_max = 8 * mib, .name = "r", .policy = "static"},
                                 {ranges.lease(16 * mib), ranges.lease(16 * mib)}));
  CHECK(range->bytes().size() == 32 * mib);
  fill(range->bytes());
  CHECK(range->tier_of(range->bytes().data()) == Tier::ddr);
  CHECK(range->tier_of(range->bytes().data() + 8 * mib) == Tier::cxl);
  if (!ranges.tiering->can_migrate()) {
    TERRACE_SKIP(migration, ranges.tiering->why_not());
    return;
  }
  auto moved = range->move_to(range->bytes().first(6 * mib), Tier::cxl);
  REQUIRE(moved.ok());
  CHECK(*moved == 6 * mib);
  moved = range->move_to(range->bytes().subspan(20 * mib, 6 * mib), Tier::ddr);
  REQUIRE(moved.ok());
  CHECK(range->tier_of(range->bytes().data() + 22 * mib) == Tier::ddr);
  CHECK(whole(range->bytes()));
  auto too_much = range->move_to(range->bytes().first(6 * mib), Tier::ddr);
  REQUIRE_FALSE(too_much.ok());
  CHECK(too_much.error().code == ErrorCode::capacity_exhausted);
  CHECK(too_much.error().detail.find("6 MiB") != std::string::npos);
  const TieredRangeStatus status = range->status();
  CHECK(status.ddr_bytes == 8 * mib);
  CHECK(status.cxl_bytes == 24 * mib);
  CHECK(status.promotions == 3);
  CHECK(status.demotions == 3);
  CHECK(status.stalled_ns >= status.copy_ns);
}

TEST_CASE("TieredRange: with the default policy what is used rises and what is not sinks, every byte kept") {
  Ranges ranges({.session = nullptr, .round_ns = 20'000'000});
  if (!ranges.tiering->can_migrate()) {
    TERRACE_SKIP(migration, ranges.tiering->why_not());
    return;
  }
  auto range = take(ranges.tiering->make_range({.bytes = 64 * mib, .ddr_bytes_max = 16 * mib, .name = "hot"},
                                               {ranges.lease(64 * mib)}));
  fill(range->bytes());
  std::atomic<bool> stop{false};
  std::thread user([&] {
    volatile uint64_t sum = 0;
    const auto* words = reinterpret_cast<const volatile uint64_t*>(range->bytes().data() + 40 * mib);
    while (!stop)
      for (uint64_t i = 0; i < 8 * mib / 8; i += 512) sum = sum + words[i];
  });
  CHECK(eventually(
      [&] {
        for (uint64_t at = 40 * mib; at < 48 * mib; at += 2 * mib)
          if (range->tier_of(range->bytes().data() + at) != Tier::ddr) return false;
        return true;
      },
      std::chrono::seconds(60)));
  stop = true;
  user.join();
  CHECK(whole(range->bytes()));
  CHECK(range->status().ddr_bytes <= 16 * mib);
}

TEST_CASE("TieredRange: what is held stays until the last hold goes") {
  Ranges ranges;
  auto range = take(ranges.tiering->make_range({.bytes = 8 * mib, .ddr_bytes_max = 8 * mib, .policy = "static"},
                                               {ranges.lease(8 * mib)}));
  CHECK_FALSE(range->hold({}).ok());
  std::byte outside{};
  CHECK_FALSE(range->hold({&outside, 1}).ok());
  if (!ranges.tiering->can_migrate()) {
    TERRACE_SKIP(migration, ranges.tiering->why_not());
    return;
  }
  {
    Hold first = take(range->hold(range->bytes().subspan(3 * mib, 1)));
    Hold second = std::move(first);
    CHECK(*range->move_to(range->bytes().first(4 * mib), Tier::cxl) == 2 * mib);
    CHECK(range->tier_of(range->bytes().data() + 3 * mib) == Tier::ddr);
  }
  CHECK(*range->move_to(range->bytes().first(4 * mib), Tier::cxl) == 4 * mib);
}

TEST_CASE("TieredRange: wrong options are refused in words") {
  Ranges ranges;
  auto lease = ranges.lease(8 * mib);
  auto code = [&](const TieredRangeOptions& options) {
    auto range = ranges.tiering->make_range(options, {lease});
    REQUIRE_FALSE(range.ok());
    CHECK_FALSE(range.error().detail.empty());
    return range.error().code;
  };
  CHECK(code({.bytes = 0}) == ErrorCode::invalid_argument);
  CHECK(code({.bytes = mib, .granule_bytes = 12345}) == ErrorCode::invalid_argument);
  CHECK(code({.bytes = 10 * mib, .ddr_bytes_max = mib}) == ErrorCode::capacity_exhausted);
  CHECK(code({.bytes = mib, .name = "a\nb"}) == ErrorCode::invalid_argument);
  CHECK(code({.bytes = mib, .policy = "fastest"}) == ErrorCode::not_found);
  CHECK(code({.bytes = UINT64_MAX / 2, .ddr_bytes_max = UINT64_MAX / 2}) == ErrorCode::invalid_argument);
  REQUIRE(lease->release().ok());
  CHECK(code({.bytes = mib}) == ErrorCode::lease_expired);
}

TEST_CASE("TieredRange: memory nodes that are not there, or make no sense, are refused in words") {
  Ranges ranges;
  auto refused = [&](int ddr_node, int cxl_node, std::vector<std::shared_ptr<Lease>> leases = {}) {
    auto range = ranges.tiering->make_range(
        {.bytes = 8 * mib, .ddr_bytes_max = 4 * mib, .ddr_node = ddr_node, .cxl_node = cxl_node},
        std::move(leases));
    REQUIRE_FALSE(range.ok());
    return range.error();
  };
  CHECK(refused(0, 999).code == ErrorCode::not_found);
  CHECK(refused(0, 999).detail.find("node 999 is not online") != std::string::npos);
  CHECK(refused(0, 0).code == ErrorCode::invalid_argument);
  CHECK(refused(0, -1).code == ErrorCode::invalid_argument);
  CHECK(refused(-1, 0).code == ErrorCode::invalid_argument);
  CHECK(refused(0, -5).code == ErrorCode::invalid_argument);
  CHECK(refused(0, 999, {ranges.lease(8 * mib)}).code == ErrorCode::invalid_argument);
}

TEST_CASE("TieredRange: a lost lease stops the range; nobody else is disturbed") {
  Ranges ranges({.session = nullptr, .round_ns = 5'000'000});
  auto lease = ranges.lease(8 * mib);
  auto range =
      take(ranges.tiering->make_range({.bytes = 8 * mib, .ddr_bytes_max = 4 * mib, .name = "lost"}, {lease}));
  auto other = take(ranges.tiering->make_range({.bytes = 8 * mib, .ddr_bytes_max = 4 * mib, .name = "kept"},
                                               {ranges.lease(8 * mib)}));
  fill(other->bytes());
  REQUIRE(lease->release().ok());
  CHECK(eventually([&] { return range->status().state == TieringState::no_migration; }));
  CHECK(range->status().reason.find("lease") != std::string::npos);
  if (ranges.tiering->can_migrate()) CHECK(other->status().state == TieringState::running);
  CHECK(whole(other->bytes()));
}

TEST_CASE(
    "TieredRange: a lease that is fenced in the middle of a copy stops the range, by one thread or more") {
  for (uint32_t round = 0; round < 12; ++round) {
    Ranges ranges({.copy_bytes_per_s_max = 0, .batch_bytes_max = 16 * mib, .copy_threads = 1 + round % 2 * 3});
    if (!ranges.tiering->can_migrate()) {
      TERRACE_SKIP(migration, ranges.tiering->why_not());
      return;
    }
    auto lease = ranges.lease(32 * mib);
    auto range = take(ranges.tiering->make_range(
        {.bytes = 48 * mib, .ddr_bytes_max = 32 * mib, .name = "fenced", .policy = "static"}, {lease}));
    fill(range->bytes());
    std::thread fence([&] {
      ::usleep(5'000 + round * 2'300);
      CHECK(::ftruncate(lease->fd(), 0) == 0);
      ::usleep(1'000);
      CHECK(lease->release().ok());
    });
    const std::span<std::byte> part = range->bytes().first(16 * mib);
    Result<uint64_t> moved = uint64_t{0};
    for (uint64_t turn = 0; moved.ok(); ++turn)
      moved = range->move_to(part, turn % 2 == 0 ? Tier::cxl : Tier::ddr);
    fence.join();
    CHECK(range->move_to(part, Tier::cxl).error().code == ErrorCode::lease_expired);
    CHECK(range->status().state == TieringState::no_migration);
    // What lies in DDR is whole.
    const auto* words = reinterpret_cast<const uint64_t*>(range->bytes().data());
    for (uint64_t i = 0; i < range->bytes().size() / 8; ++i) {
      if (i % (2 * mib / 8) == 0 && range->tier_of(words + i) != Tier::ddr) {
        i += 2 * mib / 8 - 1;
        continue;
      }
      if (words[i] != i * 0x9e3779b97f4a7c15u) FAIL("word " << i << " of DDR is another");
    }
  }
}

TEST_CASE(
    "TieredRange: a fork while granules move: the parent's bytes stay, the child gets a signal where it "
    "touches them") {
  Ranges ranges({.session = nullptr, .copy_bytes_per_s_max = 0, .round_ns = 1'000'000});
  if (!ranges.tiering->can_migrate()) {
    TERRACE_SKIP(migration, ranges.tiering->why_not());
    return;
  }
  auto range = take(ranges.tiering->make_range(
      {.bytes = 16 * mib, .ddr_bytes_max = 8 * mib, .granule_bytes = 64 * kib, .policy = "static"},
      {ranges.lease(16 * mib)}));
  fill(range->bytes());
  std::atomic<bool> stop{false};
  std::thread mover([&] {
    while (!stop) {
      CHECK(range->move_to(range->bytes().first(4 * mib), Tier::cxl).ok());
      CHECK(range->move_to(range->bytes().first(4 * mib), Tier::ddr).ok());
    }
  });
  for (int i = 0; i < 60; ++i) {
    const uint64_t at = static_cast<uint64_t>(i) * 64 * kib % (4 * mib);
    const pid_t child = ::fork();
    if (child == 0) {
      struct rlimit none = {0, 0};
      ::setrlimit(RLIMIT_CORE, &none);
      ::signal(SIGSEGV, SIG_DFL);
      *reinterpret_cast<volatile uint64_t*>(range->bytes().data() + at) = 666;
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
  }
  stop = true;
  mover.join();
  CHECK(whole(range->bytes()));
}

TEST_CASE(
    "TieredRange: a lease that lies behind a range already is not put behind another, or twice behind one") {
  Ranges ranges;
  auto lease = ranges.lease(8 * mib);
  auto range = take(ranges.tiering->make_range({.bytes = 8 * mib, .ddr_bytes_max = 4 * mib}, {lease}));
  auto again = ranges.tiering->make_range({.bytes = 8 * mib, .ddr_bytes_max = 4 * mib}, {lease});
  REQUIRE_FALSE(again.ok());
  CHECK(again.error().code == ErrorCode::already_exists);
  auto other = ranges.lease(8 * mib);
  CHECK_FALSE(ranges.tiering->make_range({.bytes = 8 * mib}, {other, other}).ok());
  range.reset();
  CHECK(ranges.tiering->make_range({.bytes = 8 * mib, .ddr_bytes_max = 4 * mib}, {lease}).ok());
}

TEST_CASE("TieredRange: a child of fork may use and destroy its copies; the parent goes on") {
  Ranges ranges({.session = nullptr, .round_ns = 1'000'000});
  auto range = take(ranges.tiering->make_range(
      {.bytes = 16 * mib, .ddr_bytes_max = 8 * mib, .policy = "static"}, {ranges.lease(16 * mib)}));
  fill(range->bytes());
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    if (range->status().state != TieringState::no_migration) ::_exit(1);
    if (range->move_to(range->bytes(), Tier::cxl).ok()) ::_exit(2);
    range->announce(range->bytes(), 1);
    range.reset();
    ranges.tiering.reset();
    auto fresh = Tiering::start({});
    ::_exit(fresh.ok() ? 0 : 3);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  if (ranges.tiering->can_migrate()) {
    CHECK(range->move_to(range->bytes().first(4 * mib), Tier::cxl).ok());
    CHECK(range->move_to(range->bytes().first(4 * mib), Tier::ddr).ok());
  }
  CHECK(whole(range->bytes()));
}

TEST_CASE(
    "Tiering: without the right to handle kernel faults all works but moving; a Session's device fixes that") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(root, "needs root to become somebody else");
    return;
  }
  // In a child that gives its rights up: the descriptor of /dev/userfaultfd is opened before.
  const pid_t child = ::fork();
  if (child == 0) {
    FakeSession session(gib);
    auto device = session.userfaultfd_device();
    if (!device.ok()) ::_exit(77);
    if (::setgroups(0, nullptr) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(10);
    ::prctl(PR_SET_DUMPABLE, 1);  // or /proc/self stays root's
    auto plain = Tiering::start({});
    if (!plain.ok() || (*plain)->can_migrate()) ::_exit(11);
    if ((*plain)->why_not().find("userfaultfd") == std::string::npos) ::_exit(12);
    LeaseRequest request;
    request.bytes = 8 * mib;
    auto range = (*plain)->make_range({.bytes = 8 * mib, .ddr_bytes_max = 4 * mib}, {*session.grant(request)});
    if (!range.ok()) ::_exit(13);
    fill((*range)->bytes());
    if (!whole((*range)->bytes()) || (*range)->status().state != TieringState::no_migration) ::_exit(14);
    auto moved = (*range)->move_to((*range)->bytes(), Tier::cxl);
    if (moved.ok() || moved.error().code != ErrorCode::unsupported) ::_exit(15);
    GivenSession given(session, std::move(*device));
    auto able = Tiering::start({.session = &given});
    if (!able.ok() || !(*able)->can_migrate()) ::_exit(16);
    auto second = (*able)->make_range({.bytes = 8 * mib, .ddr_bytes_max = 8 * mib, .policy = "static"},
                                      {*session.grant(request)});
    if (!second.ok()) ::_exit(17);
    fill((*second)->bytes());
    if (!(*second)->move_to((*second)->bytes(), Tier::cxl).ok() || !whole((*second)->bytes())) ::_exit(18);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    TERRACE_SKIP(userfaultfd, "no /dev/userfaultfd on this machine");
    return;
  }
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
