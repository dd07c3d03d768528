// SPDX-License-Identifier: Apache-2.0
// Devices that come and go, looked at when the test says.
#include <doctest/doctest.h>

#include "tests/unit/event_loop/stepped_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::SteppedFixture;

namespace {

struct DeviceFixture : SteppedFixture {
  DeviceFixture() {
    start();
    compose();
    device = engine->state().find_device("emu:a")->id;
  }
  void look() {
    answer(engine->look_at_devices().then([] { return true; }));
  }
  bool absent() const { return engine->state().absent(device); }
  DeviceId device;
};

}  // namespace

TEST_CASE("Engine: a device is not lost for as long as nobody can look") {
  DeviceFixture fixture;
  fixture.backend.unplug("emu:a");
  fixture.backend.blind = true;
  for (int i = 0; i < 3; ++i) {
    fixture.look();
    fixture.pass(1 * ns_per_s);
  }
  CHECK(!fixture.absent());
}

TEST_CASE("Engine: a device that was seen again is missed anew") {
  DeviceFixture fixture;
  fixture.backend.unplug("emu:a");
  fixture.look();
  fixture.backend.plug("emu:a");
  fixture.pass(50 * ns_per_ms);
  fixture.look();
  fixture.backend.unplug("emu:a");
  fixture.pass(1 * ns_per_s);
  fixture.look();
  CHECK(!fixture.absent());
  fixture.pass(1 * ns_per_s);
  fixture.look();
  CHECK(fixture.absent());
}

TEST_CASE("Engine: a device of which there is less than was adopted is not the one") {
  DeviceFixture fixture;
  fixture.backend.device_bytes -= 2 * mib;
  fixture.look();
  fixture.pass(1 * ns_per_s);
  fixture.look();
  CHECK(fixture.absent());
}

TEST_CASE("Engine: a device that is back tells nothing to a state that is lost") {
  DeviceFixture fixture;
  fixture.backend.unplug("emu:a");
  fixture.look();
  fixture.pass(1 * ns_per_s);
  fixture.look();
  REQUIRE(fixture.absent());
  fixture.backend.plug("emu:a");
  fixture.jobs.hold("bulk");
  auto looked = fixture.engine->look_at_devices();
  fixture.turn();
  fixture.jobs.do_one("bulk");  // the look; what is on the device is asked for behind it
  fixture.turn();
  REQUIRE(fixture.jobs.waiting("bulk") == 1);
  fixture.break_store();
  fixture.jobs.do_one("bulk");
  fixture.turn();
  CHECK(fixture.watcher.applied_to_lost == 0);
  fixture.jobs.let_go("bulk");
  fixture.pass(10 * ns_per_s);
  CHECK(fixture.engine->serving());
}

TEST_CASE("Engine: a device that could not be taken over is not adopted afterwards") {
  SteppedFixture fixture;
  fixture.start();
  fixture.memory.failures["take_over"] =
      Error{.code = ErrorCode::busy, .where = "take_over", .detail = "planted"};
  const AdoptDevice adopt{"emu:a", "emulated", fixture.backend.device_bytes, 2 * mib};
  const auto refused = fixture.answer(fixture.engine->adopt(adopt, {"tester"}));
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK(fixture.engine->state().devices().empty());
  CHECK(fixture.store.load()->devices.empty());
}
