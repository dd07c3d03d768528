// SPDX-License-Identifier: Apache-2.0
// What a peer can make the manager keep: notices it does not take, answers it does not read, log lines.
#include <fcntl.h>

#include "daemon/rpc/peer_log.h"
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

// A listener that hears everything and answers nothing.
class SilentListener final : public rpc::LeaseListener::Server {
 public:
  struct Heard {
    int revoking = 0, fenced = 0, move_requested = 0;
    uint64_t last_grace_ns = 0;
    int all() const { return revoking + fenced + move_requested; }
  };
  explicit SilentListener(Heard& heard) : heard_(heard) {}
  kj::Promise<void> revoking(RevokingContext context) override {
    ++heard_.revoking;
    heard_.last_grace_ns = context.getParams().getGraceNs();
    return kj::NEVER_DONE;
  }
  kj::Promise<void> fenced(FencedContext) override {
    ++heard_.fenced;
    return kj::NEVER_DONE;
  }
  kj::Promise<void> moveRequested(MoveRequestedContext) override {
    ++heard_.move_requested;
    return kj::NEVER_DONE;
  }

 private:
  Heard& heard_;
};

rpc::TenantSession::Client silent_session(Rpc& t, FixtureClient& client, SilentListener::Heard& heard) {
  t.hello(client);
  auto open = client.gateway.openSessionRequest();
  open.setListener(kj::heap<SilentListener>(heard));
  auto reply = t.call(open);
  REQUIRE(reply.getError().getCode() == 0);
  return reply.getSession();
}

}  // namespace

TEST_CASE("Notices: a request to move is repeated only once the last one was taken") {
  Rpc t;
  FixtureClient client(t, 0, 1), other(t, 0, 2);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  SilentListener::Heard heard;
  auto silent = silent_session(t, client, heard);
  const LeaseId id{t.grant(silent, 2 * mib).getInfo().getId()};
  for (int i = 0; i < 100; ++i) CHECK(t.service->move_requested(id, "drain"));
  t.pump(5);
  CHECK(heard.move_requested == 1);

  auto polite = t.session(other);
  const LeaseId second{t.grant(polite, 2 * mib).getInfo().getId()};
  for (int i = 0; i < 3; ++i) {
    CHECK(t.service->move_requested(second, "drain"));
    for (int tries = 0; tries < 5000 && t.notices.size() <= static_cast<size_t>(i); ++tries) t.pump(1);
    t.pump(5);
  }
  CHECK(t.notices.size() == 3);
}

TEST_CASE("Notices: of a lease one is under way, and what comes meanwhile is said once, as it is then") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  SilentListener::Heard heard;
  auto silent = silent_session(t, client, heard);
  const uint64_t id = t.grant(silent, 2 * mib).getInfo().getId();
  for (uint64_t i = 0; i < 50; ++i) t.service->revoking(LeaseId{id}, (100 + i) * ns_per_s, "again");
  t.pump(5);
  CHECK(heard.all() == 1);
}

TEST_CASE("Notices: as many as the window are under way, and the rest follows as they are taken") {
  Rpc t;
  FixtureClient client(t, 0, 1), other(t, 0, 2);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  SilentListener::Heard heard;
  auto silent = silent_session(t, client, heard);
  std::vector<LeaseId> leases;
  for (uint64_t id = 0; id < 32; ++id) leases.push_back(LeaseId{t.grant(silent, 2 * mib).getInfo().getId()});
  auto polite = t.session(other);
  for (uint64_t id = 0; id < 32; ++id) leases.push_back(LeaseId{t.grant(polite, 2 * mib).getInfo().getId()});
  for (const LeaseId id : leases) t.service->revoking(id, ns_per_s, "all of them");
  for (int i = 0; i < 1000 && t.notices.size() < 32; ++i) t.pump(5);
  t.pump(20);
  CHECK(t.notices.size() == 32);
  CHECK(heard.revoking == 32);
}

