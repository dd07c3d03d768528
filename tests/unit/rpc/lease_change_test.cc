// SPDX-License-Identifier: Apache-2.0
// Leases that grow, shrink, move and change hands: which descriptor and which capability is good afterwards.
#include "tests/unit/rpc/rpc_fixture.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

using namespace terrace;
using namespace terrace::test;

namespace {

struct Changes : Rpc {
  // What was freed is erased first, at its own time.
  bool comes_to(terrace::rpc::Admin::Client& operator_, uint64_t bytes) {
    for (int tries = 0; tries < 1000 && free_bytes(operator_) != bytes; ++tries) pump(10);
    return free_bytes(operator_) == bytes;
  }
  int fd_of(capnp::Capability::Client client) {
    auto fd = client.getFd().wait(io.waitScope);
    KJ_IF_MAYBE (number, fd) {
      return *number;
    }
    FAIL("the capability carries no descriptor");
    return -1;
  }
  static uint64_t size_of(int fd) {
    struct stat info {};
    REQUIRE(::fstat(fd, &info) == 0);
    return static_cast<uint64_t>(info.st_size);
  }
  static char byte_of(int fd) {
    char byte = 0;
    return ::pread(fd, &byte, 1, 0) == 1 ? byte : '?';
  }
  static void put_byte(int fd, char byte) { REQUIRE(::pwrite(fd, &byte, 1, 0) == 1); }
  auto resize(terrace::rpc::Lease::Client& lease, uint64_t bytes) {
    auto request = lease.resizeRequest();
    request.setBytes(bytes);
    return call(request);
  }
  auto transfer(terrace::rpc::Lease::Client& lease, const char* tenant, const char* host = "") {
    auto request = lease.transferRequest();
    request.setTenant(tenant);
    request.setHost(host);
    return call(request);
  }
};

}  // namespace

TEST_CASE("Resize: the new capability's descriptor has the new length, growing and shrinking") {
  Changes t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  auto granted = t.grant(tenant, 4 * mib);
  auto lease = granted.getLease();
  t.put_byte(t.fd_of(lease), 'x');
  auto grown = t.resize(lease, 8 * mib);
  REQUIRE(grown.getError().getCode() == 0);
  CHECK(grown.getInfo().getBytes() == 8 * mib);
  auto longer = grown.getLease();
  CHECK(t.size_of(t.fd_of(longer)) == 8 * mib);
  CHECK(t.byte_of(t.fd_of(longer)) == 'x');
  auto shrunk = t.resize(longer, 2 * mib);
  REQUIRE(shrunk.getError().getCode() == 0);
  CHECK(t.size_of(t.fd_of(shrunk.getLease())) == 2 * mib);
  t.pump(50);
  CHECK(t.comes_to(operator_, 126 * mib));
  CHECK(t.call(operator_.checkRequest()).getProblems().size() == 0);
}

TEST_CASE("Lease: one that is attached read-only changes nothing") {
  Changes t;
  FixtureClient client(t, 0, 1), second(t, 0, 2);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto writer = t.session(client);
  auto reader = t.session(second);
  const uint64_t id = t.grant(writer, 4 * mib, terrace::rpc::LeaseMode::SHARED_READ_ONLY).getInfo().getId();
  auto attached = t.attach(reader, id, terrace::rpc::Access::READ_ONLY).getLease();
  CHECK(t.resize(attached, 8 * mib).getError().getCode() == code(ErrorCode::permission_denied));
  CHECK(t.transfer(attached, "other").getError().getCode() == code(ErrorCode::permission_denied));
  CHECK(t.call(attached.beginMoveRequest()).getError().getCode() == code(ErrorCode::permission_denied));
}

