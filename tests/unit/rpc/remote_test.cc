// SPDX-License-Identifier: Apache-2.0
// Clients over TLS, past the handshake: the same service as at a unix socket, as their certificate says, without memory.
#include <doctest/doctest.h>

#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;
using daemon::SocketRole;

namespace {

struct RemoteFixtureClient {
  RemoteFixtureClient(ManagerFixture& fixture, const daemon::RemoteClient& client)
      : pipe(kj::newTwoWayPipe()),
        served(fixture.server->serve_remote(kj::mv(pipe.ends[0]), credentials(client))
                   .eagerlyEvaluate([](kj::Exception&&) {})),
        rpc(*pipe.ends[1]),
        gateway(rpc.bootstrap().castAs<terrace::rpc::Gateway>()) {}

  static daemon::PeerCredentials credentials(const daemon::RemoteClient& client) {
    daemon::PeerCredentials peer;
    peer.uid = daemon::no_uid;
    peer.socket = std::make_shared<const daemon::ServedSocket>(
        daemon::ServedSocket{"tls://10.0.0.1:7443", SocketRole::administrator, "", 1});
    peer.remote = std::make_shared<const daemon::RemoteClient>(client);
    return peer;
  }

  kj::TwoWayPipe pipe;
  kj::Promise<void> served;
  capnp::TwoPartyClient rpc;
  terrace::rpc::Gateway::Client gateway;
};

daemon::RemoteClient client_named(const char* name, SocketRole role, const char* tenant = "",
                                  const char* refused = "") {
  return {.name = name,
          .serial = "12ab",
          .address = "10.0.0.9",
          .role = role,
          .tenant = tenant,
          .number = 7,
          .refused = refused,
          .renew = nullptr};
}

std::string detail(terrace::rpc::Error::Reader error) {
  return error.getDetail().cStr();
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

constexpr const char* elsewhere = "memory is mapped on the manager's own host, or on another through its agent";

struct Greeting {
  bool admin = false;
  std::string tenant, role, error;
};
Greeting greet(Rpc& t, terrace::rpc::Gateway::Client& gateway) {
  auto hello = gateway.helloRequest();
  hello.setOldest(1);
  hello.setNewest(1);
  hello.setClient("test");
  const auto reply = t.call(hello);
  return {reply.getAdmin(), reply.getTenant().cStr(), reply.getRole().cStr(), detail(reply.getError())};
}

}  // namespace

TEST_CASE("Remote: a tenant's certificate grants, renews, resizes and releases, and is given no memory") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto admin = t.admin(root);
  t.make_pool(admin);
  RemoteFixtureClient far(t, client_named("ci", SocketRole::tenant, "training"));
  const Greeting greeting = greet(t, far.gateway);
  CHECK_FALSE(greeting.admin);
  CHECK(greeting.tenant == "training");
  CHECK(greeting.role == "tenant");
  auto open = far.gateway.openSessionRequest();
  open.setHost("laptop");
  open.setListener(kj::heap<CollectingListener>(t.notices));
  auto session = t.call(open).getSession();
  const auto granted = t.grant(session, 2 * mib);
  REQUIRE(granted.getError().getCode() == 0);
  CHECK(std::string(granted.getInfo().getTenant().cStr()) == "training");
  CHECK(std::string(granted.getInfo().getHost().cStr()) ==
        "here");  // not what the client calls its own machine
  const uint64_t id = granted.getInfo().getId();
  auto lease = granted.getLease();
  CHECK(lease.getFd().wait(t.io.waitScope) == nullptr);

  const auto attached = t.attach(session, id, terrace::rpc::Access::READ_ONLY);
  CHECK(attached.getError().getCode() == code(ErrorCode::unsupported));
  CHECK(has(detail(attached.getError()), elsewhere));
  CHECK(has(detail(t.call(lease.beginMoveRequest()).getError()), elsewhere));
  CHECK(has(detail(t.call(lease.claimPartRequest()).getError()), elsewhere));
  CHECK(has(detail(t.call(session.userfaultfdRequest()).getError()), elsewhere));

