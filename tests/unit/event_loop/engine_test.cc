// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <kj/vector.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "daemon/memory/machine/backend_set.h"
#include "tests/unit/event_loop/engine_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::EngineFixture;

namespace {

// A pool of memory whose objects are whole when their device comes back.
void compose_lasting(EngineFixture& fixture) {
  fixture.backend.lasting = true;
  fixture.start();
  REQUIRE(fixture.submit(AdoptDevice{"emu:a", "pmem", fixture.backend.device_bytes, 2 * mib}).ok());
  REQUIRE(fixture.submit(CreatePool{"p", {"emu:a"}}).ok());
}

// The kernel's clock, and jumps of it: what a process that was stopped sees of the time.
class JumpingClock final : public Clock {
 public:
  uint64_t now_ns() const override { return system_.now_ns() + jumped_ns; }
  uint64_t jumped_ns = 0;

 private:
  SystemClock system_;
};

}  // namespace

TEST_CASE("Engine: time in which the manager did not run ends no lease that is renewed then") {
  EngineFixture fixture;
  JumpingClock clock;
  fixture.start_with(clock);
  fixture.compose();
  Grant request = fixture.grant_of(2 * mib);
  request.ttl_ns = 2 * ns_per_s;
  const LeaseRow renewed = fixture.grant(request);
  const LeaseRow dead = fixture.grant(request);
  clock.jumped_ns += 30 * ns_per_s;
  CHECK(fixture.submit(Renew{renewed.id, "t", 60 * ns_per_s, clock.now_ns()}).ok());
  CHECK(fixture.engine->state().find_lease(dead.id)->phase == LeasePhase::active);
  for (const auto& [id, row] : fixture.engine->state().leases()) CHECK(row.expiry_ns > clock.now_ns());
  // Nobody renews the other one: it lapses when its TTL has passed while the manager ran.
  CHECK(fixture.eventually([&] { return fixture.engine->state().find_lease(dead.id) == nullptr; }));
  CHECK(fixture.engine->state().find_lease(renewed.id)->phase == LeasePhase::active);
}

TEST_CASE("Engine: renewals cost no commit, and a start gives no less than they promised") {
  EngineFixture fixture;
  JumpingClock clock;
  fixture.start_with(clock);
  fixture.compose();
  Grant request = fixture.grant_of(2 * mib);
  request.ttl_ns = 60 * ns_per_s;
  const LeaseRow lease = fixture.grant(request);
  REQUIRE(fixture.engine->settled().wait(fixture.io.waitScope).ok());
  const uint64_t commits = fixture.engine->counters().commits;
  for (int i = 0; i < 100; ++i) {
    clock.jumped_ns += ns_per_s / 10;
    CHECK(fixture.submit(Renew{lease.id, "t", 0, clock.now_ns()}).ok());
  }
  CHECK(fixture.engine->counters().commits == commits);
  const uint64_t promised_ns = fixture.engine->state().find_lease(lease.id)->expiry_ns;
  CHECK(promised_ns > lease.expiry_ns + 9 * ns_per_s);
  CHECK(fixture.submit(Renew{lease.id, "t", 50 * ns_per_s, clock.now_ns()}).ok());
  CHECK(fixture.engine->counters().commits == commits + 1);
  const uint64_t before_ns = clock.now_ns();
  fixture.start_with(clock);
  CHECK(fixture.engine->state().find_lease(lease.id)->expiry_ns >= before_ns + 50 * ns_per_s);
}

TEST_CASE("Engine: a snapshot that ends early is made anew, and not for ever") {
  EngineFixture fixture;
  fixture.start();
  auto* made = static_cast<std::atomic<int>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto fail_at_first = [made](int times) {
    return [made, times]() -> SnapshotProcess::Found {
      if (made->fetch_add(1) < times) ::_exit(3);
      return {"whole"};
    };
  };
  const auto found = fixture.engine->run_on_snapshot(fail_at_first(2)).wait(fixture.io.waitScope);
  REQUIRE(found.ok());
  CHECK(*found == SnapshotProcess::Found{"whole"});
  CHECK(made->exchange(0) == 3);
  CHECK(!fixture.engine->run_on_snapshot(fail_at_first(99)).wait(fixture.io.waitScope).ok());
  CHECK(*made == 3);
  ::munmap(made, 4096);
}

