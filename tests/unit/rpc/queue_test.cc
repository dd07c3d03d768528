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
  auto wait_for(terrace::rpc::TenantSession::Client& tenant, uint64_t bytes, uint64_t key = 0) {
    auto request = tenant.grantRequest();
    request.getRequest().setPool("p");
    request.getRequest().setBytes(bytes);
    request.getRequest().setWaitNs(60 * ns_per_s);
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