TEST_CASE("Transfer: the giver is fenced and its capability is dead, the taker finds the bytes") {
  Changes t;
  FixtureClient root(t, 0, 1), user(t, 1000, 2);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  auto giver = t.session(root);
  std::vector<CollectingListener::Notice> told;
  auto taker = t.session(user, told);
  auto granted = t.grant(giver, 2 * mib);
  const uint64_t id = granted.getInfo().getId();
  auto lease = granted.getLease();
  t.put_byte(t.fd_of(lease), 'x');
  auto given = t.transfer(lease, "uid-1000", "elsewhere");
  REQUIRE(given.getError().getCode() == 0);
  CHECK(std::string(given.getInfo().getTenant().cStr()) == "uid-1000");
  CHECK(std::string(given.getInfo().getHost().cStr()) == "elsewhere");
  CHECK(given.getInfo().getEpoch() > granted.getInfo().getEpoch());
  t.pump(20);
  REQUIRE(t.notices.size() == 1);
  CHECK(t.notices[0].fenced);
  CHECK(t.size_of(t.fd_of(lease)) == 0);
  CHECK(t.call(lease.infoRequest()).getError().getCode() == code(ErrorCode::not_found));
  CHECK(t.call(lease.renewRequest()).getError().getCode() == code(ErrorCode::not_found));
  CHECK(t.call(lease.releaseRequest()).getError().getCode() == code(ErrorCode::not_found));
  CHECK(t.attach(giver, id, terrace::rpc::Access::READ_WRITE).getError().getCode() ==
        code(ErrorCode::not_found));
  auto taken = t.attach(taker, id, terrace::rpc::Access::READ_WRITE);
  REQUIRE(taken.getError().getCode() == 0);
  CHECK(t.byte_of(t.fd_of(taken.getLease())) == 'x');
  CHECK(told.empty());
  CHECK(t.call(operator_.checkRequest()).getProblems().size() == 0);
}

// A tenant with a quota of 32 MiB and 4 leases had 320 MiB and 40 by giving them to names that it made up.
TEST_CASE("Transfer: a tenant's waits for the other one, which must exist") {
  Changes t;
  FixtureClient root(t, 0, 1), giver(t, 1000, 2), taker(t, 1001, 3);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  std::vector<CollectingListener::Notice> told;
  auto one = t.session(giver, told);
  auto two = t.session(taker);
  auto granted = t.grant(one, 2 * mib);
  const uint64_t id = granted.getInfo().getId();
  auto lease = granted.getLease();
  t.put_byte(t.fd_of(lease), 'x');
  for (const char* nobody : {"made-up", "uid-x", "uid-99999999999", "*"})
    CHECK(t.transfer(lease, nobody).getError().getCode() != 0);
  auto given = t.transfer(lease, "uid-1001");
  REQUIRE(given.getError().getCode() == 0);
  CHECK(given.getOffered());
  CHECK(std::string(given.getInfo().getTenant().cStr()) == "uid-1000");
  CHECK(std::string(given.getInfo().getOfferedTo().cStr()) == "uid-1001");
  CHECK(t.byte_of(t.fd_of(lease)) == 'x');
  CHECK(t.attach(two, id, terrace::rpc::Access::READ_WRITE).getError().getCode() == code(ErrorCode::not_found));
  CHECK(t.call(one.offersRequest()).getLeases().size() == 0);
  auto offers = t.call(two.offersRequest());
  REQUIRE(offers.getLeases().size() == 1);
  CHECK(offers.getLeases()[0].getId() == id);

  const auto accept = [&](terrace::rpc::TenantSession::Client& who) {
    auto request = who.acceptOfferRequest();
    request.setLease(id);
    return t.call(request);
  };
  CHECK(accept(one).getError().getCode() == code(ErrorCode::not_found));
  REQUIRE(t.call(lease.withdrawOfferRequest()).getError().getCode() == 0);
  CHECK(accept(two).getError().getCode() == code(ErrorCode::not_found));
  REQUIRE(t.transfer(lease, "uid-1001").getError().getCode() == 0);
  auto accepted = accept(two);
  REQUIRE(accepted.getError().getCode() == 0);
  CHECK(std::string(accepted.getInfo().getTenant().cStr()) == "uid-1001");
  t.pump(20);
  REQUIRE(told.size() == 1);
  CHECK(told[0].fenced);
  CHECK(t.size_of(t.fd_of(lease)) == 0);
  auto taken = t.attach(two, id, terrace::rpc::Access::READ_WRITE);
  REQUIRE(taken.getError().getCode() == 0);
  CHECK(t.byte_of(t.fd_of(taken.getLease())) == 'x');
  CHECK(t.call(operator_.checkRequest()).getProblems().size() == 0);
}

