// SPDX-License-Identifier: Apache-2.0
// Devices and pools.
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

TEST_CASE("StateMachine: an adopted device has whole granules and belongs to no pool") {
  Manager m;
  const Step step = m.apply(AdoptDevice{"emu:0", "emulated", 10 * granule + 4096, granule});
  REQUIRE(step.reply.ok());
  const DeviceRow row = std::get<DeviceReply>(*step.reply).device;
  CHECK(row.capacity_bytes == 10 * granule);
  CHECK_FALSE(row.pool.valid());
  CHECK(*step.delta.devices.at(row.id) == row);
  CHECK(step.delta.meta->next_device == row.id.value + 1);
  CHECK(m.machine.device_free_bytes(row.id) == 10 * granule);
}

TEST_CASE("StateMachine: adopting a device twice is no change; with another size it is refused") {
  Manager m;
  const DeviceRow row = std::get<DeviceReply>(*m.adopt("emu:0", 10).reply).device;
  const Step again = m.adopt("emu:0", 10);
  REQUIRE(again.reply.ok());
  CHECK(std::get<DeviceReply>(*again.reply).device == row);
  CHECK(again.delta.empty());
  CHECK(code_of(m.adopt("emu:0", 9)) == ErrorCode::already_exists);
}

TEST_CASE("StateMachine: devices with impossible names, sizes or granules are refused") {
  Manager m;
  for (const AdoptDevice& device :
       {AdoptDevice{"", "emulated", granule, granule}, AdoptDevice{"a/b", "emulated", granule, granule},
        AdoptDevice{std::string(64, 'x'), "emulated", granule, granule},
        AdoptDevice{"emu:0", "emulated", granule - 1, granule}, AdoptDevice{"emu:0", "emulated", 0, granule},
        AdoptDevice{"emu:0", "emulated", 4 * granule, 3 * granule},
        AdoptDevice{"emu:0", "emulated", 4 * granule, granule / 2},
        AdoptDevice{"emu:0", "emulated", 4 * gib, 2 * gib}, AdoptDevice{"emu:0", "emulated", granule, 0}}) {
    CHECK(code_of(m.apply(device)) == ErrorCode::invalid_argument);
  }
  CHECK(m.machine.devices().empty());
}

TEST_CASE("StateMachine: a pool takes its devices, and adds up their capacity") {
  Manager m({10, 6});
  CHECK(m.use().capacity_bytes == 16 * granule);
  CHECK(m.use().free_bytes == 16 * granule);
  CHECK(m.use().largest_free_bytes == 10 * granule);
  CHECK(m.machine.find_device("emu:1")->pool == m.machine.find_pool("p")->id);
}

TEST_CASE("StateMachine: a device is in one pool only") {
  Manager m({10});
  CHECK(code_of(m.apply(CreatePool{"q", {"emu:0"}})) == ErrorCode::busy);
  REQUIRE(m.adopt("emu:9", 4).reply.ok());
  CHECK(code_of(m.apply(CreatePool{"q", {"emu:9", "emu:9"}})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(CreatePool{"q", {"emu:9", "emu:0"}})) == ErrorCode::busy);
  CHECK_FALSE(m.machine.find_device("emu:9")->pool.valid());
}

TEST_CASE("StateMachine: pools with a bad name, no device, an unknown device or unlike devices are refused") {
  Manager m({10});
  REQUIRE(m.adopt("emu:8", 4).reply.ok());
  REQUIRE(m.apply(AdoptDevice{"emu:9", "emulated", 8 * granule, 2 * granule}).reply.ok());
  REQUIRE(m.apply(AdoptDevice{"dax:0", "devdax", 8 * granule, granule}).reply.ok());
  CHECK(code_of(m.apply(CreatePool{"p", {"emu:8"}})) == ErrorCode::already_exists);
  CHECK(code_of(m.apply(CreatePool{"", {"emu:8"}})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(CreatePool{"a b", {"emu:8"}})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(CreatePool{"q", {}})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(CreatePool{"q", {"emu:7"}})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(CreatePool{"q", {"emu:8", "emu:9"}})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(CreatePool{"q", {"emu:8", "dax:0"}})) == ErrorCode::invalid_argument);
}