TEST_CASE("Engine: a manager that is stopped again and again still ends the leases of the dead") {
  EngineFixture fixture;
  JumpingClock clock;
  fixture.start_with(clock);
  fixture.compose();
  Grant request = fixture.grant_of(2 * mib);
  request.ttl_ns = 1 * ns_per_s;
  const LeaseRow dead = fixture.grant(request);
  CHECK(fixture.eventually([&] {  // it runs for 5 ms between the jumps
    clock.jumped_ns += 3 * ns_per_s;
    return fixture.engine->state().find_lease(dead.id) == nullptr;
  }));
}

TEST_CASE("Engine: a grant and its release are two commits, the record of the scrub goes with the next one") {
  EngineFixture fixture;
  fixture.backend.quick_bytes = 1 * gib;
  fixture.start({.housekeeping_ns = 0, .deferred_commit_ns = 60 * ns_per_s});
  fixture.compose();
  const uint64_t before = fixture.store.commits;
  for (int i = 0; i < 10; ++i) {
    const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
    REQUIRE(fixture.submit(Release{lease.id, "t", fixture.clock.now_ns()}).ok());
  }
  CHECK(fixture.store.commits - before == 20);
  CHECK(fixture.eventually([&] { return fixture.engine->state().leases().empty(); }));
  // A query shows nothing that a crash could undo: it makes the last record durable first.
  REQUIRE(fixture.engine->settled().wait(fixture.io.waitScope).ok());
  CHECK(fixture.store.load()->leases.empty());
}

TEST_CASE("Engine: the record of a scrub that nothing follows is durable soon by itself") {
  EngineFixture fixture;
  fixture.backend.quick_bytes = 1 * gib;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  REQUIRE(fixture.submit(Release{lease.id, "t", fixture.clock.now_ns()}).ok());
  CHECK(fixture.eventually([&] { return fixture.store.load()->leases.empty(); }));
}

TEST_CASE("Engine: commands that arrive in one turn of the loop share one commit") {
  EngineFixture fixture;
  fixture.backend.quick_bytes = 1 * gib;
  fixture.start();
  fixture.compose();
  const uint64_t before = fixture.store.commits;
  kj::Vector<kj::Promise<Result<LeaseReply>>> replies;
  for (int i = 0; i < 16; ++i) replies.add(fixture.engine->submit(fixture.grant_of(2 * mib)));
  for (auto& reply : replies) CHECK(reply.wait(fixture.io.waitScope).ok());
  CHECK(fixture.store.commits - before == 1);
}

TEST_CASE("Engine: slow carves run on a worker and are granted all the same") {
  EngineFixture fixture;  // quick_bytes is 0
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(4 * mib));
  CHECK(lease.phase == LeasePhase::active);
  REQUIRE(fixture.submit(Release{lease.id, "t", fixture.clock.now_ns()}).ok());
  CHECK(fixture.eventually([&] { return fixture.free_bytes() == fixture.backend.device_bytes; }));
}

TEST_CASE("Engine: who did what is in the audit log with the change itself") {
  EngineFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  CHECK_FALSE(fixture.submit(DeletePool{"p"}).ok());  // refused: no line
  REQUIRE(fixture.submit(Resize{lease.id, "t", 4 * mib, fixture.clock.now_ns()}).ok());
  REQUIRE(fixture.submit(Revoke{lease.id, "needed elsewhere", 0, fixture.clock.now_ns()}).ok());
  std::vector<std::string> verbs;
  const auto page = fixture.engine->audit({}).wait(fixture.io.waitScope);
  REQUIRE(page.ok());
  for (const AuditRow& row : page->rows) {
    CHECK(row.wall_ns > 0);
    CHECK(row.actor == "tester");
    verbs.push_back(row.verb);
  }
  CHECK(verbs == std::vector<std::string>{"device adopt", "pool create", "grant", "resize", "revoke"});
}