TEST_CASE("Notices: a connection that takes none of them is closed at its bound, the others hear theirs") {
  daemon::ServiceOptions options;
  options.notices_max = 100;
  Rpc t(options);
  FixtureClient good(t, 0, 1);
  auto operator_ = t.admin(good);
  t.make_pool(operator_);
  auto polite = t.session(good);
  SilentListener::Heard heard;
  FixtureClient bad(t, 0, 2);
  auto silent = silent_session(t, bad, heard);
  CHECK(t.service->connections() == 2);
  for (int i = 0; i < 120 && t.service->connections() == 2; ++i) {  // each revocation is a notice of a fence
    auto request = silent.grantRequest();
    request.getRequest().setPool("p");
    request.getRequest().setBytes(2 * mib);
    uint64_t id = 0;
    request.send()
        .then([&id](auto&& reply) { id = reply.getInfo().getId(); })
        .catch_([](kj::Exception&&) {})
        .wait(t.io.waitScope);
    auto revoke = operator_.revokeRequest();
    revoke.setLease(id);
    revoke.send().ignoreResult().wait(t.io.waitScope);
    t.pump(1);
  }
  t.pump(5);
  CHECK(t.service->connections() == 1);
  CHECK(heard.fenced == 64);
  auto granted = t.grant(polite, 2 * mib);
  auto revoke = operator_.revokeRequest();
  revoke.setLease(granted.getInfo().getId());
  CHECK(t.call(kj::mv(revoke)).getError().getCode() == 0);
  t.pump(20);
  CHECK(t.notices.size() == 1);
}

TEST_CASE("Notices: who releases a lease is not told that it is gone, others who have it attached are") {
  Rpc t;
  FixtureClient one(t, 0, 1), two(t, 0, 1);
  auto operator_ = t.admin(one);
  t.make_pool(operator_);
  auto session = t.session(one);
  auto granted = t.grant(session, 2 * mib);
  SilentListener::Heard heard;
  auto other = silent_session(t, two, heard);
  auto attach = other.attachRequest();
  attach.setLease(granted.getInfo().getId());
  attach.setAccess(rpc::Access::READ_WRITE);
  CHECK(t.call(kj::mv(attach)).getError().getCode() == 0);
  CHECK(t.call(granted.getLease().releaseRequest()).getError().getCode() == 0);
  t.pump(20);
  CHECK(t.notices.empty());
  CHECK(heard.fenced == 1);
}

TEST_CASE("Leases: capabilities of one connection are bounded") {
  daemon::ServiceOptions options;
  options.leases_max = 3;
  Rpc t(options);
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  auto first = t.grant(tenant, 2 * mib);
  auto held = first.getLease();
  std::vector<rpc::Lease::Client> more;
  for (int i = 0; i < 2; ++i)
    more.push_back(t.attach(tenant, first.getInfo().getId(), rpc::Access::READ_WRITE).getLease());
  CHECK(t.attach(tenant, first.getInfo().getId(), rpc::Access::READ_WRITE).getError().getCode() ==
        code(ErrorCode::limit_exceeded));
  CHECK(t.call(held.beginMoveRequest()).getError().getCode() == code(ErrorCode::limit_exceeded));
  more.clear();
  t.pump(5);
  CHECK(t.attach(tenant, first.getInfo().getId(), rpc::Access::READ_WRITE).getError().getCode() == 0);
}

TEST_CASE("Session: its leases' capabilities outlive it, but nothing more is attached through them") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto kept = kj::heap(t.session(client));
  auto lease = t.grant(*kept, 2 * mib).getLease();
  const uint64_t id = t.call(lease.infoRequest()).getInfo().getId();
  CHECK(t.service->holders(LeaseId{id}) == 1);
  kept = nullptr;
  t.pump(5);
  CHECK(t.service->holders(LeaseId{id}) == 0);
  CHECK(t.call(lease.renewRequest()).getError().getCode() == 0);
  auto resize = lease.resizeRequest();
  resize.setBytes(4 * mib);
  CHECK(t.call(resize).getError().getCode() == code(ErrorCode::cancelled));
  CHECK(t.call(lease.releaseRequest()).getError().getCode() == 0);
}

TEST_CASE("PeerLog: a flood of lines is a few a second and a count") {
  daemon::PeerLog log;
  uint64_t left_out = 0;
  int written = 0;
  for (int i = 0; i < 1000; ++i) written += log.admit(5 * ns_per_s, left_out);
  CHECK(written == daemon::PeerLog::lines_per_s);
  CHECK(left_out == 0);
  CHECK(log.admit(6 * ns_per_s, left_out));
  CHECK(left_out == 1000 - daemon::PeerLog::lines_per_s);
  CHECK(log.admit(6 * ns_per_s, left_out));
  CHECK(left_out == 0);
}

