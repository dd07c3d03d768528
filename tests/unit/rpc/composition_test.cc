// SPDX-License-Identifier: Apache-2.0
// The operator's view of devices and pools: what a pool is made of, what a drain or a compaction waits for.
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

void adopt(Rpc& t, terrace::rpc::Admin::Client& operator_, const char* serial) {
  REQUIRE(t.with_serial(operator_.adoptRequest(), serial).getError().getCode() == 0);
}

auto create_pool(Rpc& t, terrace::rpc::Admin::Client& operator_, std::vector<const char*> serials,
                 terrace::rpc::Placement placement = terrace::rpc::Placement::LINEAR,
                 uint64_t stripe_bytes = 0) {
  auto create = operator_.createPoolRequest();
  create.setName("p");
  create.setPlacement(placement);
  create.setStripeBytes(stripe_bytes);
  auto devices = create.initDevices(static_cast<uint32_t>(serials.size()));
  for (uint32_t i = 0; i < serials.size(); ++i) devices.set(i, serials[i]);
  return t.call(create);
}

}  // namespace

TEST_CASE("Pool: its placement and stripe are what it was made with") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  adopt(t, operator_, "emu:a");
  adopt(t, operator_, "emu:b");
  REQUIRE(create_pool(t, operator_, {"emu:a", "emu:b"}, terrace::rpc::Placement::STRIPED, 4 * mib)
              .getError()
              .getCode() == 0);
  const auto pools = t.call(operator_.poolsRequest());
  CHECK(pools.getPools()[0].getPlacement() == terrace::rpc::Placement::STRIPED);
  CHECK(pools.getPools()[0].getStripeBytes() == 4 * mib);
  auto tenant = t.session(client);
  const auto granted = t.grant(tenant, 16 * mib);
  REQUIRE(granted.getError().getCode() == 0);
  uint64_t on_a = 0;
  for (const auto extent : granted.getInfo().getExtents())
    if (std::string(extent.getDevice().cStr()) == "emu:a") on_a += extent.getLength();
  CHECK(on_a == 8 * mib);
}

TEST_CASE("Pool: its free runs are counted by class") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  REQUIRE(t.grant(tenant, 2 * mib).getError().getCode() == 0);
  const auto reply = t.call(operator_.poolsRequest());
  const auto pool = reply.getPools()[0];
  REQUIRE(pool.getFreeClasses().size() == 2);
  CHECK(pool.getFreeClasses()[0].getRunBytesMin() == 32 * mib);
  CHECK(pool.getFreeClasses()[0].getBytes() == 62 * mib);
  CHECK(pool.getFreeClasses()[1].getRunBytesMin() == 64 * mib);
  CHECK(pool.getFreeClasses()[1].getRuns() == 1);
  CHECK(pool.getGrantableBytes() == 126 * mib);
}

TEST_CASE("Pool: a device is added to a live one") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  adopt(t, operator_, "emu:a");
  adopt(t, operator_, "emu:b");
  REQUIRE(create_pool(t, operator_, {"emu:a"}).getError().getCode() == 0);
  auto tenant = t.session(client);
  REQUIRE(t.grant(tenant, 64 * mib).getError().getCode() == 0);
  auto add = operator_.addDeviceRequest();
  add.setPool("p");
  add.setSerial("emu:b");
  const auto reply = t.call(add);
  REQUIRE(reply.getError().getCode() == 0);
  CHECK(reply.getPool().getCapacityBytes() == 128 * mib);
  CHECK(t.grant(tenant, 64 * mib).getError().getCode() == 0);
}