TEST_CASE("Transfer: a tenant gives its own leases only, and to nobody is no administrator") {
  Changes t;
  FixtureClient root(t, 0, 1), user(t, 1000, 2);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  auto owner = t.session(root);
  auto thief = t.session(user);
  const uint64_t id = t.grant(owner, 2 * mib).getInfo().getId();
  auto own = t.grant(thief, 2 * mib).getLease();
  CHECK(t.transfer(own, "").getError().getCode() == code(ErrorCode::invalid_argument));
  CHECK(t.attach(thief, id, terrace::rpc::Access::READ_WRITE).getError().getCode() ==
        code(ErrorCode::not_found));
  auto by_operator = operator_.transferRequest();
  by_operator.setLease(id);
  by_operator.setTenant("uid-1000");
  CHECK(t.call(by_operator).getError().getCode() == 0);
  CHECK(t.attach(thief, id, terrace::rpc::Access::READ_WRITE).getError().getCode() == 0);
}

TEST_CASE("Move: the holder copies and commits, as often as it asks it gets the new memory") {
  Changes t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  auto granted = t.grant(tenant, 4 * mib);
  auto lease = granted.getLease();
  t.put_byte(t.fd_of(lease), 'x');
  auto begun = t.call(lease.beginMoveRequest());
  REQUIRE(begun.getError().getCode() == 0);
  CHECK(begun.getBytes() == 4 * mib);
  auto move = begun.getMove();
  const int target = t.fd_of(move);
  CHECK(t.size_of(target) == 4 * mib);
  t.put_byte(target, 'x');
  auto moved = t.call(move.commitRequest());
  REQUIRE(moved.getError().getCode() == 0);
  CHECK(moved.getInfo().getId() == granted.getInfo().getId());
  CHECK(moved.getInfo().getEpoch() > granted.getInfo().getEpoch());
  CHECK(t.byte_of(t.fd_of(moved.getLease())) == 'x');
  auto again = t.call(move.commitRequest());
  REQUIRE(again.getError().getCode() == 0);
  CHECK(again.getInfo().getEpoch() == moved.getInfo().getEpoch());
  CHECK(t.call(move.abandonRequest()).getError().getCode() == code(ErrorCode::invalid_argument));
  t.pump(50);
  CHECK(t.size_of(t.fd_of(lease)) == 0);  // the old memory is fenced
  CHECK(t.notices.empty());               // and the mover knows
  CHECK(t.call(operator_.statusRequest()).getLeases() == 1);
  CHECK(t.comes_to(operator_, 124 * mib));
  // Who attaches now gets the new memory, not a descriptor that was kept.
  auto attached = t.attach(tenant, granted.getInfo().getId(), terrace::rpc::Access::READ_WRITE);
  REQUIRE(attached.getError().getCode() == 0);
  CHECK(t.byte_of(t.fd_of(attached.getLease())) == 'x');
}