TEST_CASE("Engine: a vanished device takes its own leases with it, and their holders are told") {
  EngineFixture fixture;
  fixture.backend.quick_bytes = 1 * gib;
  fixture.start({.housekeeping_ns = 10 * ns_per_ms});
  fixture.compose(true);
  Grant large = fixture.grant_of(fixture.backend.device_bytes);
  const LeaseRow one = fixture.grant(large);
  const LeaseRow other = fixture.grant(large);
  const DeviceRow* lost = fixture.engine->state().find_device(one.extents.front().device);
  fixture.backend.unplug(lost->serial);
  CHECK(fixture.eventually([&] { return !fixture.notifier.fenced_leases.empty(); }));
  CHECK(fixture.notifier.fenced_leases.front() == std::pair{one.id, LeaseCause::device_lost});
  CHECK(fixture.eventually([&] {
    const LeaseRow* row = fixture.engine->state().find_lease(one.id);
    return row != nullptr && row->phase == LeasePhase::quarantined;
  }));
  CHECK(fixture.engine->state().find_lease(other.id)->phase == LeasePhase::active);

  fixture.backend.plug(lost->serial);
  CHECK(fixture.eventually([&] { return fixture.engine->state().find_lease(one.id) == nullptr; }));
  CHECK(fixture.free_bytes() == fixture.backend.device_bytes);
}

TEST_CASE(
    "Engine: a device is lost when whole looks do not show it for a while, and never by one that failed") {
  EngineFixture fixture;
  fixture.start({.housekeeping_ns = 0, .lost_after_ns = 100 * ns_per_ms});
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  const DeviceId device = lease.extents.front().device;
  const auto look = [&] { fixture.engine->look_at_devices().wait(fixture.io.waitScope); };
  fixture.backend.unplug("emu:a");
  fixture.backend.blind = true;
  for (int i = 0; i < 5; ++i) look();
  CHECK(!fixture.engine->state().absent(device));
  fixture.backend.blind = false;
  look();
  CHECK(!fixture.engine->state().absent(device));
  fixture.backend.plug("emu:a");
  look();
  fixture.backend.unplug("emu:a");
  look();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  look();
  CHECK(!fixture.engine->state().absent(device));  // it was there in between, and two looks may follow at once
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  look();
  CHECK(fixture.engine->state().absent(device));
}

TEST_CASE("Engine: a lease waits for a device that is late, and is reinstated where its memory is whole") {
  for (const bool whole : {true, false}) {
    CAPTURE(whole);
    EngineFixture fixture;
    compose_lasting(fixture);
    const LeaseRow lease = fixture.grant(fixture.grant_of(4 * mib));
    fixture.engine.reset();
    fixture.backend.unplug("emu:a");
    fixture.backend.hide_objects = true;
    fixture.start({.housekeeping_ns = 0, .return_settle_ns = 100 * ns_per_ms});
    REQUIRE(fixture.engine->state().find_lease(lease.id) != nullptr);
    CHECK(fixture.engine->state().find_lease(lease.id)->phase == LeasePhase::active);
    CHECK(fixture.engine->findings().size() == 2);
    const auto refused = fixture.submit(Transfer{lease.id, "t", "other", "", fixture.clock.now_ns()});
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == ErrorCode::unavailable);
    fixture.backend.plug("emu:a");
    const auto look = [&] { fixture.engine->look_at_devices().wait(fixture.io.waitScope); };
    look();
    CHECK(fixture.engine->state().absent(lease.extents.front().device));  // its object may be a moment later
    fixture.backend.hide_objects = !whole;
    for (int i = 0; i < 20 && !whole; ++i) look();  // a count alone means nothing
    if (!whole) CHECK(fixture.engine->state().absent(lease.extents.front().device));
    if (!whole) std::this_thread::sleep_for(std::chrono::milliseconds(110));
    look();
    CHECK(!fixture.engine->state().absent(lease.extents.front().device));
    const LeaseRow* now = fixture.engine->state().find_lease(lease.id);
    if (whole) {
      REQUIRE(now != nullptr);
      CHECK(now->phase == LeasePhase::active);
      CHECK(fixture.backend.usage(lease.object)->bytes == 4 * mib);
      CHECK(fixture.submit(Transfer{lease.id, "t", "other", "", fixture.clock.now_ns()}).ok());
    } else {
      CHECK(fixture.eventually([&] { return fixture.engine->state().find_lease(lease.id) == nullptr; }));
    }
  }
}