TEST_CASE("Drain: a lease that cannot move is named as what blocks it, with what to do") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  const auto granted = t.grant(tenant, 8 * mib);
  const std::string device = granted.getInfo().getExtents()[0].getDevice().cStr();
  const auto reply = t.with_serial(operator_.drainRequest(), device.c_str());
  REQUIRE(reply.getError().getCode() == 0);
  const auto progress = reply.getProgress();
  CHECK(progress.getDevice().getState() == terrace::rpc::DeviceState::DRAINING);
  CHECK(progress.getLeftBytes() == 8 * mib);
  REQUIRE(progress.getMoves().size() == 1);
  CHECK(progress.getMoves()[0].getLease() == granted.getInfo().getId());
  CHECK(progress.getMoves()[0].getBlocked());
  CHECK(std::string(progress.getMoves()[0].getState().cStr()) == "not movable: release or revoke it");
  CHECK(t.grant(tenant, 128 * mib).getError().getCode() == code(ErrorCode::capacity_exhausted));
  CHECK(t.with_serial(operator_.removeDeviceRequest(), device.c_str()).getError().getCode() != 0);

  CHECK(t.call(granted.getLease().releaseRequest()).getError().getCode() == 0);
  t.pump(50);
  const auto later = t.with_serial(operator_.progressRequest(), device.c_str());
  CHECK(later.getProgress().getLeftBytes() == 0);
  CHECK(later.getProgress().getMoves().size() == 0);
  CHECK(t.with_serial(operator_.removeDeviceRequest(), device.c_str()).getError().getCode() == 0);
  const auto pools = t.call(operator_.poolsRequest());
  CHECK(pools.getPools()[0].getCapacityBytes() == 64 * mib);
}

TEST_CASE("Drain: it can be ended, and of an unknown device there is none") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  CHECK(t.with_serial(operator_.drainRequest(), "emu:a").getError().getCode() == 0);
  const auto ended = t.with_serial(operator_.undrainRequest(), "emu:a");
  CHECK(ended.getDevice().getState() == terrace::rpc::DeviceState::IN_SERVICE);
  CHECK(t.with_serial(operator_.drainRequest(), "emu:nowhere").getError().getCode() ==
        code(ErrorCode::not_found));
  CHECK(t.with_serial(operator_.progressRequest(), "emu:nowhere").getError().getCode() ==
        code(ErrorCode::not_found));
}

TEST_CASE("Device: a failed one takes its own leases with it, and their holders are told why") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  const auto first = t.grant(tenant, 64 * mib);
  const auto second = t.grant(tenant, 64 * mib);
  const std::string device = first.getInfo().getExtents()[0].getDevice().cStr();
  const auto reply = t.with_serial(operator_.failDeviceRequest(), device.c_str());
  REQUIRE(reply.getError().getCode() == 0);
  CHECK(reply.getDevice().getState() == terrace::rpc::DeviceState::FAILED);
  t.pump(50);
  REQUIRE(t.notices.size() == 1);
  CHECK(t.notices[0].lease == first.getInfo().getId());
  CHECK(t.notices[0].fenced);
  CHECK(t.notices[0].cause == terrace::rpc::LeaseCause::DEVICE_LOST);
  CHECK(t.call(second.getLease().infoRequest()).getInfo().getPhase() == terrace::rpc::LeasePhase::ACTIVE);
}

TEST_CASE("Devices: the list shows what leases have of each") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  REQUIRE(t.grant(tenant, 6 * mib).getError().getCode() == 0);
  const auto devices = t.call(operator_.devicesRequest());
  uint64_t used = 0, leases = 0, largest = 0;
  for (const auto device : devices.getDevices()) {
    if (!device.getAdopted()) continue;
    used += device.getUsedBytes();
    leases += device.getLeases();
    largest = std::max(largest, device.getLargestFreeBytes());
  }
  CHECK(used == 6 * mib);
  CHECK(leases == 1);
  CHECK(largest == 64 * mib);
}

