// Stores that contradict themselves: each is refused as a whole, with the row named.
#include <functional>
#include <string>

#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

// Two pools of one device each; two leases in the first, one revoked.
Image sound_image() {
  Manager m({8});
  REQUIRE(m.adopt("emu:1", 8).reply.ok());
  REQUIRE(m.apply(CreatePool{"q", {"emu:1"}}).reply.ok());
  Grant asked = m.request(2 * granule);
  asked.label = "weights";
  asked.request_low = 1;
  (void)m.grant(asked);
  asked.label = "cache";
  asked.request_low = 2;
  const LeaseRow second_lease = m.grant(asked);
  REQUIRE(m.apply(Revoke{second_lease.id, "", 5 * second, m.now_ns}).reply.ok());
  return m.machine.image();
}

Result<Recovery> recover(const Image& image) {
  StateMachine machine;
  Observation observed;
  observed.device_serials = {"emu:0", "emu:1"};
  for (const LeaseRow& lease : image.leases) observed.objects.emplace_back(lease.object, lease.bytes);
  return machine.recover(image, observed, "boot-1", 1001 * second);
}

void check_corrupt(const std::string& what, const std::function<void(Image&)>& spoil) {
  CAPTURE(what);
  Image image = sound_image();
  spoil(image);
  const auto result = recover(image);
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().code == ErrorCode::corrupt);
  CHECK_FALSE(result.error().detail.empty());
}

LeaseRow& first(Image& image) {
  return image.leases.at(0);
}

}  // namespace

TEST_CASE("corrupt image: the sound one is accepted") {
  CHECK(recover(sound_image()).ok());
}

TEST_CASE("corrupt image: extents that overlap, leave their device or name no granule") {
  check_corrupt("two leases share a granule", [](Image& i) { i.leases[1].extents = i.leases[0].extents; });
  check_corrupt("two leases share one of several granules",
                [](Image& i) { i.leases[1].extents[0].first_granule = first(i).extents[0].first_granule + 1; });
  check_corrupt("a lease has a granule twice", [](Image& i) {
    first(i).extents = {{first(i).extents[0].device, 6, 1}, {first(i).extents[0].device, 6, 1}};
  });
  check_corrupt("beyond the device's end", [](Image& i) { first(i).extents[0].first_granule = 7; });
  check_corrupt("far beyond", [](Image& i) { first(i).extents[0].first_granule = UINT64_MAX; });
  check_corrupt("no granule", [](Image& i) { first(i).extents[0].granules = 0; });
  check_corrupt("more granules than numbers", [](Image& i) { first(i).extents[0].granules = UINT64_MAX; });
  check_corrupt("no extent", [](Image& i) { first(i).extents.clear(); });
  check_corrupt("too many extents", [](Image& i) { first(i).extents.resize(limits::lease_extents_max + 1); });
  check_corrupt("unknown device", [](Image& i) { first(i).extents[0].device = DeviceId{9}; });
  check_corrupt("device of another pool", [](Image& i) { first(i).extents[0].device = DeviceId{2}; });
  check_corrupt("bytes that differ", [](Image& i) { first(i).bytes += granule; });
}

TEST_CASE("corrupt image: leases with ids, epochs or names that cannot be") {
  check_corrupt("id 0", [](Image& i) { first(i).id = LeaseId{0}; });
  check_corrupt("id of the next lease", [](Image& i) { first(i).id = LeaseId{i.meta.next_lease}; });
  check_corrupt("id twice", [](Image& i) { i.leases[1].id = first(i).id; });
  check_corrupt("epoch 0", [](Image& i) { first(i).epoch = LeaseEpoch{0}; });
  check_corrupt("epoch to come", [](Image& i) { first(i).epoch = LeaseEpoch{i.meta.next_epoch}; });
  check_corrupt("epoch twice", [](Image& i) { i.leases[1].epoch = first(i).epoch; });
  check_corrupt("unknown pool", [](Image& i) { first(i).pool = PoolId{9}; });
  check_corrupt("label twice", [](Image& i) { i.leases[1].label = first(i).label; });
  check_corrupt("key twice", [](Image& i) { i.leases[1].request_low = first(i).request_low; });
  // Found by review: two leases could name one object, and both would have handed out its descriptor.
  check_corrupt("object twice", [](Image& i) { i.leases[1].object = first(i).object; });
  check_corrupt("object outside its directory", [](Image& i) { first(i).object = "../etc/passwd"; });
  check_corrupt("no object", [](Image& i) { first(i).object.clear(); });
  check_corrupt("tenant", [](Image& i) { first(i).tenant = "a b"; });
  check_corrupt("host", [](Image& i) { first(i).host.clear(); });
  check_corrupt("label with a newline", [](Image& i) { first(i).label = "a\nb"; });
  check_corrupt("reason too long", [](Image& i) { first(i).reason = std::string(256, 'x'); });
}

