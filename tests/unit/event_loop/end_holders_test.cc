// SPDX-License-Identifier: Apache-2.0
// Leases whose holders are ended at a fence: they are, before their memory is touched, and a fence does not go on without it.
#include <doctest/doctest.h>

#include "tests/unit/event_loop/stepped_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::SteppedFixture;

namespace {

// Writes down what it is asked for among the backend's calls; an ending takes as long as the test says.
class RecordingEnder final : public HolderEnder {
 public:
  explicit RecordingEnder(std::vector<std::string>& order) : order_(order) {}
  ~RecordingEnder() noexcept override {}

  kj::Promise<HoldersEnded> end_holders(const std::string& object) override {
    order_.push_back("end " + object);
    if (!held) return result;
    auto pair = kj::newPromiseAndFulfiller<HoldersEnded>();
    waiting = kj::mv(pair.fulfiller);
    return kj::mv(pair.promise);
  }
  void forget(const std::string& object) override { order_.push_back("forget " + object); }

  bool held = false;
  HoldersEnded result;
  kj::Own<kj::PromiseFulfiller<HoldersEnded>> waiting;

 private:
  std::vector<std::string>& order_;
};

struct EndingFixture : SteppedFixture {
  void begin(EngineOptions options = quiet()) {
    start(std::move(options));
    engine->set_holder_ender(&ender);
    engine->events().listen([this](const Event& event) { told.push_back(event); });
    compose();
  }
  LeaseRow grant_kill() {
    Grant request = grant_of(2 * mib);
    request.on_fence = OnFence::kill;
    const LeaseRow lease = grant(std::move(request));
    memory.order.clear();
    return lease;
  }
  bool tells(EventKind kind, const std::string& text) const {
    for (const Event& event : told)
      if (event.kind == kind && event.message.find(text) != std::string::npos) return true;
    return false;
  }

  std::vector<Event> told;
  RecordingEnder ender{memory.order};
};

HoldersEnded not_ended() {
  return {Error{.code = ErrorCode::busy,
                .where = "end_holders",
                .detail = std::string("python3[77] (state D) ") + holder_not_ended + " 10s"},
          {}};
}

}  // namespace

TEST_CASE("Engine: holders are ended before their memory is taken, and only then is it erased and free") {
  EndingFixture fixture;
  fixture.begin();
  const LeaseRow lease = fixture.grant_kill();
  fixture.ender.held = true;
  REQUIRE(fixture.submit(Revoke{lease.id, "needed", 0, fixture.clock.now_ns()}).ok());
  fixture.turn();
  CHECK(fixture.memory.order == std::vector<std::string>{"end " + lease.object});
  CHECK(fixture.is(lease.id, LeasePhase::fencing));
  fixture.ender.waiting->fulfill(HoldersEnded{{}, {"python3[77]"}});
  fixture.turn();
  CHECK(fixture.memory.order == std::vector<std::string>{"end " + lease.object, "fence " + lease.object,
                                                         "scrub " + lease.object, "forget " + lease.object});
  CHECK(fixture.lease(lease.id) == nullptr);
  CHECK(fixture.tells(EventKind::lease_holder_ended, "python3[77] was ended"));
}

TEST_CASE("Engine: nobody is asked to end for a lease whose holders go on") {
  EndingFixture fixture;
  fixture.begin();
  const LeaseRow lease = fixture.grant(fixture.grant_of(2 * mib));
  fixture.memory.order.clear();
  REQUIRE(fixture.submit(Revoke{lease.id, "needed", 0, fixture.clock.now_ns()}).ok());
  fixture.turn();
  CHECK(fixture.memory.order.front() == "fence " + lease.object);
}