TEST_CASE("Compaction: one is planned, shown and ended") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  adopt(t, operator_, "emu:a");
  REQUIRE(create_pool(t, operator_, {"emu:a"}).getError().getCode() == 0);
  auto tenant = t.session(client);
  // Sixteen leases of 4 MiB; every second one goes, so that no free run is longer than 4 MiB.
  std::vector<terrace::rpc::Lease::Client> leases;
  for (int i = 0; i < 16; ++i) {
    auto request = tenant.grantRequest();
    request.getRequest().setPool("p");
    request.getRequest().setBytes(4 * mib);
    request.getRequest().setMovable(true);
    const auto granted = t.call(request);
    REQUIRE(granted.getError().getCode() == 0);
    CHECK(granted.getInfo().getMovable());
    leases.push_back(granted.getLease());
  }
  for (size_t i = 0; i < leases.size(); i += 2) t.call(leases[i].releaseRequest());
  t.pump(50);
  auto show = operator_.compactRequest();
  show.setPool("p");
  CHECK_FALSE(t.call(show).getCompaction().getActive());
  auto compact = operator_.compactRequest();
  compact.setPool("p");
  compact.setRunBytes(8 * mib);
  const auto planned = t.call(compact);
  REQUIRE(planned.getError().getCode() == 0);
  CHECK(planned.getCompaction().getActive());
  CHECK(planned.getCompaction().getLength() == 8 * mib);
  CHECK(planned.getCompaction().getLeftBytes() == 4 * mib);
  REQUIRE(planned.getCompaction().getMoves().size() == 1);
  CHECK_FALSE(planned.getCompaction().getMoves()[0].getBlocked());
  auto end = operator_.endCompactionRequest();
  end.setPool("p");
  CHECK(t.call(end).getError().getCode() == 0);
  auto again = operator_.compactRequest();
  again.setPool("p");
  CHECK_FALSE(t.call(again).getCompaction().getActive());
  auto nowhere = operator_.compactRequest();
  nowhere.setPool("nowhere");
  CHECK(t.call(nowhere).getError().getCode() == code(ErrorCode::not_found));
}

TEST_CASE("Quarantine: what could not be erased is listed, and a release that succeeds takes it off the list") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  const auto granted = t.grant(tenant, 8 * mib);
  t.backend.fail_scrub = true;
  t.call(granted.getLease().releaseRequest());
  t.pump(50);
  const auto listed = t.call(operator_.quarantinedRequest());
  REQUIRE(listed.getLeases().size() == 1);
  CHECK(listed.getLeases()[0].getId() == granted.getInfo().getId());
  t.backend.fail_scrub = false;
  auto release = operator_.releaseRequest();
  release.setLease(granted.getInfo().getId());
  CHECK(t.call(release).getError().getCode() == 0);
  t.pump(50);
  CHECK(t.call(operator_.quarantinedRequest()).getLeases().size() == 0);
  CHECK(t.free_bytes(operator_) == 128 * mib);
}

TEST_CASE("Pool: memory that pins outlast is granted on an operator's word only") {
  Rpc t;
  FixtureClient client(t, 0, 1);
  auto operator_ = t.admin(client);
  t.make_pool(operator_);
  auto tenant = t.session(client);
  const auto pool = [&] { return t.call(operator_.poolsRequest()); };
  CHECK(pool().getPools()[0].getIsolation() == terrace::rpc::Isolation::VERIFIED);
  auto lease = t.grant(tenant, 2 * mib);
  REQUIRE(lease.getError().getCode() == 0);

  t.backend.pins_outlast = true;
  CHECK(pool().getPools()[0].getIsolation() == terrace::rpc::Isolation::TRUSTING);
  CHECK(t.call(operator_.devicesRequest()).getDevices()[0].getIsolation() == terrace::rpc::Isolation::TRUSTING);
  CHECK(t.grant(tenant, 2 * mib).getError().getCode() == code(ErrorCode::permission_denied));
  const auto hand_over = [&] {
    auto transfer = operator_.transferRequest();
    transfer.setLease(lease.getInfo().getId());
    transfer.setTenant("somebody");
    return t.call(transfer).getError().getCode();
  };
  auto quota = operator_.setQuotaRequest();
  quota.getQuota().setTenant("somebody");
  quota.getQuota().setLeasesMax(9);
  REQUIRE(t.call(quota).getError().getCode() == 0);
  CHECK(hand_over() == code(ErrorCode::permission_denied));

  auto trust = operator_.setPoolTrustRequest();
  trust.setName("p");
  trust.setTrust(terrace::rpc::Trust::MUTUAL);
  CHECK(t.call(trust).getPool().getTrust() == terrace::rpc::Trust::MUTUAL);
  CHECK(t.grant(tenant, 2 * mib).getError().getCode() == 0);
  CHECK(hand_over() == 0);
}
