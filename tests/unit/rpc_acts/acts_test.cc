// SPDX-License-Identifier: Apache-2.0
// What an act would do, asked over RPC, and what the same act then does; grants in an operator's name; who asks.
#include <memory>
#include <utility>

#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;
using daemon::SocketRole;

namespace {

std::string text(capnp::Text::Reader value) {
  return std::string(value.cStr());
}

template <typename Set>
auto preview(Rpc& t, terrace::rpc::Admin::Client& admin, Set set) {
  auto request = admin.previewRequest();
  set(request.initAct());
  return t.call(request);
}

auto ask_grant(Rpc& t, terrace::rpc::Admin::Client& admin, const char* tenant, uint64_t bytes,
               uint64_t key = 0) {
  auto request = admin.grantRequest();
  auto grant = request.initGrant();
  grant.setTenant(tenant);
  grant.setBytes(bytes);
  grant.setPersistent(true);
  grant.setMovable(true);
  grant.setRequestLow(key);
  return t.call(request);
}

uint64_t leases(Rpc& t, terrace::rpc::Admin::Client& admin) {
  return t.call(admin.leasesRequest()).getLeases().size();
}

std::shared_ptr<const daemon::ServedSocket> made_socket(SocketRole role, std::string read_only = "") {
  return std::make_shared<const daemon::ServedSocket>(
      daemon::ServedSocket{"/run/x/s.sock", role, "", 1, std::move(read_only)});
}

bool may_call(terrace::rpc::WhoAmI::Reader who, const char* method) {
  for (const auto one : who.getMethods())
    if (one == method) return true;
  return false;
}

}  // namespace

TEST_CASE("Preview: it says what is then done, and does nothing") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto admin = t.admin(root);
  t.make_pool(admin);
  const auto would = preview(t, admin, [](auto act) {
    act.initGrant().setTenant("alice");
    act.getGrant().setBytes(3 * mib);
  });
  REQUIRE(would.getError().getCode() == 0);
  CHECK(leases(t, admin) == 0);
  CHECK(would.getPreview().getBytes() == 4 * mib);
  CHECK(text(would.getPreview().getTo()[0].getDevice()) == "emu:a");
  const auto granted = ask_grant(t, admin, "alice", 3 * mib);
  REQUIRE(granted.getError().getCode() == 0);
  CHECK(granted.getInfo().getBytes() == 4 * mib);
  CHECK(text(granted.getInfo().getTenant()) == "alice");
  const uint64_t lease = granted.getInfo().getId();

  const auto drain = preview(t, admin, [](auto act) { act.initDrain().setSerial("emu:a"); });
  CHECK(drain.getPreview().getLeases() == 1);
  CHECK(text(drain.getPreview().getTo()[0].getDevice()) == "emu:b");
  CHECK(text(drain.getPreview().getTenants()[0].getTenant()) == "alice");

  // Nothing moves: the run is there.
  const auto compaction = preview(t, admin, [](auto act) {
    act.initCompact().setPool("p");
    act.getCompact().setRunBytes(2 * mib);
  });
  CHECK(text(compaction.getPreview().getSummary()) == "moves nothing");
  CHECK_FALSE(compaction.getPreview().hasRun());
  CHECK(preview(t, admin, [](auto act) { act.initCompact().setPool("p"); }).getPreview().getCode() ==
        code(ErrorCode::invalid_argument));

  const auto quota = preview(t, admin, [](auto act) {
    act.initSetQuota().setTenant("alice");
    act.getSetQuota().setBytesMax(2 * mib);
  });
  CHECK(quota.getPreview().getTenants()[0].getOver());
  CHECK(t.call(admin.quotasRequest()).getQuotas().size() == 0);

  // Nobody has it: whatever the grace, it would end at once, as revoke() has it end.
  const auto revoke = preview(t, admin, [lease](auto act) {
    act.initRevoke().setLease(lease);
    act.getRevoke().setGraceNs(5 * ns_per_s);
  });
  CHECK(text(revoke.getPreview().getAll()[0].getState()) == "fenced at once");
  auto act = admin.revokeRequest();
  act.setLease(lease);
  act.setGraceNs(5 * ns_per_s);
  CHECK(t.call(act).getInfo().getPhase() != terrace::rpc::LeasePhase::REVOKING);

  const auto gone = preview(t, admin, [](auto what) { what.initRelease().setLease(99); });
  CHECK(gone.getPreview().getCode() == code(ErrorCode::not_found));
  CHECK(text(gone.getPreview().getCodeName()) == "not_found");
  CHECK(t.call(admin.previewRequest()).getError().getCode() == code(ErrorCode::invalid_argument));
}

TEST_CASE("Preview: a revocation names the sessions that have the lease") {
  Rpc t;
  FixtureClient root(t, 0, 1), user(t, 1000, 2);
  auto admin = t.admin(root);
  t.make_pool(admin);
  auto tenant = t.session(user);
  const auto held = t.grant(tenant, 2 * mib);
  const auto would = preview(t, admin, [&](auto act) {
    act.initRevoke().setLease(held.getInfo().getId());
    act.getRevoke().setGraceNs(5 * ns_per_s);
  });
  REQUIRE(would.getPreview().getHolders().size() == 1);
  CHECK(text(would.getPreview().getHolders()[0]).find("test") == 0);
}

TEST_CASE("Grant: an operator's is its own tenant's, an administrator's anybody's, and once for each key") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto admin = t.admin(root);
  t.make_pool(admin);
  const auto first = ask_grant(t, admin, "alice", 2 * mib, 7);
  const auto again = ask_grant(t, admin, "alice", 2 * mib, 7);
  CHECK(first.getInfo().getId() == again.getInfo().getId());
  CHECK(leases(t, admin) == 1);
  FixtureClient watcher(t, 1000, 2, made_socket(SocketRole::oversight));
  auto operator_ = t.admin(watcher);
  CHECK(ask_grant(t, operator_, "alice", 2 * mib).getError().getCode() == code(ErrorCode::permission_denied));
  CHECK(leases(t, admin) == 1);
  CHECK(text(ask_grant(t, operator_, "", 2 * mib).getInfo().getTenant()) == "uid-1000");
  auto waits = admin.grantRequest();
  waits.initGrant().setBytes(2 * mib);
  waits.getGrant().setWaitNs(1);
  CHECK(t.call(waits).getError().getCode() == code(ErrorCode::invalid_argument));
  CHECK(ask_grant(t, admin, "alice", 4096 * mib).getError().getCode() == code(ErrorCode::capacity_exhausted));
}

TEST_CASE("Who asks: the role, the methods that it may call, and why it may only look") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto admin = t.admin(root);
  const auto of_root = t.call(admin.whoAmIRequest());
  CHECK(text(of_root.getWho().getRole()) == "administrator");
  CHECK(text(of_root.getWho().getTenant()) == "uid-0");
  CHECK(may_call(of_root.getWho(), "set_quota"));
  CHECK(text(of_root.getWho().getReadOnly()).empty());
  FixtureClient watcher(t, 1000, 2, made_socket(SocketRole::oversight, "it is only to be read"));
  auto operator_ = t.admin(watcher);
  const auto of_watcher = t.call(operator_.whoAmIRequest());
  CHECK(text(of_watcher.getWho().getRole()) == "operator");
  CHECK(may_call(of_watcher.getWho(), "drain"));
  CHECK_FALSE(may_call(of_watcher.getWho(), "set_quota"));
  CHECK(text(of_watcher.getWho().getReadOnly()) == "it is only to be read");
}
