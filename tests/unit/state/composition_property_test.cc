// SPDX-License-Identifier: Apache-2.0
// Devices come, go, fail and come back under leases: the fixture checks every invariant after each command, and
// a restart from the rows at any point is a state without contradiction.
#include "core/base/prng.h"
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

std::string serial_of(uint64_t i) {
  return "emu:" + std::to_string(i);
}

class Life {
 public:
  explicit Life(uint64_t seed) : prng_(seed), m_({12, 20, 9}) {
    REQUIRE(m_.adopt("emu:3", 16).reply.ok());
    REQUIRE(m_.apply(AddDevice{"p", "emu:3"}).reply.ok());
  }

  void step() {
    m_.now_ns += prng_.below(second);
    if (prng_.chance(1, 60)) return restart();
    const uint64_t dice = prng_.below(100);
    if (dice < 30) return grant();
    if (dice < 60) return advance();
    if (dice < 70) return quietly(Release{pick(), "", m_.now_ns});
    if (dice < 72) return quietly(Tick{m_.now_ns});
    const std::string serial = serial_of(prng_.below(5));
    if (dice < 75) return quietly(DrainDevice{serial});
    if (dice < 80) return quietly(UndrainDevice{serial, m_.now_ns});
    if (dice < 82) return quietly(FailDevice{serial, m_.now_ns});
    if (dice < 85) return quietly(DeviceLost{serial, m_.now_ns});
    if (dice < 90) return quietly(DeviceBack{serial, m_.now_ns});
    if (dice < 92) return quietly(RemoveDevice{serial, prng_.chance(1, 2)});
    if (dice < 95) {
      quietly(AdoptDevice{serial, "emulated", prng_.between(8, 24) * granule, granule});
      return quietly(AddDevice{"p", serial});
    }
    quietly(CompactPool{"p", prng_.between(2, 12) * granule, m_.now_ns + 20 * second, m_.now_ns});
  }

  uint64_t lost = 0, retried = 0;

 private:
  void quietly(const Command& command) {
    const Step step = m_.apply(command);
    for (const auto& [id, row] : step.delta.leases)
      if (row.has_value() && row->cause == LeaseCause::device_lost) ++lost;
    if (std::holds_alternative<DeviceBack>(command)) retried += step.effects.size();
  }

  void grant() {
    Grant asked = m_.request(prng_.between(1, 14) * granule);
    asked.movable = prng_.chance(2, 3);
    m_.apply(asked);
  }

  // The next thing that the shell would report of some lease.
  void advance() {
    const LeaseId id = pick();
    const LeaseRow* lease = m_.machine.find_lease(id);
    if (lease == nullptr) return;
    const Status status = prng_.chance(1, 12) ? Status(failure()) : Status();
    if (lease->phase == LeasePhase::pending) {
      // Refused when its device is lost, yet it leaves a row: not what the fixture expects of a refusal.
      m_.machine.apply(CarveFinished{id, status, m_.now_ns});
      REQUIRE(m_.machine.check_all().empty());
    } else if (lease->phase == LeasePhase::fencing) {
      quietly(FenceFinished{id, status, m_.now_ns});
    } else if (lease->phase == LeasePhase::scrubbing) {
      quietly(ScrubFinished{id, status, m_.now_ns});
    }
  }

  LeaseId pick() {
    const auto& leases = m_.machine.leases();
    if (leases.empty()) return {};
    return std::next(leases.begin(), static_cast<long>(prng_.below(leases.size())))->first;
  }

  void restart() {
    const Image image = m_.machine.image();
    Observation observed;
    for (const DeviceRow& device : image.devices)
      if (!prng_.chance(1, 6)) observed.device_serials.push_back(device.serial);
    for (const LeaseRow& lease : image.leases)
      if (!prng_.chance(1, 10)) observed.objects.emplace_back(lease.object, lease.bytes);
    StateMachine next;
    const auto recovery = next.recover(image, observed, "boot-1", m_.now_ns);
    REQUIRE(recovery.ok());
    REQUIRE(next.check_all().empty());
    m_.machine = std::move(next);
  }

  Prng prng_;
  Manager m_;
};

}  // namespace

TEST_CASE(
    "composition: every invariant holds while devices drain, fail, vanish, return and leave under leases") {
  uint64_t lost = 0, retried = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    INFO("seed " << seed);
    Life life(seed);
    for (int i = 0; i < 600; ++i) life.step();
    lost += life.lost;
    retried += life.retried;
  }
  MESSAGE(lost << " rows of leases that lost a device, " << retried << " tried again when it was back");
  CHECK(lost > 100);
  CHECK(retried > 20);
}
