// SPDX-License-Identifier: Apache-2.0
// Many threads on one Session while the manager restarts, breaks connections and loses replies. Meant for the
// tsan preset too.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/prng.h"
#include "core/base/units.h"
#include "terrace/session.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_gateway.h"

using namespace terrace;
using test::FakeGateway;
using test::Fault;
using Milliseconds = std::chrono::milliseconds;

namespace {

std::unique_ptr<Session> connect(const FakeGateway& gateway) {
  SessionOptions options;
  options.socket_path = gateway.socket_path();
  options.call_timeout_ns = 60 * ns_per_s;
  auto session = Session::connect(options);
  REQUIRE_MESSAGE(session.ok(), session.error().to_string());
  return std::move(*session);
}

// What threads saw go wrong; doctest's macros stay on the main thread.
class Complaints {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    texts_.push_back(text);
  }
  void check(const char* what, const Status& status) {
    if (!status.ok()) add(std::string(what) + ": " + status.error().to_string());
  }
  std::string all() const {
    const std::lock_guard lock(mutex_);
    std::string joined;
    for (const std::string& text : texts_) joined += text + "\n";
    return joined;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

class Tenants {
 public:
  Tenants(Session& session, int threads, int rounds) {
    for (int number = 1; number <= threads; ++number)
      threads_.emplace_back(
          [this, &session, number, rounds] { live(session, static_cast<uint64_t>(number), rounds); });
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  bool done() const { return done_ == static_cast<int>(threads_.size()); }
  const Complaints& complaints() const { return complaints_; }
  size_t granted() {
    const std::lock_guard lock(mutex_);
    return ids_.size();
  }

 private:
  void live(Session& session, uint64_t seed, int rounds) {
    Prng prng(seed);
    for (int round = 0; round < rounds; ++round) {
      LeaseRequest request;
      request.bytes = prng.between(1, 4) * 2 * mib;
      request.ttl_ns = prng.chance(1, 2) ? 100 * ns_per_ms : 60 * ns_per_s;
      auto lease = session.grant(request);
      if (!lease.ok()) {
        complaints_.add("grant: " + lease.error().to_string());
        continue;
      }
      remember((*lease)->id());
      struct stat status {};
      if (::fstat((*lease)->fd(), &status) != 0 || static_cast<uint64_t>(status.st_size) != (*lease)->bytes())
        complaints_.add("a descriptor of the wrong size");
      use(session, **lease, prng);
      complaints_.check("release", (*lease)->release());
      if ((*lease)->state() != LeaseState::lost) complaints_.add("a released lease is not lost");
    }
    ++done_;
  }
  void use(Session& session, Lease& lease, Prng& prng) {
    for (uint64_t step = prng.below(5); step > 0; --step) {
      switch (prng.below(5)) {
        case 0: complaints_.check("renew", lease.renew()); break;
        case 1: complaints_.check("report_usage", lease.report_usage({.holder = "stress"})); break;
        case 2: {
          const auto info = lease.info();
          if (!info.ok())
            complaints_.add("info: " + info.error().to_string());
          else if (info->id != lease.id())
            complaints_.add("info of another lease");
          break;
        }
        case 3: {
          const auto leases = session.leases();
          if (!leases.ok()) complaints_.add("leases: " + leases.error().to_string());
          break;
        }
        default: {
          const auto again = session.attach(lease.id(), "", LeaseAccess::read_only);
          if (!again.ok()) complaints_.add("attach: " + again.error().to_string());
          break;
        }
      }
    }
  }
  void remember(LeaseId id) {
    const std::lock_guard lock(mutex_);
    if (!ids_.insert(id).second) complaints_.add("lease " + std::to_string(id.value) + " was granted twice");
  }

  std::mutex mutex_;
  std::set<LeaseId> ids_;
  Complaints complaints_;
  std::atomic<int> done_{0};
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("Session: many threads, a manager that restarts and loses replies: nothing fails and nothing leaks") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  std::atomic<int> notices{0};
  session->on_notice([&](const LeaseNotice&) { ++notices; });
  constexpr int threads = 6;
  constexpr int rounds = 300;
  Tenants tenants(*session, threads, rounds);
  Prng prng(2024);
  int restarts = 0;
  while (!tenants.done()) {
    std::this_thread::sleep_for(Milliseconds(prng.between(10, 400)));
    // One blow at a time: the client backs off after each, and calls must get through between them.
    if (!session->connected() || gateway.faults_pending()) continue;
    switch (prng.below(4)) {
      case 0:
        gateway.restart();
        ++restarts;
        break;
      case 1: gateway.drop_connections(); break;
      case 2: gateway.fail_next("grant", prng.chance(1, 2) ? Fault::drop_after : Fault::drop_before); break;
      default: gateway.fail_next("release", Fault::drop_after); break;
    }
  }
  tenants.join();
  CHECK_MESSAGE(tenants.complaints().all().empty(), tenants.complaints().all());
  CHECK(tenants.granted() == threads * rounds);
  CHECK(gateway.leases().empty());
  CHECK(notices == 0);
  CHECK(restarts > 0);
  MESSAGE("restarts ", restarts, ", connections ", gateway.connections(), ", grants sent ",
          gateway.calls("grant"));
  session->on_notice(nullptr);
}

TEST_CASE("Session: revocations meet calls from other threads, and every holder hears of its own") {
  FakeGateway gateway;
  gateway.start();
  auto session = connect(gateway);
  std::mutex mutex;
  std::set<uint64_t> told;
  session->on_notice([&](const LeaseNotice& notice) {
    const std::lock_guard lock(mutex);
    if (notice.state == LeaseState::lost) told.insert(notice.lease.value);
  });
  std::vector<std::shared_ptr<Lease>> leases;
  for (int i = 0; i < 40; ++i) {
    LeaseRequest request;
    request.bytes = 2 * mib;
    request.ttl_ns = 100 * ns_per_ms;
    auto lease = session->grant(request);
    REQUIRE(lease.ok());
    leases.push_back(std::move(*lease));
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (size_t number = 0; number < 4; ++number) {
    callers.emplace_back([&, number] {
      for (size_t i = number; !stop; ++i) {
        Lease& lease = *leases[i % leases.size()];
        const auto info = lease.info();
        const auto renewed = lease.renew();
        if (!info.ok() && info.error().code == ErrorCode::cancelled) return;
      }
    });
  }
  for (size_t i = 0; i < leases.size(); i += 2) {
    gateway.revoke(leases[i]->id().value, ns_per_s, "stress");
    gateway.fence(leases[i]->id().value, "stress");
    if (i % 10 == 0) gateway.drop_connections();
  }
  CHECK(test::eventually([&] {
    const std::lock_guard lock(mutex);
    return told.size() == leases.size() / 2;
  }));
  stop = true;
  for (std::thread& caller : callers) caller.join();
  for (size_t i = 0; i < leases.size(); ++i)
    CHECK(leases[i]->state() == (i % 2 == 0 ? LeaseState::lost : LeaseState::live));
  session->on_notice(nullptr);
}

TEST_CASE("Session: sessions start and end while their manager comes and goes") {
  FakeGateway gateway;
  gateway.start();
  std::atomic<bool> stop{false};
  std::atomic<int> connected{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] {
      SessionOptions options;
      options.socket_path = gateway.socket_path();
      options.call_timeout_ns = 50 * ns_per_ms;
      while (!stop) {
        auto session = Session::connect(options);
        if (!session.ok()) continue;
        ++connected;
        LeaseRequest request;
        request.bytes = 2 * mib;
        auto lease = (*session)->grant(request);
        if (lease.ok() && connected % 2 == 0) session->reset();  // the lease outlives it
        if (lease.ok()) (void)(*lease)->info().ok();
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(Milliseconds(15));
    gateway.restart();
  }
  CHECK(test::eventually([&] { return connected >= 20; }));
  stop = true;
  for (std::thread& thread : threads) thread.join();
}