TEST_CASE("Memory: a descriptor is shared while anybody has it, and its entry goes with the last one") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  {
    auto lease = t.grant(tenant, 2 * mib).getLease();
    t.call(lease.infoRequest());
  }
  t.pump(5);
  const daemon::LeaseRow& row = t.engine->state().leases().begin()->second;
  auto first = t.service->open_memory(row.object, daemon::ObjectAccess::read_write);
  auto second = t.service->open_memory(row.object, daemon::ObjectAccess::read_write);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->get() == second->get());
  auto reader = t.service->open_memory(row.object, daemon::ObjectAccess::read_only);
  REQUIRE(reader.ok());
  CHECK(reader->get() != first->get());
}

TEST_CASE("Release: one that fails after its client went away leaves no holder behind") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto operator_ = t.admin(root);
  t.make_pool(operator_);
  uint64_t id = 0;
  {
    FixtureClient user(t, 1000, 2);
    auto tenant = t.session(user);
    auto granted = t.grant(tenant, 2 * mib);
    id = granted.getInfo().getId();
    t.store.fail_commit = true;
    auto released =
        granted.getLease().releaseRequest().send().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {});
    // Until the manager has taken it in, no longer: its commit is still to fail.
    for (int i = 0; i < 100'000 && t.service->holders(LeaseId{id}) == 1; ++i)
      t.io.provider->getTimer().afterDelay(10 * kj::MICROSECONDS).wait(t.io.waitScope);
  }
  t.pump(100);
  CHECK(t.service->holders(LeaseId{id}) == 0);
  t.store.fail_commit = false;
  t.pump(600);
  CHECK(t.service->holders(LeaseId{id}) == 0);
  auto revoke = operator_.revokeRequest();
  revoke.setLease(id);
  revoke.setReason("nobody is there to be told");
  CHECK(t.call(revoke).getError().getCode() == 0);
  t.pump(20);
}

TEST_CASE("Peers: few open files bound connections and what is on its way, and leave some to administrators") {
  class OfTest final : public daemon::Peers {
   public:
    using daemon::Peers::Peers;
    uint64_t now_ns() const override { return 0; }
  };
  daemon::PeerOptions options;
  options.admin_uids = {0};
  CHECK(OfTest(options).connections_allowed() == limits::rpc_connections_max);
  options.descriptors_max = 1024;
  OfTest peers(options);
  const uint32_t connections = peers.connections_allowed();
  CHECK(connections == (1024 - limits::descriptors_own) / 2);
  const daemon::PeerCredentials tenant{.uid = 1000, .pid = 1}, root{.uid = 0, .pid = 2};

  std::vector<std::shared_ptr<daemon::HandedMemory>> handed;
  const auto memory = std::make_shared<const UniqueFd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  while (peers.may_open_memory(tenant).ok()) handed.push_back(peers.hand(tenant, memory));
  const uint64_t most = 1024 - limits::descriptors_own - limits::descriptors_reserved - connections;
  CHECK(handed.size() == most / 4);
  CHECK(peers.may_open_memory(tenant).error().code == ErrorCode::limit_exceeded);
  CHECK(peers.may_open_memory({.uid = 1001, .pid = 1}).ok());
  CHECK(peers.may_open_memory(root).ok());

  daemon::CarriedMemory carried;
  const kj::Maybe<int> first = carried.carry(handed[0]);
  KJ_IF_MAYBE (fd, first) CHECK(*fd == memory->get());
  carried.carry(handed[1]);  // of the same file, in a later answer
  const int fds[] = {memory->get()};
  carried.written(fds);
  CHECK(handed[0]->fd() == -1);
  CHECK(handed[1]->fd() == memory->get());
  CHECK(carried.carry(handed[0]) == nullptr);
  CHECK(peers.may_open_memory(tenant).ok());
  carried.written(fds);
  carried.written(fds);  // nobody's
  CHECK(handed[1]->fd() == -1);
}

TEST_CASE("Calls: how long each method took is counted by its name, and a refused one too") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  const auto calls_of = [&t](std::string_view method) {
    const auto at = t.service->call_times().find(method);
    uint64_t all = 0;
    if (at != t.service->call_times().end())
      for (const uint64_t count : at->second.counts()) all += count;
    return all;
  };
  CHECK(calls_of("Gateway.hello") == 1);
  CHECK(calls_of("Gateway.openAdmin") == 1);
  CHECK(calls_of("Admin.lease") == 0);
  for (int i = 0; i < 3; ++i) CHECK(t.call(operator_.leaseRequest()).getError().getCode() != 0);
  CHECK(calls_of("Admin.lease") == 3);
}
