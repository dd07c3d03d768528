// SPDX-License-Identifier: Apache-2.0
// Peers that take without giving: each case was found by attacking a running daemon.
#include <doctest/doctest.h>

#include <dirent.h>

#include "tests/support/manager_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

uint16_t code(ErrorCode value) {
  return static_cast<uint16_t>(value);
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

void hello(FixtureClient& client, kj::WaitScope& scope) {
  auto request = client.gateway.helloRequest();
  request.setOldest(1);
  request.setNewest(1);
  REQUIRE(request.send().wait(scope).getError().getCode() == 0);
}

rpc::TenantSession::Client session_with_lease(ManagerFixture& fixture, FixtureClient& client, uint64_t& lease,
                                              std::vector<CollectingListener::Notice>& notices) {
  auto& scope = fixture.io.waitScope;
  hello(client, scope);
  auto admin = client.gateway.openAdminRequest().send().wait(scope).getAdmin();
  auto adopt = admin.adoptRequest();
  adopt.setSerial("emu:a");
  adopt.send().wait(scope);
  auto create = admin.createPoolRequest();
  create.setName("p");
  create.initDevices(1).set(0, "emu:a");
  create.send().wait(scope);
  auto open = client.gateway.openSessionRequest();
  open.setListener(kj::heap<CollectingListener>(notices));
  auto session = open.send().wait(scope).getSession();
  auto grant = session.grantRequest();
  grant.getRequest().setPool("p");
  grant.getRequest().setBytes(2 * mib);
  auto granted = grant.send().wait(scope);
  REQUIRE(granted.getError().getCode() == 0);
  lease = granted.getInfo().getId();
  return session;
}

// A real client of which only the sending half works: what the manager answers is never taken from the pipe.
struct Deaf final : public kj::AsyncIoStream {
  explicit Deaf(kj::AsyncCapabilityStream& to_in) : to(to_in) {}
  kj::Promise<size_t> tryRead(void*, size_t, size_t) override { return kj::NEVER_DONE; }
  kj::Promise<void> write(const void* bytes, size_t size) override {
    sent += size;
    return to.write(bytes, size);
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    for (const auto piece : pieces) sent += piece.size();
    return to.write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return kj::NEVER_DONE; }
  void shutdownWrite() override {}
  kj::AsyncCapabilityStream& to;
  size_t sent = 0;
};

}  // namespace

TEST_CASE("Hostile: attaching one lease a thousand times costs one descriptor") {
  ManagerFixture fixture;
  fixture.start();
  FixtureClient client(fixture, 0, 1);
  std::vector<CollectingListener::Notice> notices;
  uint64_t lease = 0;
  auto session = session_with_lease(fixture, client, lease, notices);
  // The client's copies would count too: it does not take descriptors here.
  const size_t before = open_descriptors();
  std::vector<daemon::SharedFd> held;
  for (int i = 0; i < 1000; ++i) {
    auto memory = fixture.service->open_memory(fixture.engine->state().find_lease(LeaseId{lease})->object,
                                               daemon::ObjectAccess::read_only);
    REQUIRE(memory.ok());
    held.push_back(*memory);
  }
  CHECK(open_descriptors() <= before + 1);
}