TEST_CASE("Move: one that is dropped or given up leaves the lease where it was") {
  Changes t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  auto lease = t.grant(tenant, 4 * mib).getLease();
  t.put_byte(t.fd_of(lease), 'x');
  { auto dropped = t.call(lease.beginMoveRequest()); }
  t.pump(50);
  CHECK(t.comes_to(operator_, 124 * mib));
  auto move = t.call(lease.beginMoveRequest()).getMove();
  CHECK(t.call(move.abandonRequest()).getError().getCode() == 0);
  CHECK(t.call(move.abandonRequest()).getError().getCode() == 0);
  CHECK(t.call(move.commitRequest()).getError().getCode() == code(ErrorCode::cancelled));
  t.pump(50);
  CHECK(t.comes_to(operator_, 124 * mib));
  CHECK(t.byte_of(t.fd_of(lease)) == 'x');
  CHECK(t.call(lease.infoRequest()).getInfo().getPhase() == terrace::rpc::LeasePhase::ACTIVE);
}

TEST_CASE("Move: a client that goes away gives its move up") {
  Changes t;
  FixtureClient root(t, 0, 1);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  uint64_t id = 0;
  {
    FixtureClient user(t, 1000, 2);
    auto tenant = t.session(user);
    auto granted = t.grant(tenant, 4 * mib);
    id = granted.getInfo().getId();
    auto lease = granted.getLease();
    auto begun = t.call(lease.beginMoveRequest());
    REQUIRE(begun.getError().getCode() == 0);
    CHECK(t.service->move_under_way(LeaseId{id}));
  }
  t.pump(50);
  CHECK_FALSE(t.service->move_under_way(LeaseId{id}));
  CHECK(t.comes_to(operator_, 124 * mib));
}

TEST_CASE("Move: nobody else attaches a lease that is being moved, and none that several hold begins to move") {
  Changes t;
  FixtureClient client(t, 0, 1), second(t, 0, 2);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto one = t.session(client);
  std::vector<CollectingListener::Notice> told;
  auto two = t.session(second, told);
  auto granted = t.grant(one, 4 * mib, terrace::rpc::LeaseMode::SHARED_COHERENT);
  const uint64_t id = granted.getInfo().getId();
  auto lease = granted.getLease();
  {
    auto begun = t.call(lease.beginMoveRequest());
    REQUIRE(begun.getError().getCode() == 0);
    CHECK(t.attach(two, id, terrace::rpc::Access::READ_WRITE).getError().getCode() == code(ErrorCode::busy));
    CHECK(t.call(lease.beginMoveRequest()).getError().getCode() == code(ErrorCode::busy));
  }
  t.pump(50);
  REQUIRE(t.attach(two, id, terrace::rpc::Access::READ_WRITE).getError().getCode() == 0);
  CHECK(t.call(lease.infoRequest()).getInfo().getHolders() == 2);
  CHECK(t.call(lease.beginMoveRequest()).getError().getCode() == code(ErrorCode::busy));
}

TEST_CASE("Drain: a movable lease's one holder is asked, and shown as the one that was asked") {
  Changes t;
  FixtureClient client(t, 0, 7);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  auto request = tenant.grantRequest();
  request.getRequest().setPool("p");
  request.getRequest().setBytes(2 * mib);
  request.getRequest().setMovable(true);
  auto granted = t.call(request);
  const std::string device = granted.getInfo().getExtents()[0].getDevice().cStr();
  REQUIRE(t.with_serial(operator_.drainRequest(), device.c_str()).getError().getCode() == 0);
  CHECK(t.service->move_requested(LeaseId{granted.getInfo().getId()}, "its device is being drained"));
  t.pump(5);
  REQUIRE(t.notices.size() >= 1);
  CHECK(t.notices[0].move_requested);
  const auto reply = t.with_serial(operator_.progressRequest(), device.c_str());
  REQUIRE(reply.getProgress().getMoves().size() == 1);
  CHECK(std::string(reply.getProgress().getMoves()[0].getState().cStr()) == "asked its holder, test[7]");
  CHECK_FALSE(reply.getProgress().getMoves()[0].getBlocked());

  auto begun = t.call(granted.getLease().beginMoveRequest());
  REQUIRE(begun.getError().getCode() == 0);
  const auto moving = t.with_serial(operator_.progressRequest(), device.c_str());
  REQUIRE(moving.getProgress().getMoves().size() >= 1);
  CHECK(std::string(moving.getProgress().getMoves()[0].getState().cStr()) == "moving");
  auto moved = t.call(begun.getMove().commitRequest());
  REQUIRE(moved.getError().getCode() == 0);
  CHECK(std::string(moved.getInfo().getExtents()[0].getDevice().cStr()) != device);
  t.pump(50);
  CHECK(t.with_serial(operator_.progressRequest(), device.c_str()).getProgress().getMoves().size() == 0);
}