TEST_CASE(
    "Engine: a device whose leases' objects are not all found at the start is waited for like a late one") {
  EngineFixture fixture;
  compose_lasting(fixture);
  const LeaseRow lease = fixture.grant(fixture.grant_of(4 * mib));
  fixture.engine.reset();
  fixture.backend.hide_objects = true;  // the device is seen, what is on it is not
  fixture.start({.housekeeping_ns = 0});
  CHECK(fixture.engine->state().absent(lease.extents.front().device));
  CHECK(fixture.engine->state().find_lease(lease.id)->phase == LeasePhase::active);
  fixture.backend.hide_objects = false;
  fixture.engine->look_at_devices().wait(fixture.io.waitScope);
  CHECK(!fixture.engine->state().absent(lease.extents.front().device));
  CHECK(fixture.engine->state().find_lease(lease.id)->phase == LeasePhase::active);
}

TEST_CASE("Engine: the first start waits for memory of leases that outlasts absence, and not for long") {
  EngineFixture fixture;
  compose_lasting(fixture);
  const LeaseRow lease = fixture.grant(fixture.grant_of(4 * mib));
  fixture.engine.reset();
  fixture.backend.hide_objects = true;
  std::thread kernel([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    fixture.backend.hide_objects = false;
  });
  fixture.start({.settle_ns = 30 * ns_per_s, .housekeeping_ns = 0});
  kernel.join();
  CHECK(fixture.engine->state().find_lease(lease.id)->phase == LeasePhase::active);
  CHECK(fixture.engine->findings().empty());
  fixture.engine.reset();
  fixture.backend.unplug("emu:a");
  fixture.backend.hide_objects = true;
  const uint64_t begun_ns = fixture.clock.now_ns();
  fixture.start({.settle_ns = 300 * ns_per_ms, .housekeeping_ns = 0});
  CHECK(fixture.clock.now_ns() - begun_ns >= 300 * ns_per_ms);
  CHECK(fixture.engine->state().find_lease(lease.id)->phase == LeasePhase::active);
}

TEST_CASE("Engine: a start that cannot look at a lease's memory is refused, and ends no lease") {
  EngineFixture fixture;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(4 * mib));
  fixture.engine.reset();
  fixture.backend.blind = true;
  fixture.engine =
      std::make_unique<Engine>(fixture.store, fixture.backend, fixture.clock, fixture.io.provider->getTimer(),
                               EngineOptions{.housekeeping_ns = 0});
  const Status refused = fixture.engine->start().wait(fixture.io.waitScope);
  REQUIRE(!refused.ok());
  CHECK(refused.error().os_errno == EMFILE);
  fixture.engine.reset();
  fixture.backend.blind = false;
  fixture.start();
  CHECK(fixture.engine->state().find_lease(lease.id)->phase == LeasePhase::active);
}

TEST_CASE("Engine: an adoption that is refused leaves nothing behind") {
  EngineFixture fixture;
  fixture.start();
  fixture.backend.used = true;
  const AdoptDevice adopt{"emu:a", "emulated", fixture.backend.device_bytes, 2 * mib};
  const auto refused = fixture.engine->adopt(adopt, {"tester"}).wait(fixture.io.waitScope);
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK(fixture.engine->counters().commits == 0);
  CHECK(fixture.backend.take_overs == 0);
  CHECK(fixture.engine->state().devices().empty());
  fixture.backend.used = false;
  CHECK(fixture.engine->adopt(adopt, {"tester"}).wait(fixture.io.waitScope).ok());
  CHECK(fixture.backend.take_overs == 1);
}

TEST_CASE("Engine: a failed commit fails all that waited, a resize among them, and the engine recovers") {
  EngineFixture fixture;
  fixture.backend.quick_bytes = 1 * gib;
  fixture.start();
  fixture.compose();
  const LeaseRow lease = fixture.grant(fixture.grant_of(4 * mib));
  fixture.store.fail_commit = true;
  auto reply = fixture.submit(Resize{lease.id, "t", 2 * mib, fixture.clock.now_ns()});
  REQUIRE_FALSE(reply.ok());
  CHECK(reply.error().code == ErrorCode::unavailable);
  fixture.store.fail_commit = false;
  CHECK(fixture.eventually([&] { return fixture.engine->counters().recoveries == 2; }));
  CHECK(fixture.engine->state().find_lease(lease.id)->bytes == 4 * mib);
  CHECK(fixture.submit(Resize{lease.id, "t", 2 * mib, fixture.clock.now_ns()}).ok());
}

