// SPDX-License-Identifier: Apache-2.0
// An engine over a memory store and backend on one event loop, driven by commands.
#pragma once

#include <kj/async-io.h>

#include <atomic>
#include <set>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "daemon/event_loop/engine.h"
#include "tests/support/memory_backend.h"
#include "tests/support/memory_store.h"

namespace terrace::test {

// What holders were told, and how many of them there are.
class RecordingNotifier final : public daemon::HolderNotifier {
 public:
  void revoking(LeaseId lease, uint64_t, const std::string&) override { revoked.push_back(lease); }
  void fenced(LeaseId lease, const std::string&, daemon::LeaseCause cause) override {
    fenced_leases.emplace_back(lease, cause);
  }
  size_t holders(LeaseId lease) const override { return held.count(lease) + (late == lease.value ? 1 : 0); }
  bool move_requested(LeaseId lease, const std::string&) override {
    asked.push_back(lease);
    return true;
  }

  kj::Promise<std::set<LeaseId>> nobody_has(std::set<LeaseId> leases) override {
    ++looks;
    std::set<LeaseId> found;
    for (const LeaseId lease : leases)
      if (nobodys.contains(lease)) found.insert(lease);
    return found;
  }

  std::set<LeaseId> nobodys;  // of which it is sure
  size_t looks = 0;
  std::vector<LeaseId> revoked, asked;
  std::vector<std::pair<LeaseId, daemon::LeaseCause>> fenced_leases;
  std::multiset<LeaseId> held;
  std::atomic<uint64_t> late{0};  // a lease that one more holds; may be set from another thread
};

struct EngineFixture {
  void start(daemon::EngineOptions options = {.housekeeping_ns = 0}) { start_with(clock, options); }
  void start_with(const Clock& its_clock, daemon::EngineOptions options = {.housekeeping_ns = 0}) {
    engine = std::make_unique<daemon::Engine>(store, backend, its_clock, io.provider->getTimer(), options);
    engine->set_notifier(&notifier);
    TERRACE_CHECK(engine->start().wait(io.waitScope).ok(), "the fixture's engine starts");
  }
  template <daemon::Asked C>
  Result<daemon::ReplyOf<C>> submit(C command) {
    return engine->submit(std::move(command), {"tester"}).wait(io.waitScope);
  }
  // Pool "p" of device "emu:a" and, if asked, "emu:b".
  void compose(bool both = false) {
    std::vector<std::string> serials = {"emu:a"};
    if (both) serials.push_back("emu:b");
    for (const std::string& serial : serials)
      TERRACE_CHECK(submit(daemon::AdoptDevice{serial, "emulated", backend.device_bytes, 2 * mib}).ok(),
                    "adopted");
    TERRACE_CHECK(submit(daemon::CreatePool{"p", serials}).ok(), "created");
  }
  daemon::Grant grant_of(uint64_t bytes) const {
    daemon::Grant grant;
    grant.pool = "p";
    grant.tenant = "t";
    grant.host = "h";
    grant.bytes = bytes;
    grant.now_ns = clock.now_ns();
    return grant;
  }
  daemon::LeaseRow grant(daemon::Grant request) {
    auto reply = submit(std::move(request));
    TERRACE_CHECK(reply.ok(), "granted");
    return reply->lease;
  }
  // Turns the loop until `holds`, at most a minute.
  template <typename Condition>
  bool eventually(Condition holds) {
    for (int i = 0; i < 12'000; ++i) {
      if (holds()) return true;
      io.provider->getTimer().afterDelay(5 * kj::MILLISECONDS).wait(io.waitScope);
    }
    return holds();
  }
  uint64_t free_bytes() const {
    return engine->state().pool_use(engine->state().find_pool("p")->id).free_bytes;
  }

  kj::AsyncIoContext io = kj::setupAsyncIo();
  SystemClock clock;
  MemoryStore store;
  MemoryBackend backend;
  RecordingNotifier notifier;
  std::unique_ptr<daemon::Engine> engine;
};

}  // namespace terrace::test