TEST_CASE("Engine: holders are ended before a lease's bytes are handed to another tenant") {
  EndingFixture fixture;
  fixture.begin();
  const LeaseRow lease = fixture.grant_kill();
  fixture.ender.held = true;
  auto transfer =
      fixture.engine->submit(Transfer{lease.id, "", "other", "", fixture.clock.now_ns()}, {"tester"});
  CHECK(!fixture.answered(transfer));
  CHECK(fixture.memory.order == std::vector<std::string>{"end " + lease.object});
  fixture.ender.waiting->fulfill(HoldersEnded{});
  REQUIRE(fixture.answered(transfer));
  CHECK(transfer.wait(fixture.scope).ok());
  CHECK(fixture.memory.order ==
        std::vector<std::string>{"end " + lease.object, "rebind " + lease.object, "forget " + lease.object});
  CHECK(fixture.lease(lease.id)->on_fence == OnFence::kill);
}

TEST_CASE("Engine: a holder that does not end keeps its lease in quarantine, by name, until it has") {
  EndingFixture fixture;
  EngineOptions options = EndingFixture::quiet();
  options.housekeeping_ns = ns_per_s;
  fixture.begin(options);
  const LeaseRow lease = fixture.grant_kill();
  fixture.ender.result = not_ended();
  REQUIRE(fixture.submit(Revoke{lease.id, "needed", 0, fixture.clock.now_ns()}).ok());
  fixture.turn();
  REQUIRE(fixture.is(lease.id, LeasePhase::quarantined));
  CHECK(fixture.lease(lease.id)->reason.find("python3[77] (state D)") != std::string::npos);
  fixture.pass(3 * ns_per_s);
  CHECK(fixture.memory.calls["fence"] == 0);
  CHECK(fixture.is(lease.id, LeasePhase::quarantined));

  SUBCASE("of this run of the manager") {}
  SUBCASE("of an earlier run") {
    fixture.start(options);
    fixture.engine->set_holder_ender(&fixture.ender);
    fixture.pass(3 * ns_per_s);
    CHECK(fixture.is(lease.id, LeasePhase::quarantined));
  }
  fixture.ender.result = HoldersEnded{{}, {"python3[77]"}};
  fixture.pass(3 * ns_per_s);
  CHECK(fixture.memory.calls["fence"] == 1);
  CHECK(fixture.lease(lease.id) == nullptr);
}

TEST_CASE("Engine: an ending that passing trouble holds up is asked for again, and nothing is fenced before") {
  EndingFixture fixture;
  fixture.begin();
  const LeaseRow lease = fixture.grant_kill();
  fixture.ender.result.status = os_error(EAGAIN, "end_holders", "planted");
  REQUIRE(fixture.submit(Revoke{lease.id, "needed", 0, fixture.clock.now_ns()}).ok());
  fixture.pass(1500 * ns_per_ms);
  CHECK(fixture.memory.calls["fence"] == 0);
  CHECK(fixture.is(lease.id, LeasePhase::fencing));
  fixture.ender.result = HoldersEnded{};
  fixture.pass(2 * ns_per_s);
  CHECK(fixture.lease(lease.id) == nullptr);
}

TEST_CASE("Engine: a fence that a manager did not finish begins with the holders again") {
  EndingFixture fixture;
  fixture.begin();
  const LeaseRow lease = fixture.grant_kill();
  fixture.ender.held = true;
  REQUIRE(fixture.submit(Revoke{lease.id, "needed", 0, fixture.clock.now_ns()}).ok());
  fixture.turn();
  fixture.memory.order.clear();
  fixture.ender.held = false;
  // As after a crash between the killing and the fence. The ender is there before the start, as the manager has it.
  fixture.watcher.engine = nullptr;
  fixture.engine.reset();
  fixture.jobs.forget_names();
  EngineOptions options = EndingFixture::quiet();
  options.job_queues = &fixture.jobs;
  fixture.engine =
      std::make_unique<Engine>(fixture.store, fixture.memory, fixture.clock, fixture.timer, options);
  fixture.engine->set_holder_ender(&fixture.ender);
  REQUIRE(fixture.answer(fixture.engine->start()).ok());
  fixture.turn();
  CHECK(fixture.memory.order.front() == "end " + lease.object);
  CHECK(fixture.lease(lease.id) == nullptr);
}