TEST_CASE("Engine: what the look around at the start finds is kept with the findings, and it looks once") {
  EngineFixture fixture;
  int looks = 0;
  size_t leases_seen = 99;
  fixture.engine =
      std::make_unique<Engine>(fixture.store, fixture.backend, fixture.clock, fixture.io.provider->getTimer(),
                               EngineOptions{.housekeeping_ns = 0});
  fixture.engine->set_start_check([&](const Image& image) {
    ++looks;
    leases_seen = image.leases.size();
    return std::vector<std::string>{"process 7 (x) still maps what was taken back"};
  });
  REQUIRE(fixture.engine->start().wait(fixture.io.waitScope).ok());
  CHECK(leases_seen == 0);
  REQUIRE(fixture.engine->findings().size() == 1);
  CHECK(fixture.engine->findings()[0] == "process 7 (x) still maps what was taken back");
  fixture.compose();
  fixture.store.fail_commit = true;
  REQUIRE_FALSE(fixture.submit(fixture.grant_of(2 * mib)).ok());
  fixture.store.fail_commit = false;
  CHECK(fixture.eventually([&] { return fixture.engine->counters().recoveries == 2; }));
  CHECK(looks == 1);
}

TEST_CASE("Engine: a start without the kind of memory that a lease has is refused, and gives nothing up") {
  terrace::test::MemoryBackend hardware;  // outlives the engines, as the sets do
  hardware.kind_name = "devdax";
  BackendSet all, less;
  EngineFixture fixture;
  const auto make_engine = [&fixture](Backend& backend) {
    return std::make_unique<Engine>(fixture.store, backend, fixture.clock, fixture.io.provider->getTimer(),
                                    EngineOptions{.housekeeping_ns = 0});
  };
  all.add(fixture.backend);
  all.add(hardware);
  less.add(fixture.backend);
  fixture.engine = make_engine(all);
  REQUIRE(fixture.engine->start().wait(fixture.io.waitScope).ok());
  REQUIRE(fixture.submit(AdoptDevice{"emu:a", "devdax", hardware.device_bytes, 2 * mib}).ok());
  REQUIRE(fixture.submit(CreatePool{"p", {"emu:a"}}).ok());
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  CHECK(lease.object == "devdax:lease-1");

  fixture.engine = make_engine(less);
  const Status refused = fixture.engine->start().wait(fixture.io.waitScope);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  CHECK(refused.error().detail.find("--no-hardware") != std::string::npos);
  REQUIRE(fixture.store.load()->leases.size() == 1);
  CHECK(fixture.store.load()->leases[0].phase == LeasePhase::active);

  fixture.engine = make_engine(all);
  REQUIRE(fixture.engine->start().wait(fixture.io.waitScope).ok());
  CHECK(fixture.engine->state().find_lease(lease.id)->phase == LeasePhase::active);
}

// The engine kept the caller, and the actor, of each cancelled grant until it failed or ended.
TEST_CASE("Engine: a waiting grant that is cancelled is answered, and nothing of it is kept") {
  EngineFixture fixture;
  fixture.start();
  fixture.compose();
  Grant request = fixture.grant_of(fixture.backend.device_bytes);
  (void)fixture.grant(fixture.grant_of(2 * mib));
  request.wait_ns = 60 * ns_per_s;
  auto waiting = fixture.engine->submit_grant(request, {"tester"});
  REQUIRE(waiting.queued.valid());
  REQUIRE(fixture.submit(CancelGrant{waiting.queued}).ok());
  REQUIRE(fixture.eventually([&] { return waiting.answer.poll(fixture.io.waitScope); }));
  const auto answer = waiting.answer.wait(fixture.io.waitScope);
  REQUIRE_FALSE(answer.ok());
  CHECK(answer.error().code == ErrorCode::cancelled);
}