  auto query = admin.leaseRequest();
  query.setLease(id);
  CHECK(t.call(query).getInfo().getHolders() == 0);
  auto renew = lease.renewRequest();
  renew.setTtlNs(3600 * ns_per_s);
  CHECK(t.call(renew).getError().getCode() == 0);
  auto resize = lease.resizeRequest();
  resize.setBytes(4 * mib);
  const auto resized = t.call(resize);
  REQUIRE(resized.getError().getCode() == 0);
  CHECK(resized.getInfo().getBytes() == 4 * mib);
  auto again = resized.getLease();
  CHECK(again.getFd().wait(t.io.waitScope) == nullptr);
  CHECK(t.call(again.releaseRequest()).getError().getCode() == 0);

  for (const char* other : {"uid-0", "serving"}) {
    auto wrong = far.gateway.openSessionRequest();
    wrong.setTenant(other);
    wrong.setListener(kj::heap<CollectingListener>(t.notices));
    const auto refused = t.call(wrong);
    CHECK(refused.getError().getCode() == code(ErrorCode::permission_denied));
    CHECK(has(detail(refused.getError()), "the certificate of client ci is tenant training's, not "));
  }
}

TEST_CASE("Remote: an operator's certificate is one, and the audit log has its name") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto whole = t.admin(root);
  t.make_pool(whole);
  RemoteFixtureClient far(t, client_named("ops", SocketRole::oversight));
  const Greeting greeting = greet(t, far.gateway);
  CHECK(greeting.admin);
  CHECK(greeting.tenant.empty());
  CHECK(greeting.role == "operator");
  auto part = t.call(far.gateway.openAdminRequest()).getAdmin();
  CHECK(t.call(part.statusRequest()).getError().getCode() == 0);
  CHECK(t.with_serial(part.drainRequest(), "emu:a").getError().getCode() == 0);
  const auto denied = t.call(part.setQuotaRequest());
  CHECK(denied.getError().getCode() == code(ErrorCode::permission_denied));
  CHECK(has(detail(denied.getError()), "client ops has the role operator at tls://10.0.0.1:7443"));
  auto open = far.gateway.openSessionRequest();
  open.setListener(kj::heap<CollectingListener>(t.notices));
  CHECK(has(detail(t.call(open).getError()), "the certificate of client ops names no tenant"));
  const auto page = t.call(whole.auditRequest());
  size_t drains = 0, refusals = 0;
  for (const auto entry : page.getEntries()) {
    const std::string verb = entry.getVerb().cStr(), actor = entry.getActor().cStr();
    if (verb == "device drain" && actor == "admin client ops as operator from 10.0.0.9 (test)") ++drains;
    if (verb == "denied admin" && actor == "admin client ops as operator from 10.0.0.9 (test)") ++refusals;
  }
  CHECK(drains == 1);
  CHECK(refusals == 1);
}

TEST_CASE("Remote: an administrator's backup needs a descriptor, which nothing carries") {
  Rpc t;
  RemoteFixtureClient far(t, client_named("lead", SocketRole::administrator));
  REQUIRE(greet(t, far.gateway).error.empty());
  auto admin = t.call(far.gateway.openAdminRequest()).getAdmin();
  const auto refused = t.call(admin.backupRequest());
  CHECK(refused.getError().getCode() == code(ErrorCode::unsupported));
  CHECK(has(detail(refused.getError()), "a backup is handed over as a descriptor"));
}

TEST_CASE("Remote: one that may do nothing hears why, and nothing else") {
  Rpc t;
  RemoteFixtureClient far(t,
                          client_named("host:hostb", SocketRole::tenant, "", "its certificate is for a host"));
  CHECK(greet(t, far.gateway).error == "its certificate is for a host");
  CHECK(detail(t.call(far.gateway.openAdminRequest()).getError()) == "say hello first");
  CHECK(detail(t.call(far.gateway.openSessionRequest()).getError()) == "say hello first");
}