TEST_CASE("StateMachine: a pool is deleted only once nothing of it is leased, scrubbed or quarantined") {
  Manager m({10});
  const Step pending = m.apply(m.request(granule));
  CHECK(code_of(m.apply(DeletePool{"p"})) == ErrorCode::busy);
  const LeaseId id = std::get<GrantPending>(*pending.reply).lease;
  REQUIRE(m.apply(CarveFinished{id, {}, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(DeletePool{"p"})) == ErrorCode::busy);
  REQUIRE(m.apply(Release{id, "alice", m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(DeletePool{"p"})) == ErrorCode::busy);
  REQUIRE(m.apply(FenceFinished{id, {}, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(DeletePool{"p"})) == ErrorCode::busy);
  REQUIRE(m.apply(ScrubFinished{id, {}, m.now_ns}).reply.ok());
  const Step deleted = m.apply(DeletePool{"p"});
  REQUIRE(deleted.reply.ok());
  CHECK(m.machine.pools().empty());
  CHECK_FALSE(m.machine.find_device("emu:0")->pool.valid());
  CHECK_FALSE(deleted.delta.pools.begin()->second.has_value());
  CHECK(code_of(m.apply(DeletePool{"p"})) == ErrorCode::not_found);
  CHECK(m.apply(CreatePool{"q", {"emu:0"}}).reply.ok());
}

TEST_CASE(
    "StateMachine: memory that pins outlast is granted where an operator says that tenants trust each other") {
  Manager m({10});
  Grant asked = m.request(granule);
  asked.pins_outlast = true;
  const Step refused = m.apply(asked);
  CHECK(code_of(refused) == ErrorCode::permission_denied);
  CHECK(refused.reply.error().detail.find("`terrace pool set p --trust mutual`") != std::string::npos);
  CHECK(refused.delta.empty());
  CHECK(m.use().free_bytes == 10 * granule);

  const Step said = m.apply(SetPoolTrust{"p", TenantTrust::mutual});
  CHECK(said.delta.pools.begin()->second->trust == TenantTrust::mutual);
  CHECK(m.apply(SetPoolTrust{"p", TenantTrust::mutual}).delta.empty());
  const LeaseRow lease = m.grant(asked);
  asked.request_low = 77;
  const LeaseRow keyed = m.grant(asked);
  REQUIRE(m.apply(SetPoolTrust{"p", TenantTrust::none}).reply.ok());
  CHECK(m.apply(asked).reply.ok());  // asked again, it is the lease that was granted
  asked.request_low = 78;
  CHECK(code_of(m.apply(asked)) == ErrorCode::permission_denied);
  CHECK(m.apply(Renew{lease.id, "alice", 0, m.now_ns}).reply.ok());

  Transfer given{lease.id, "alice", "bob", "", m.now_ns};
  given.pins_outlast = true;
  CHECK(code_of(m.apply(given)) == ErrorCode::permission_denied);
  REQUIRE(m.apply(OfferLease{keyed.id, "alice", "bob", "", m.now_ns}).reply.ok());
  AcceptOffer accepted{keyed.id, "bob", m.now_ns};
  accepted.pins_outlast = true;
  CHECK(code_of(m.apply(accepted)) == ErrorCode::permission_denied);
  given.to_tenant = "alice";  // to another host, say: it stays the tenant's
  CHECK(m.apply(given).reply.ok());
}

TEST_CASE("StateMachine: a pool's trust is said when it is made, and of a pool that there is") {
  Manager m({10});
  CHECK(m.machine.find_pool("p")->trust == TenantTrust::none);
  CHECK(code_of(m.apply(SetPoolTrust{"q", TenantTrust::mutual})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(SetPoolTrust{"p", static_cast<TenantTrust>(2)})) == ErrorCode::invalid_argument);
  REQUIRE(m.adopt("emu:9", 4).reply.ok());
  CreatePool create{"q", {"emu:9"}};
  create.trust = static_cast<TenantTrust>(2);
  CHECK(code_of(m.apply(create)) == ErrorCode::invalid_argument);
  create.trust = TenantTrust::mutual;
  REQUIRE(m.apply(create).reply.ok());
  CHECK(m.machine.find_pool("q")->trust == TenantTrust::mutual);
}