TEST_CASE("Hostile: one that asks and never reads is not listened to any longer") {
  ManagerFixture fixture;
  fixture.start();
  auto pipe = fixture.io.provider->newCapabilityPipe();
  auto served = fixture.server->serve(kj::mv(pipe.ends[0]), {0, 1}).eagerlyEvaluate([](kj::Exception&&) {});
  Deaf deaf(*pipe.ends[1]);
  capnp::TwoPartyClient client(deaf);
  auto gateway = client.bootstrap().castAs<rpc::Gateway>();
  const uint64_t commands_before = fixture.engine->counters().commands;
  auto hello_request = gateway.helloRequest();
  hello_request.setOldest(1);
  hello_request.setNewest(1);
  std::vector<kj::Promise<void>> calls;
  calls.push_back(hello_request.send().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
  auto admin = gateway.openAdminRequest().send().getAdmin();  // pipelined: needs no answer
  for (int i = 0; i < 2000; ++i) {
    auto adopt = admin.adoptRequest();
    adopt.setSerial("emu:a");
    calls.push_back(adopt.send().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
  }
  // Only what was taken in before the first answer had to wait: later nothing more. A busy machine may begin late.
  uint64_t taken = 0;
  for (int i = 0; i < 50; ++i) {
    fixture.io.provider->getTimer().afterDelay(200 * kj::MILLISECONDS).wait(fixture.io.waitScope);
    const uint64_t now = fixture.engine->counters().commands - commands_before;
    if (now == std::exchange(taken, now) && now != 0) break;
  }
  CHECK(taken < 2000);
  fixture.io.provider->getTimer().afterDelay(400 * kj::MILLISECONDS).wait(fixture.io.waitScope);
  CHECK(fixture.engine->counters().commands - commands_before == taken);
  // Others are served as ever.
  FixtureClient other(fixture, 0, 2);
  hello(other, fixture.io.waitScope);
}

TEST_CASE("Hostile: one that takes no answers is closed after a while") {
  ManagerFixture fixture;
  fixture.options.write_stall_ns_max = 200 * ns_per_ms;
  fixture.start();
  auto& scope = fixture.io.waitScope;
  auto pump = [&](int milliseconds) {
    fixture.io.provider->getTimer().afterDelay(milliseconds * kj::MILLISECONDS).wait(scope);
  };
  FixtureClient idle(fixture, 0, 2);  // says nothing either, but owes nothing
  hello(idle, scope);
  auto pipe = fixture.io.provider->newCapabilityPipe();
  auto served = fixture.server->serve(kj::mv(pipe.ends[0]), {0, 3}).eagerlyEvaluate([](kj::Exception&&) {});
  Deaf deaf(*pipe.ends[1]);
  capnp::TwoPartyClient asker(deaf);
  auto its = asker.bootstrap().castAs<rpc::Gateway>();
  std::vector<kj::Promise<void>> calls;
  auto first = its.helloRequest();
  first.setOldest(1);
  first.setNewest(1);
  calls.push_back(first.send().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
  auto admin = its.openAdminRequest().send().getAdmin();
  for (int i = 0; i < 4000; ++i)
    calls.push_back(admin.statusRequest().send().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
  CHECK(fixture.service->connections() == 2);
  uint64_t most_unwritten = 0;
  const daemon::PeerKey key = fixture.service->key_of({.uid = 0, .pid = 0});
  for (int i = 0; i < 500 && fixture.service->connections() == 2; ++i) {
    pump(20);
    most_unwritten = std::max(most_unwritten, fixture.service->unwritten_bytes(key));
  }
  CHECK(most_unwritten > 0);
  CHECK(fixture.service->connections() == 1);
  CHECK(fixture.service->unwritten_bytes(key) == 0);
  auto still = idle.gateway.openAdminRequest().send().wait(scope);
  CHECK(still.getError().getCode() == 0);
}

TEST_CASE("Hostile: descriptors that a peer sends along take no place") {
  ManagerFixture fixture;
  fixture.start();
  auto& scope = fixture.io.waitScope;
  FixtureClient client(fixture, 0, 1);
  hello(client, scope);
  // A listener that carries a descriptor, as a lease's capability does.
  struct Carrier final : public rpc::LeaseListener::Server {
    kj::Maybe<int> getFd() override { return 0; }
  };
  const size_t before = open_descriptors();
  std::vector<rpc::TenantSession::Client> sessions;
  for (int i = 0; i < 4; ++i) {
    auto open = client.gateway.openSessionRequest();
    open.setListener(kj::heap<Carrier>());
    auto reply = open.send().wait(scope);
    REQUIRE(reply.getError().getCode() == 0);
    sessions.push_back(reply.getSession());
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("Hostile: a request of megabytes costs its own connection") {
  ManagerFixture fixture;
  fixture.start();
  auto& scope = fixture.io.waitScope;
  FixtureClient other(fixture, 0, 2);
  hello(other, scope);
  {
    FixtureClient client(fixture, 0, 1);
    auto request = client.gateway.helloRequest();
    request.setOldest(1);
    request.setNewest(1);
    request.setClient(std::string(4 * mib, 'x'));
    CHECK_THROWS(request.send().wait(scope));
  }
  auto open = other.gateway.openAdminRequest();
  CHECK(open.send().wait(scope).getError().getCode() == 0);
}

TEST_CASE("Hostile: garbage costs its own connection") {
  ManagerFixture fixture;
  fixture.start();
  auto& scope = fixture.io.waitScope;
  for (int i = 0; i < 50; ++i) {
    auto pipe = fixture.io.provider->newCapabilityPipe();
    auto served = fixture.server->serve(kj::mv(pipe.ends[0]), {1000, 1});
    std::string bytes(256, static_cast<char>(i * 37));
    for (size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<char>(bytes[at] ^ (at * 31 + at / 7));
    pipe.ends[1]->write(bytes.data(), bytes.size()).wait(scope);
    pipe.ends[1]->shutdownWrite();
    served.catch_([](kj::Exception&&) {}).wait(scope);
  }
  CHECK(fixture.service->connections() == 0);
  FixtureClient other(fixture, 0, 2);
  hello(other, scope);
}

TEST_CASE("Hostile: lists of one connection are few at a time") {
  ManagerFixture fixture;
  fixture.start();
  auto& scope = fixture.io.waitScope;
  FixtureClient client(fixture, 0, 1);
  std::vector<CollectingListener::Notice> notices;
  uint64_t lease = 0;
  auto session = session_with_lease(fixture, client, lease, notices);
  // Behind a change that is being made durable every one of them waits.
  auto grant = session.grantRequest();
  grant.getRequest().setPool("p");
  grant.getRequest().setBytes(2 * mib);
  auto granted = grant.send();
  std::vector<kj::Promise<uint16_t>> lists;
  for (int i = 0; i < 50; ++i)
    lists.push_back(
        session.listRequest().send().then([](auto&& reply) -> uint16_t { return reply.getError().getCode(); }));
  int answered = 0;
  for (auto& list : lists) {
    const uint16_t outcome = list.wait(scope);
    answered += outcome == 0;
    if (outcome != 0) CHECK(outcome == code(ErrorCode::limit_exceeded));
  }
  CHECK(answered > 0);
  CHECK(granted.wait(scope).getError().getCode() == 0);
  CHECK(session.listRequest().send().wait(scope).getError().getCode() == 0);
}

TEST_CASE(
    "Hostile: one uid has so many leases looked through a second, others and administrators are not held up") {
  ManagerFixture fixture;
  fixture.options.rows_looked_at_per_s = 10;
  fixture.start();
  auto& scope = fixture.io.waitScope;
  FixtureClient root(fixture, 0, 1), user(fixture, 1000, 2), other(fixture, 1001, 3);
  std::vector<CollectingListener::Notice> notices;
  uint64_t lease = 0;
  auto owner = session_with_lease(fixture, root, lease, notices);
  auto session_of = [&](FixtureClient& client) {
    hello(client, scope);
    auto open = client.gateway.openSessionRequest();
    open.setListener(kj::heap<CollectingListener>(notices));
    return open.send().wait(scope).getSession();
  };
  auto flooding = session_of(user);
  auto quiet = session_of(other);
  int answered = 0;
  while (answered < 100 && flooding.listRequest().send().wait(scope).getError().getCode() == 0) ++answered;
  CHECK(answered >= 10);
  CHECK(answered < 100);
  CHECK(quiet.listRequest().send().wait(scope).getError().getCode() == 0);
  for (int i = 0; i < 50; ++i) CHECK(owner.listRequest().send().wait(scope).getError().getCode() == 0);
  fixture.io.provider->getTimer().afterDelay(300 * kj::MILLISECONDS).wait(scope);
  CHECK(flooding.listRequest().send().wait(scope).getError().getCode() == 0);
}

TEST_CASE("Hostile: a tenant's own tenant name is the only one it can have, and never none") {
  ManagerFixture fixture;
  fixture.options.tenants[1001] = "";
  fixture.start();
  auto& scope = fixture.io.waitScope;
  FixtureClient nameless(fixture, 1001, 1), liar(fixture, 1000, 2);
  std::vector<CollectingListener::Notice> notices;
  hello(nameless, scope);
  hello(liar, scope);
  auto open = nameless.gateway.openSessionRequest();
  open.setListener(kj::heap<CollectingListener>(notices));
  CHECK(open.send().wait(scope).getError().getCode() == code(ErrorCode::invalid_argument));
  for (const char* name : {"uid-0", "*", "uid-1000 ", "../uid-0"}) {
    auto lie = liar.gateway.openSessionRequest();
    lie.setTenant(name);
    lie.setListener(kj::heap<CollectingListener>(notices));
    CHECK(lie.send().wait(scope).getError().getCode() != 0);
  }
}

TEST_CASE("Hostile: a listener that is the session itself does not keep the connection alive") {
  ManagerFixture fixture;
  fixture.options.connections_max = 8;
  fixture.start();
  auto& scope = fixture.io.waitScope;
  for (int i = 0; i < 20; ++i) {
    auto client = std::make_unique<FixtureClient>(fixture, 0, 1);
    hello(*client, scope);
    auto promised = kj::newPromiseAndFulfiller<rpc::LeaseListener::Client>();
    auto open = client->gateway.openSessionRequest();
    open.setListener(kj::mv(promised.promise));
    auto session = open.send().wait(scope).getSession();
    promised.fulfiller->fulfill(session.castAs<rpc::LeaseListener>());
    fixture.io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(scope);
    client.reset();
    fixture.io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(scope);
  }
  CHECK(fixture.service->connections() == 0);
}

TEST_CASE("Hostile: one uid gets a share of the connections, administrators always find room") {
  ManagerFixture fixture;
  fixture.options.connections_max = 16;
  fixture.start();
  std::vector<std::unique_ptr<FixtureClient>> flood;
  for (uint32_t uid = 1000; uid < 1010; ++uid)
    for (int i = 0; i < 6; ++i) flood.push_back(std::make_unique<FixtureClient>(fixture, uid, 1));
  CHECK(fixture.service->connections() < 16);
  FixtureClient admin(fixture, 0, 2);
  hello(admin, fixture.io.waitScope);
  CHECK(admin.gateway.openAdminRequest().send().wait(fixture.io.waitScope).getError().getCode() == 0);
}

TEST_CASE("Hostile: sessions of one connection are bounded") {
  ManagerFixture fixture;
  fixture.start();
  FixtureClient client(fixture, 0, 1);
  hello(client, fixture.io.waitScope);
  std::vector<CollectingListener::Notice> notices;
  std::vector<rpc::TenantSession::Client> sessions;
  uint16_t refused = 0;
  for (int i = 0; i < 20 && refused == 0; ++i) {
    auto open = client.gateway.openSessionRequest();
    open.setListener(kj::heap<CollectingListener>(notices));
    auto reply = open.send().wait(fixture.io.waitScope);
    refused = reply.getError().getCode();
    if (refused == 0) sessions.push_back(reply.getSession());
  }
  CHECK(refused == code(ErrorCode::limit_exceeded));
  CHECK(sessions.size() == limits::rpc_sessions_max);
}

TEST_CASE("Reads: an answer shows nothing that was applied after it was asked for") {
  ManagerFixture fixture;
  fixture.start();
  FixtureClient client(fixture, 0, 1);
  std::vector<CollectingListener::Notice> notices;
  uint64_t lease = 0;
  auto session = session_with_lease(fixture, client, lease, notices);
  // Asked for while nothing is under way, then a release is sent at once behind it.
  auto listed = session.listRequest().send();
  auto attach = session.attachRequest();
  attach.setLease(lease);
  auto released =
      attach.send().then([](auto&& reply) { return reply.getLease().releaseRequest().send().ignoreResult(); });
  const auto leases = listed.wait(fixture.io.waitScope);
  REQUIRE(leases.getLeases().size() == 1);
  CHECK(leases.getLeases()[0].getPhase() == rpc::LeasePhase::ACTIVE);
  released.wait(fixture.io.waitScope);
}

TEST_CASE("Fence: one that lacks descriptors is tried again, not quarantined") {
  ManagerFixture fixture;
  fixture.start();
  FixtureClient client(fixture, 0, 1);
  std::vector<CollectingListener::Notice> notices;
  uint64_t lease = 0;
  auto session = session_with_lease(fixture, client, lease, notices);
  fixture.backend.fence_errno = EMFILE;
  auto attach = session.attachRequest();
  attach.setLease(lease);
  auto handle = attach.send().wait(fixture.io.waitScope).getLease();
  handle.releaseRequest().send().wait(fixture.io.waitScope);
  fixture.io.provider->getTimer().afterDelay(50 * kj::MILLISECONDS).wait(fixture.io.waitScope);
  REQUIRE(fixture.engine->state().find_lease(LeaseId{lease}) != nullptr);
  CHECK(fixture.engine->state().find_lease(LeaseId{lease})->phase == daemon::LeasePhase::fencing);
  fixture.backend.fence_errno = 0;
  fixture.io.provider->getTimer().afterDelay(1200 * kj::MILLISECONDS).wait(fixture.io.waitScope);
  CHECK(fixture.engine->state().find_lease(LeaseId{lease}) == nullptr);
}

TEST_CASE("a number of an enum that this side does not know is refused, and says which it is") {
  ManagerFixture fixture;
  fixture.start();
  auto& scope = fixture.io.waitScope;
  FixtureClient client(fixture, 0, 1);
  std::vector<CollectingListener::Notice> notices;
  uint64_t lease = 0;
  auto session = session_with_lease(fixture, client, lease, notices);
  auto grant = session.grantRequest();
  grant.getRequest().setPool("p");
  grant.getRequest().setBytes(2 * mib);
  grant.getRequest().setMode(static_cast<rpc::LeaseMode>(7));
  const auto granted = grant.send().wait(scope);
  CHECK(granted.getError().getCode() == code(ErrorCode::version_mismatch));
  CHECK(std::string(granted.getError().getDetail().cStr()).find("request.mode is 7") != std::string::npos);

  auto attach = session.attachRequest();
  attach.setLease(lease);
  attach.setAccess(static_cast<rpc::Access>(2));
  CHECK(attach.send().wait(scope).getError().getCode() == code(ErrorCode::version_mismatch));

  auto admin = client.gateway.openAdminRequest().send().wait(scope).getAdmin();
  auto create = admin.createPoolRequest();
  create.setName("q");
  create.setPlacement(static_cast<rpc::Placement>(9));
  CHECK(create.send().wait(scope).getError().getCode() == code(ErrorCode::version_mismatch));
  create = admin.createPoolRequest();
  create.setName("q");
  create.setCoherence(static_cast<rpc::Coherence>(9));
  CHECK(create.send().wait(scope).getError().getCode() == code(ErrorCode::version_mismatch));
  CHECK(fixture.engine->state().leases().size() == 1);
  CHECK(fixture.engine->state().pools().size() == 1);
}

// A name of 200 KB came back whole, with its line breaks, in the error, the log and the terminal.
TEST_CASE("Hostile: what an error says is one short line, whatever name it quotes") {
  ManagerFixture fixture;
  fixture.start();
  FixtureClient client(fixture, 0, 1);
  std::vector<CollectingListener::Notice> notices;
  uint64_t lease = 0;
  auto session = session_with_lease(fixture, client, lease, notices);
  const auto refusal = [&](const std::string& pool) {
    auto grant = session.grantRequest();
    grant.getRequest().setPool(pool);
    grant.getRequest().setBytes(2 * mib);
    auto reply = grant.send().wait(fixture.io.waitScope);
    CHECK(reply.getError().getCode() == code(ErrorCode::not_found));
    return std::string(reply.getError().getDetail().cStr());
  };
  for (const std::string& unit : {std::string("x"), std::string("\xc3\xa9"), std::string("\n\xff")}) {
    std::string name;
    while (name.size() < 200'000) name += unit;
    const std::string detail = refusal(name);
    CHECK(detail.size() < 4096);
    CHECK(detail.find('\n') == std::string::npos);
    CHECK(detail.find("bytes) ") != std::string::npos);
    CHECK(detail.find("`terrace pool list` shows those there are") != std::string::npos);
  }
  CHECK(refusal("a\nb").find("there is no pool 'a\\nb'") == 0);
}
