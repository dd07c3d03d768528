// SPDX-License-Identifier: Apache-2.0
// Start-up with devices missing, failed or draining, and with impossible rows of composition.
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

struct Start {
  StateMachine machine;
  Recovery recovery;
};

Start start(const Image& image, const std::vector<std::string>& serials, bool with_objects) {
  Start result;
  Observation observed;
  observed.device_serials = serials;
  if (with_objects)
    for (const LeaseRow& lease : image.leases) observed.objects.emplace_back(lease.object, lease.bytes);
  auto recovery = result.machine.recover(image, observed, "boot-1", 1000 * second);
  REQUIRE(recovery.ok());
  result.recovery = std::move(recovery).value();
  return result;
}

std::string findings(const Start& s) {
  std::string all;
  for (const std::string& finding : s.recovery.findings) all += finding + "\n";
  return all;
}

}  // namespace

TEST_CASE("recovery: a lease whose object is there goes on without its device; the finding says so") {
  Manager m({4});
  const LeaseRow lease = m.grant(2);
  const Start s = start(m.machine.image(), {}, true);
  CHECK(s.machine.find_lease(lease.id)->phase == LeasePhase::active);
  CHECK(findings(s).find("device emu:0 below it is not seen") != std::string::npos);
}

TEST_CASE("recovery: a lease whose object went with its device has lost the device, until that is back") {
  Manager m({4});
  const LeaseRow lease = m.grant(2);
  Start s = start(m.machine.image(), {}, false);
  CHECK(s.machine.find_lease(lease.id)->phase == LeasePhase::fencing);
  CHECK(s.machine.find_lease(lease.id)->cause == LeaseCause::device_lost);
  REQUIRE(s.machine.apply(FenceFinished{lease.id, {}, 1}).reply.ok());
  CHECK(s.machine.find_lease(lease.id)->phase == LeasePhase::quarantined);

  const Start still = start(s.machine.image(), {}, false);
  CHECK(still.machine.find_lease(lease.id)->phase == LeasePhase::quarantined);
  const Start back = start(s.machine.image(), {"emu:0"}, false);
  CHECK(back.machine.find_lease(lease.id)->phase == LeasePhase::fencing);
  CHECK(back.recovery.delta.leases.contains(lease.id));
  CHECK(back.recovery.effects.size() == 1);
  CHECK(findings(back).find("leaves quarantine") != std::string::npos);
}

TEST_CASE("recovery: draining and failed devices stay so; what a failed one holds stays quarantined") {
  Manager m({4, 4});
  const LeaseRow lease = m.grant(4);
  REQUIRE(m.apply(FailDevice{"emu:0", m.now_ns}).reply.ok());
  REQUIRE(m.apply(FenceFinished{lease.id, failure(), m.now_ns}).reply.ok());
  REQUIRE(m.apply(DrainDevice{"emu:1"}).reply.ok());
  const Start s = start(m.machine.image(), {"emu:0", "emu:1"}, false);
  CHECK(s.machine.find_device("emu:0")->state == DeviceState::failed);
  CHECK(s.machine.find_device("emu:1")->state == DeviceState::draining);
  CHECK(s.machine.find_lease(lease.id)->phase == LeasePhase::quarantined);
}

TEST_CASE("recovery: a pool keeps its placement and stripe") {
  Manager m;
  REQUIRE(m.adopt("emu:0", 8).reply.ok());
  REQUIRE(m.apply(CreatePool{"p", {"emu:0"}, Placement::striped, 4 * granule}).reply.ok());
  const Start s = start(m.machine.image(), {"emu:0"}, false);
  CHECK(s.machine.find_pool("p")->placement == Placement::striped);
  CHECK(s.machine.find_pool("p")->stripe_bytes == 4 * granule);
}

TEST_CASE("recovery: rows with an impossible placement, stripe, state or size are corrupt") {
  Manager m;
  REQUIRE(m.apply(AdoptDevice{"emu:0", "emulated", 8 * granule, 2 * granule}).reply.ok());
  REQUIRE(m.apply(CreatePool{"p", {"emu:0"}, Placement::striped, 0}).reply.ok());
  const Image good = m.machine.image();
  const auto refused = [&](auto change) {
    Image image = good;
    change(image);
    StateMachine machine;
    const auto recovery = machine.recover(image, {}, "boot-1", 1);
    return !recovery.ok() && recovery.error().code == ErrorCode::corrupt;
  };
  CHECK_FALSE(refused([](Image&) {}));
  CHECK(refused([](Image& i) { i.pools[0].placement = static_cast<Placement>(3); }));
  CHECK(refused([](Image& i) { i.pools[0].placement = Placement::spread; }));
  CHECK(refused([](Image& i) { i.pools[0].stripe_bytes = 0; }));
  CHECK(refused([](Image& i) { i.pools[0].stripe_bytes = 3 * granule; }));
  CHECK(refused([](Image& i) { i.devices[0].state = static_cast<DeviceState>(3); }));
  CHECK(refused([](Image& i) { i.devices[0].capacity_bytes = (device_granules_max + 1) * 2 * granule; }));
}
