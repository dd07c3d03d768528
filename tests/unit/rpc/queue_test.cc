// SPDX-License-Identifier: Apache-2.0
// Grants that wait in the queue of a full pool: served, given up, joined by a retry, and never in others' way.
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

struct Queue : Rpc {
  using Rpc::Rpc;

  // A pool without room: `full` holds all of it.
  void fill(terrace::rpc::Admin::Client& operator_, terrace::rpc::TenantSession::Client& tenant) {
    make_pool(operator_);
    auto granted = grant(tenant, 128 * mib);
    REQUIRE(granted.getError().getCode() == 0);
    full = granted.getLease();
  }
  auto wait_for(terrace::rpc::TenantSession::Client& tenant, uint64_t bytes, uint64_t key = 0,
                uint64_t wait_ns = 60 * ns_per_s) {
    auto request = tenant.grantRequest();
    request.getRequest().setPool("p");
    request.getRequest().setBytes(bytes);
    request.getRequest().setWaitNs(wait_ns);
    request.getRequest().setRequestLow(key);
    return request.send();
  }
  uint64_t waiting() { return engine->state().pool_use(engine->state().find_pool("p")->id).waiting; }
  // Turns the loop until so many wait, at most five seconds: on a busy machine a call takes its time.
  bool come_to_wait(uint64_t count) {
    for (int i = 0; i < 5000 && waiting() != count; ++i) pump(1);
    return waiting() == count;
  }

  terrace::rpc::Lease::Client full = nullptr;
};

}  // namespace

TEST_CASE("Queue: a grant that waits is served when room comes, and is seen waiting until then") {
  Queue t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.fill(operator_, tenant);
  auto waiting = t.wait_for(tenant, 8 * mib);
  CHECK(t.come_to_wait(1));
  CHECK(t.call(operator_.statusRequest()).getServer().getWaiting() == 1);
  CHECK(t.call(operator_.poolsRequest()).getPools()[0].getWaitingBytes() == 8 * mib);
  const auto leases = t.call(operator_.leasesRequest());
  REQUIRE(leases.getLeases().size() == 2);
  CHECK(leases.getLeases()[1].getPhase() == terrace::rpc::LeasePhase::WAITING);
  CHECK(t.call(tenant.listRequest()).getLeases().size() == 1);  // it has not been granted
  CHECK(
      t.attach(tenant, leases.getLeases()[1].getId(), terrace::rpc::Access::READ_WRITE).getError().getCode() ==
      code(ErrorCode::not_found));
  CHECK(t.call(t.full.releaseRequest()).getError().getCode() == 0);
  const auto granted = waiting.wait(t.io.waitScope);
  REQUIRE(granted.getError().getCode() == 0);
  CHECK(granted.getInfo().getBytes() == 8 * mib);
  CHECK(granted.getInfo().getPhase() == terrace::rpc::LeasePhase::ACTIVE);
  CHECK(t.waiting() == 0);
}

TEST_CASE("Queue: a client that gives its request up leaves the queue") {
  Queue t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.fill(operator_, tenant);
  {
    auto waiting = t.wait_for(tenant, 8 * mib);
    CHECK(t.come_to_wait(1));
  }
  CHECK(t.come_to_wait(0));
  CHECK(t.service->waiting_grants().size() == 0);
}

TEST_CASE("Queue: a client that goes away leaves the queue") {
  Queue t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.fill(operator_, tenant);
  {
    FixtureClient other(t, 1000, 2);
    auto its = t.session(other);
    auto waiting = t.wait_for(its, 8 * mib).ignoreResult().eagerlyEvaluate([](kj::Exception&&) {});
    CHECK(t.come_to_wait(1));
  }
  CHECK(t.come_to_wait(0));
  CHECK(t.service->waiting_grants().size() == 0);
}