TEST_CASE("corrupt image: leases in impossible phases or with impossible times") {
  check_corrupt("pending", [](Image& i) { first(i).phase = LeasePhase::pending; });
  check_corrupt("waiting", [](Image& i) { first(i).phase = LeasePhase::waiting; });
  check_corrupt("unknown phase", [](Image& i) { first(i).phase = static_cast<LeasePhase>(8); });
  check_corrupt("unknown mode", [](Image& i) { first(i).mode = static_cast<LeaseMode>(3); });
  check_corrupt("no expiry", [](Image& i) { first(i).expiry_ns = 0; });
  check_corrupt("persistent with expiry", [](Image& i) { first(i).ttl_ns = 0; });
  check_corrupt("TTL too short", [](Image& i) { first(i).ttl_ns = 1; });
  check_corrupt("TTL too long", [](Image& i) { first(i).ttl_ns = limits::ttl_ns_max + 1; });
  check_corrupt("deadline without revocation", [](Image& i) { first(i).deadline_ns = 1; });
  check_corrupt("revocation without deadline", [](Image& i) { i.leases[1].deadline_ns = 0; });
  check_corrupt("fencing with expiry", [](Image& i) { first(i).phase = LeasePhase::fencing; });
}

TEST_CASE("corrupt image: devices and pools that cannot be") {
  check_corrupt("device id 0", [](Image& i) { i.devices[0].id = DeviceId{0}; });
  check_corrupt("device id to come", [](Image& i) { i.devices[1].id = DeviceId{i.meta.next_device}; });
  check_corrupt("device id twice", [](Image& i) { i.devices[1].id = i.devices[0].id; });
  check_corrupt("serial twice", [](Image& i) { i.devices[1].serial = i.devices[0].serial; });
  check_corrupt("no serial", [](Image& i) { i.devices[1].serial.clear(); });
  check_corrupt("no capacity", [](Image& i) { i.devices[1].capacity_bytes = 0; });
  check_corrupt("part of a granule", [](Image& i) { i.devices[1].capacity_bytes += 4096; });
  check_corrupt("granule no power of two", [](Image& i) { i.devices[1].granule_bytes = 3 * granule; });
  check_corrupt("no granule", [](Image& i) { i.devices[1].granule_bytes = 0; });
  check_corrupt("device in an unknown pool", [](Image& i) { i.devices[1].pool = PoolId{9}; });
  check_corrupt("device shrank below its leases", [](Image& i) { i.devices[0].capacity_bytes = granule; });
  check_corrupt("pool id 0", [](Image& i) { i.pools[1].id = PoolId{0}; });
  check_corrupt("pool id to come", [](Image& i) { i.pools[1].id = PoolId{i.meta.next_pool}; });
  check_corrupt("pool id twice", [](Image& i) { i.pools[1].id = i.pools[0].id; });
  check_corrupt("pool name twice", [](Image& i) { i.pools[1].name = i.pools[0].name; });
  check_corrupt("pool lost", [](Image& i) { i.pools.erase(i.pools.begin()); });
  check_corrupt("devices lost", [](Image& i) { i.devices.clear(); });
  // Found by this test: a grant over both devices would have counted its bytes by the granule of one.
  check_corrupt("granules of one pool differ", [](Image& i) {
    i.devices[1].pool = i.pools[0].id;
    i.devices[1].granule_bytes = 2 * granule;
  });
}

TEST_CASE("corrupt image: counters that were set back") {
  check_corrupt("all lost", [](Image& i) { i.meta = MetaRow{}; });
  check_corrupt("next lease", [](Image& i) { i.meta.next_lease = 1; });
  check_corrupt("next epoch", [](Image& i) { i.meta.next_epoch = 1; });
  check_corrupt("zero", [](Image& i) { i.meta.next_pool = 0; });
}
