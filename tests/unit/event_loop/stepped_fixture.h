// SPDX-License-Identifier: Apache-2.0
// An engine whose time and workers are the test's: nothing happens by itself, so that the order of what happens is what
// the test says, and waiting for a minute takes no time.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/units.h"
#include "tests/unit/event_loop/engine_fixture.h"
#include "tests/unit/event_loop/failing_backend.h"

namespace terrace::test {

// The workers' queues, by name; the second "bulk", that of another host's lane, is "bulk 2". What is held waits until the
// test lets it go.
class SteppedJobs final : public daemon::JobQueues {
 public:
  std::unique_ptr<daemon::JobQueue> make(const char* worker) override {
    const int number = ++made_[worker];
    return std::make_unique<Queue>(*this, number == 1 ? worker : worker + (" " + std::to_string(number)));
  }
  void forget_names() { made_.clear(); }  // another engine comes
  void hold(const std::string& worker) { held_.insert(worker); }
  void let_go(const std::string& worker) { held_.erase(worker); }
  size_t waiting(const std::string& worker) const {
    const auto at = waiting_.find(worker);
    return at == waiting_.end() ? 0 : at->second.size();
  }
  // Does the next job of that worker, held or not.
  void do_one(const std::string& worker) {
    auto& jobs = waiting_[worker];
    TERRACE_CHECK(!jobs.empty(), "the worker has a job");
    const std::function<void()> job = std::move(jobs.front());
    jobs.pop_front();
    job();
  }
  // Whether there was a job that is not held.
  bool do_any() {
    for (const auto& [worker, jobs] : waiting_) {
      if (jobs.empty() || held_.contains(worker)) continue;
      do_one(worker);
      return true;
    }
    return false;
  }

 private:
  class Queue final : public daemon::JobQueue {
   public:
    Queue(SteppedJobs& jobs, std::string worker) : jobs_(jobs), worker_(std::move(worker)) {}
    ~Queue() override { jobs_.waiting_[worker_].clear(); }
    void add(std::function<void()> job, bool, daemon::ShareKey) override {
      jobs_.waiting_[worker_].push_back(std::move(job));
    }
    bool on_loop() const override { return true; }

   private:
    SteppedJobs& jobs_;
    const std::string worker_;
  };

  std::map<std::string, std::deque<std::function<void()>>> waiting_;
  std::map<std::string, int> made_;
  std::set<std::string> held_;
};

// No command may reach a state that is lost: what it changes could become durable after the recovery.
class ServingWatcher final : public daemon::EngineWatcher {
 public:
  void applied(const daemon::Command&, const daemon::Step&, const daemon::StateMachine&) override {
    if (engine != nullptr && !engine->serving()) ++applied_to_lost;
  }
  void recovered(const daemon::Recovery&, const daemon::Observation&, const daemon::StateMachine&) override {}
  const daemon::Engine* engine = nullptr;
  int applied_to_lost = 0;
};

struct SteppedFixture {
  // Without a beat of its own: `gap_ns` is 0 unless a test is about gaps.
  static daemon::EngineOptions quiet() {
    daemon::EngineOptions options;
    options.housekeeping_ns = 0;
    options.gap_ns = 0;
    return options;
  }

  void start(daemon::EngineOptions options = quiet()) {
    const Status started = try_start(std::move(options));
    TERRACE_CHECK(started.ok(), "the fixture's engine starts");
  }
  Status try_start(daemon::EngineOptions options = quiet()) {
    watcher.engine = nullptr;
    engine.reset();
    jobs.forget_names();
    options.job_queues = &jobs;
    engine = std::make_unique<daemon::Engine>(store, memory, clock, timer, options);
    engine->set_notifier(&notifier);
    engine->set_watcher(&watcher);
    watcher.engine = engine.get();
    return answer(engine->start());
  }
  // All that is ready, until nothing is.
  void turn() {
    do {
      scope.poll();
    } while (jobs.do_any());
  }
  // Time goes on, and whatever is due on the way is done when it is due.
  void pass(uint64_t ns) {
    const uint64_t end_ns = clock.now_ns() + ns;
    turn();
    for (;;) {
      uint64_t next_ns = end_ns;
      KJ_IF_MAYBE (event, timer.nextEvent())
        next_ns = std::min(end_ns, offset_ns + static_cast<uint64_t>((*event - kj::origin<kj::TimePoint>()) /
                                                                     kj::NANOSECONDS));
      if (next_ns > clock.now_ns()) clock.advance_ns(next_ns - clock.now_ns());
      timer.advanceTo(kj::origin<kj::TimePoint>() +
                      static_cast<int64_t>(next_ns - offset_ns) * kj::NANOSECONDS);
      turn();
      if (next_ns >= end_ns) return;
    }
  }
  // As a suspended machine: the clock goes on, and no timer does.
  void sleep_through(uint64_t ns) {
    clock.advance_ns(ns);
    offset_ns += ns;
  }
  template <typename T>
  bool answered(kj::Promise<T>& promise) {
    turn();
    return promise.poll(scope);
  }
  template <typename T>
  T answer(kj::Promise<T> promise) {
    TERRACE_CHECK(answered(promise), "the engine answers without waiting for anything");
    return promise.wait(scope);
  }
  template <daemon::Asked C>
  Result<daemon::ReplyOf<C>> submit(C command) {
    return answer(engine->submit(std::move(command), {"tester"}));
  }
  void compose(bool both = false) {
    std::vector<std::string> serials = {"emu:a"};
    if (both) serials.push_back("emu:b");
    for (const std::string& serial : serials)
      TERRACE_CHECK(submit(daemon::AdoptDevice{serial, backend.kind_name, backend.device_bytes, 2 * mib}).ok(),
                    "adopted");
    TERRACE_CHECK(submit(daemon::CreatePool{"p", serials}).ok(), "created");
  }
  daemon::Grant grant_of(uint64_t bytes, uint64_t ttl_ns = 3600 * ns_per_s) const {
    daemon::Grant grant;
    grant.pool = "p";
    grant.tenant = "t";
    grant.host = "h";
    grant.bytes = bytes;
    grant.ttl_ns = ttl_ns;
    grant.now_ns = clock.now_ns();
    return grant;
  }
  daemon::LeaseRow grant(daemon::Grant request) {
    auto reply = submit(std::move(request));
    TERRACE_CHECK(reply.ok(), "granted");
    return reply->lease;
  }
  const daemon::LeaseRow* lease(LeaseId id) const { return engine->state().find_lease(id); }
  bool is(LeaseId id, daemon::LeasePhase phase) const {
    return lease(id) != nullptr && lease(id)->phase == phase;
  }
  // A commit that fails, and what comes of it, up to the moment at which the engine waits to recover.
  void break_store() {
    store.fail_commit = true;
    TERRACE_CHECK(!submit(daemon::SetQuota{{"somebody", 64 * mib, 1}, clock.now_ns()}).ok(), "it failed");
    store.fail_commit = false;
  }

  kj::EventLoop loop;
  kj::WaitScope scope{loop};
  ManualClock clock;
  uint64_t offset_ns = clock.now_ns();  // of the clock ahead of the timer
  kj::TimerImpl timer{kj::origin<kj::TimePoint>()};
  SteppedJobs jobs;
  MemoryStore store;
  MemoryBackend backend;
  RecordingNotifier notifier;
  ServingWatcher watcher;
  FailingBackend memory{backend};
  std::unique_ptr<daemon::Engine> engine;
};

}  // namespace terrace::test