TEST_CASE("Queue: a retry joins the request that waits, and keeps it when the first one is given up") {
  Queue t;
  FixtureClient client(t, 0, 1), again(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.fill(operator_, tenant);
  auto first = kj::heap(t.wait_for(tenant, 8 * mib, 77).ignoreResult());
  CHECK(t.come_to_wait(1));
  auto retrying = t.session(again);
  auto second = t.wait_for(retrying, 8 * mib, 77);
  t.pump(5);
  CHECK(t.waiting() == 1);
  first = nullptr;
  t.pump(5);
  CHECK(t.waiting() == 1);
  CHECK(t.call(t.full.releaseRequest()).getError().getCode() == 0);
  CHECK(second.wait(t.io.waitScope).getError().getCode() == 0);
}

TEST_CASE("Queue: retrying and giving up a thousand times leaves nothing behind") {
  Queue t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.fill(operator_, tenant);
  auto first = kj::heap(t.wait_for(tenant, 8 * mib, 77).ignoreResult());
  CHECK(t.come_to_wait(1));
  const uint64_t commands = t.engine->counters().commands;
  for (int i = 0; i < 1000; ++i) {
    auto retry = t.wait_for(tenant, 8 * mib, 77);
    t.io.provider->getTimer().afterDelay(0 * kj::NANOSECONDS).wait(t.io.waitScope);
  }
  CHECK(t.engine->counters().commands - commands < 10);
  CHECK(t.waiting() == 1);
}

TEST_CASE("Queue: those that wait are not among a connection's calls") {
  daemon::ServiceOptions options;
  options.calls_outstanding_max = 4;
  Queue t(options);
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.fill(operator_, tenant);
  std::vector<kj::Promise<void>> waiting;
  for (uint64_t i = 1; i <= 8; ++i) {
    waiting.push_back(t.wait_for(tenant, 8 * mib).ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
    CHECK(t.come_to_wait(i));
  }
  CHECK(t.call(operator_.poolsRequest()).getError().getCode() == 0);
  CHECK(t.call(t.full.releaseRequest()).getError().getCode() == 0);
  for (auto& promise : waiting) promise.wait(t.io.waitScope);
  CHECK(t.waiting() == 0);
}

// A client whose time to wait was over asked once more, without: that call joined, could not be cancelled, and
// kept the request in the queue when the process had ended.
TEST_CASE("Queue: a repeat without a time to wait is answered at once, and keeps nothing in the queue") {
  Queue t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  t.fill(operator_, tenant);
  auto first = kj::heap(t.wait_for(tenant, 8 * mib, 77).ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
  CHECK(t.come_to_wait(1));
  const uint64_t id = t.call(operator_.queueRequest()).getWaiting()[0].getLease();
  {
    FixtureClient again(t, 0, 1);
    auto repeating = t.session(again);
    auto repeat = t.wait_for(repeating, 8 * mib, 77, 0);
    auto timely = repeat.then([](auto&& reply) { return std::string(reply.getError().getDetail().cStr()); })
                      .exclusiveJoin(t.io.provider->getTimer().afterDelay(5 * kj::SECONDS).then([] {
                        return std::string("no answer");
                      }));
    CHECK(timely.wait(t.io.waitScope) ==
          "it waits already, as request " + std::to_string(id) + "; ask with a time to wait to join it");
    CHECK(t.waiting() == 1);  // the other's
  }
  t.pump(5);
  CHECK(t.waiting() == 1);
  first = nullptr;
  CHECK(t.come_to_wait(0));
  CHECK(t.service->waiting_grants().size() == 0);
}

TEST_CASE("Queue: whatever order calls come in and end in, the last one that ends takes the request with it") {
  // Which of three calls for one request end first; each from a connection of its own, which closes with it.
  const std::vector<std::vector<size_t>> orders = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}};
  for (const std::vector<size_t>& order : orders) {
    Queue t;
    FixtureClient client(t, 0, 1);
    auto operator_ = t.admin(client);
    auto tenant = t.session(client);
    t.fill(operator_, tenant);
    struct Caller {
      explicit Caller(Queue& t) : client(t, 0, 1), session(t.session(client)) {}
      kj::Promise<void> call = nullptr;  // dropped last: its connection ends first, as when a process ends
      FixtureClient client;
      terrace::rpc::TenantSession::Client session;
    };
    const uint64_t waits_ns[] = {10 * ns_per_s, 0, 60 * ns_per_s};
    std::vector<std::unique_ptr<Caller>> callers;
    for (const uint64_t wait_ns : waits_ns) {
      callers.push_back(std::make_unique<Caller>(t));
      callers.back()->call = t.wait_for(callers.back()->session, 8 * mib, 77, wait_ns)
                                 .ignoreResult()
                                 .eagerlyEvaluate([](kj::Exception&&) {});
      CHECK(t.come_to_wait(1));
    }
    t.pump(5);
    for (size_t ended = 0; ended < order.size(); ++ended) {
      callers[order[ended]] = nullptr;
      t.pump(5);
      const bool some_wait = callers[0] != nullptr || callers[2] != nullptr;
      CHECK(t.come_to_wait(some_wait ? 1 : 0));
    }
    CHECK(t.service->waiting_grants().size() == 0);
  }
}

TEST_CASE("Queue: each call ends by its own time to wait, the request by the longest one's") {
  Queue t;
  FixtureClient client(t, 0, 1), again(t, 0, 1);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  auto other = t.session(again);
  t.fill(operator_, tenant);
  auto short_one = t.wait_for(tenant, 8 * mib, 77, 300 * ns_per_ms);
  CHECK(t.come_to_wait(1));
  auto long_one = t.wait_for(other, 8 * mib, 77, 20 * ns_per_s);
  auto short_again = t.wait_for(other, 8 * mib, 77, 300 * ns_per_ms);
  const auto refused = short_one.wait(t.io.waitScope);
  CHECK(refused.getError().getCode() == code(ErrorCode::capacity_exhausted));
  CHECK(std::string(refused.getError().getDetail().cStr()).find("waited 300 ms for 8 MiB") !=
        std::string::npos);
  CHECK(short_again.wait(t.io.waitScope).getError().getCode() == code(ErrorCode::capacity_exhausted));
  CHECK(t.waiting() == 1);
  const auto queue = t.call(operator_.queueRequest());
  REQUIRE(queue.getWaiting().size() == 1);
  CHECK(queue.getWaiting()[0].getCalls() == 1);
  CHECK(queue.getWaiting()[0].getEndsInNs() > 10 * ns_per_s);
  CHECK(t.call(t.full.releaseRequest()).getError().getCode() == 0);
  CHECK(long_one.wait(t.io.waitScope).getError().getCode() == 0);
}

TEST_CASE("Queue: an operator sees who waits, in order, and takes one out") {
  Queue t;
  FixtureClient client(t, 0, 1), stranger(t, 1000, 2);
  auto operator_ = t.admin(client);
  auto tenant = t.session(client);
  auto other = t.session(stranger);
  t.fill(operator_, tenant);
  auto first = t.wait_for(tenant, 128 * mib, 5);
  CHECK(t.come_to_wait(1));
  auto joined = t.wait_for(tenant, 128 * mib, 5);
  auto second = t.wait_for(tenant, 8 * mib);
  CHECK(t.come_to_wait(2));
  auto third = t.wait_for(other, 2 * mib);
  CHECK(t.come_to_wait(3));
  const auto all = t.call(operator_.queueRequest());
  REQUIRE(all.getWaiting().size() == 3);
  const auto next = all.getWaiting()[0], later = all.getWaiting()[1];
  CHECK(next.getPlace() == 1);
  CHECK(next.getBytes() == 128 * mib);
  CHECK(next.getCalls() == 2);
  CHECK(next.getPool() == "p");
  CHECK_FALSE(next.getTurn());  // others that fit are let in
  CHECK(next.getEndsInNs() > 50 * ns_per_s);
  CHECK(later.getPlace() == 2);
  CHECK(later.getBytes() == 2 * mib);  // one of each tenant in turn
  auto filtered = operator_.queueRequest();
  filtered.setTenant(later.getTenant());
  const auto one = t.call(filtered);
  REQUIRE(one.getWaiting().size() == 1);
  CHECK(one.getWaiting()[0].getPlace() == 2);
  auto unknown = operator_.queueRequest();
  unknown.setPool("nope");
  CHECK(t.call(unknown).getError().getCode() == code(ErrorCode::not_found));

  const auto cancel = [&](uint64_t lease, const char* reason) {
    auto request = operator_.cancelWaitingRequest();
    request.setLease(lease);
    request.setReason(reason);
    return t.call(request).getError().getCode();
  };
  CHECK(cancel(next.getLease(), "maintenance") == 0);
  for (auto* call : {&first, &joined}) {
    const auto refused = call->wait(t.io.waitScope);
    CHECK(refused.getError().getCode() == code(ErrorCode::cancelled));
    const std::string told = refused.getError().getDetail().cStr();
    CHECK(told.find("was taken out of the queue of pool p by uid 0 (test[1]): maintenance") !=
          std::string::npos);
  }
  CHECK(t.waiting() == 2);
  CHECK(cancel(next.getLease(), "") == code(ErrorCode::not_found));
  CHECK(cancel(1, "") == code(ErrorCode::busy));  // granted
  const auto audit = t.call(operator_.auditRequest());
  const auto entry = audit.getEntries()[audit.getEntries().size() - 1];
  CHECK(entry.getVerb() == "queue cancel");
  CHECK(entry.getActor() == "admin uid 0 (test[1])");
  CHECK(entry.getDetail() == "128 MiB of pool p: maintenance");
  CHECK(t.call(t.full.releaseRequest()).getError().getCode() == 0);
  CHECK(second.wait(t.io.waitScope).getError().getCode() == 0);
  CHECK(third.wait(t.io.waitScope).getError().getCode() == 0);
}