namespace {

// Where another thread waits until it may go on.
struct Gate {
  std::atomic<int> reached{0};
  std::atomic<bool> open{false};
  void pass() {
    ++reached;
    while (!open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

// A drain takes at once what no session has.
struct BusyDrains : Rpc {
  BusyDrains() : Rpc(Later{}) { engine_options = {.housekeeping_ns = 5 * ns_per_ms, .unheld_ns = 1}; }
  ~BusyDrains() { gate->open = true; }  // nothing waits for it when the engine's threads end
  auto ask(terrace::rpc::TenantSession::Client& tenant) {
    auto request = tenant.grantRequest();
    request.getRequest().setPool("p");
    request.getRequest().setBytes(2 * mib);
    request.getRequest().setMovable(true);
    return request.send();
  }
  void drain(terrace::rpc::Admin::Client& operator_) {
    const auto& leases = engine->state().leases();
    REQUIRE(leases.size() == 1);
    auto request = operator_.drainRequest();
    request.setSerial(engine->state().find_device(leases.begin()->second.extents[0].device)->serial);
    drained = request.send().ignoreResult();
  }
  void wait_until_reached() {
    for (int i = 0; i < 1000 && gate->reached == 0; ++i) pump(5);
    REQUIRE(gate->reached == 1);
  }

  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  kj::Promise<void> drained = kj::READY_NOW;
};

}  // namespace

TEST_CASE("Drain: a lease that is granted as its device begins to drain is handed over all the same") {
  BusyDrains t;
  t.store.during_commit = [gate = t.gate](const daemon::Delta& delta) {
    if (!delta.leases.empty()) gate->pass();
  };
  t.start();
  FixtureClient client(t, 0, 7);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  auto granted = t.ask(tenant);
  t.wait_until_reached();
  t.drain(operator_);
  t.pump(50);
  t.gate->open = true;
  auto answer = granted.wait(t.io.waitScope);
  CHECK_MESSAGE(answer.getError().getCode() == 0, std::string(answer.getError().getDetail()));
  CHECK(t.call(answer.getLease().infoRequest()).getInfo().getHolders() == 1);
}

TEST_CASE("Drain: a lease that is attached while the manager copies it stays, though it is let go of at once") {
  BusyDrains t;
  t.backend.during_copy = [gate = t.gate] { gate->pass(); };
  t.start();
  FixtureClient client(t, 0, 7);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  uint64_t id = 0;
  {
    auto tenant = t.session(client);
    id = t.ask(tenant).wait(t.io.waitScope).getInfo().getId();
    REQUIRE(id != 0);
  }
  t.drain(operator_);
  t.wait_until_reached();
  {
    auto tenant = t.session(client);
    auto attached = t.attach(tenant, id, terrace::rpc::Access::READ_WRITE);
    CHECK_MESSAGE(attached.getError().getCode() == 0, std::string(attached.getError().getDetail()));
  }
  t.pump(50);  // the session is over before the copy ends
  t.gate->open = true;
  for (int i = 0; i < 1000 && t.engine->counters().moves == 0; ++i) t.pump(5);
  CHECK(t.engine->counters().moves == 1);
  CHECK(t.gate->reached == 2);  // the second copy has what was stored meanwhile
}
