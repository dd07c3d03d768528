// SPDX-License-Identifier: Apache-2.0
// Stores that contradict themselves: each is refused as a whole, with the row named.
#include <functional>
#include <string>
#include <vector>

#include "core/base/prng.h"
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

TEST_CASE("corrupt image: counters of ids that are about to wrap") {
  check_corrupt("leases", [](Image& i) { i.meta.next_lease = UINT64_MAX; });
  check_corrupt("epochs", [](Image& i) { i.meta.next_epoch = UINT64_MAX - 1; });
  check_corrupt("devices", [](Image& i) { i.meta.next_device = uint64_t{1} << 63; });
  check_corrupt("pools", [](Image& i) { i.meta.next_pool = UINT64_MAX; });
  check_corrupt("reservations", [](Image& i) { i.meta.next_reservation = UINT64_MAX; });
}

// An object of such a name was nobody's lease; ids go on from where they were.
TEST_CASE("recovery: an orphan named for an id that no lease gets does not move the counter") {
  const Image image = sound_image();
  StateMachine machine;
  Observation observed;
  observed.device_serials = {"emu:0", "emu:1"};
  for (const LeaseRow& lease : image.leases) observed.objects.emplace_back(lease.object, lease.bytes);
  observed.objects.emplace_back("lease-18446744073709551614", granule);
  const auto recovery = machine.recover(image, observed, "boot-1", 1001 * second);
  REQUIRE(recovery.ok());
  CHECK(recovery->orphans.size() == 1);
  CHECK(machine.image().meta.next_lease == image.meta.next_lease);
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

// What the manager asserts of its own rows it only checks of a store's: no damage may reach an assertion.
TEST_CASE("corrupt image: a sum that would wrap is refused, and ends no process") {
  check_corrupt("reservations that add up beyond 64 bits", [](Image& i) {
    i.meta.next_reservation = 9;
    for (uint64_t id = 1; id <= 4; ++id)
      i.reservations.push_back(
          {.id = ReservationId{id}, .pool = first(i).pool, .tenant = "bob", .bytes = adopted_bytes_max});
  });
}

namespace {

// Numbers of any row that are interesting to each other: small ones, the granule's, the ends.
uint64_t odd_number(Prng& prng, const Image& image) {
  const LeaseRow& lease = image.leases[prng.below(image.leases.size())];
  switch (prng.below(8)) {
    case 0: return 0;
    case 1: return UINT64_MAX - prng.below(2);
    case 2: return prng.below(12);
    case 3: return granule * prng.below(12);
    case 4: return lease.bytes;
    case 5: return lease.expiry_ns;
    case 6: return adopted_bytes_max;
    default: return prng.next();
  }
}

void spoil_lease(Prng& prng, Image& image) {
  LeaseRow& row = image.leases[prng.below(image.leases.size())];
  const LeaseRow& other = image.leases[prng.below(image.leases.size())];
  const uint64_t number = odd_number(prng, image);
  switch (prng.below(18)) {
    case 0: row.id = LeaseId{number}; break;
    case 1: row.pool = PoolId{number}; break;
    case 2: row.epoch = LeaseEpoch{number}; break;
    case 3: row.phase = static_cast<LeasePhase>(prng.below(9)); break;
    case 4: row.bytes = number; break;
    case 5: row.ttl_ns = number; break;
    case 6: row.expiry_ns = number; break;
    case 7: row.deadline_ns = number; break;
    case 8: row.request_high = number; break;
    case 9: row.request_low = other.request_low; break;
    case 10: row.target_bytes = number; break;
    case 11: row.label = other.label; break;
    case 12: row.object = other.object; break;
    case 13: row.next_object = prng.chance(1, 2) ? "" : "lease-77"; break;
    case 14: row.extents = other.extents; break;
    case 15: row.tenant = other.tenant; break;
    case 16: row.cause = static_cast<LeaseCause>(prng.below(9)); break;
    default:
      if (row.extents.empty()) break;
      Extent& extent = row.extents.back();
      (prng.chance(1, 3) ? extent.granules : extent.first_granule) = number;
      if (prng.chance(1, 4)) extent.device = DeviceId{prng.below(4)};
  }
}

void spoil(Prng& prng, Image& image) {
  const uint64_t number = odd_number(prng, image);
  switch (prng.below(12)) {
    case 0: image.meta.next_lease = number; break;
    case 1: image.devices[prng.below(image.devices.size())].capacity_bytes = number; break;
    case 2: image.devices[prng.below(image.devices.size())].pool = PoolId{prng.below(4)}; break;
    case 3: image.reservations[0].bytes = number; break;
    case 4: image.reservations[0].expiry_ns = number; break;
    case 5: image.reservations.push_back(image.reservations[0]); break;
    default: spoil_lease(prng, image);
  }
}

}  // namespace

TEST_CASE("corrupt image: random damage is refused or lived with, and ends no process") {
  Manager m({8});
  REQUIRE(m.adopt("emu:1", 8).reply.ok());
  REQUIRE(m.apply(CreatePool{"q", {"emu:1"}}).reply.ok());
  std::vector<LeaseRow> leases;
  for (uint64_t i = 0; i < 5; ++i) {
    Grant asked = m.request((1 + i % 2) * granule);
    asked.label = "l" + std::to_string(i);
    asked.request_low = i + 1;
    asked.tenant = i == 4 ? "bob" : "alice";
    leases.push_back(m.grant(asked));
  }
  REQUIRE(m.apply(Revoke{leases[0].id, "", 5 * second, m.now_ns}).reply.ok());
  REQUIRE(m.apply(Release{leases[1].id, "", m.now_ns}).reply.ok());
  REQUIRE(m.apply(Transfer{leases[2].id, "", "bob", "", m.now_ns}).reply.ok());
  REQUIRE(m.apply(CreateReservation{"q", "alice", granule, 10 * second, m.now_ns}).reply.ok());
  const Image sound = m.machine.image();
  Prng prng(5);
  uint64_t refused = 0;
  constexpr uint64_t rounds = 20'000;
  for (uint64_t round = 0; round < rounds; ++round) {
    Image image = sound;
    for (uint64_t damages = prng.between(1, 3); damages > 0; --damages) spoil(prng, image);
    StateMachine machine;
    Observation observed;
    for (const char* serial : {"emu:0", "emu:1"})
      if (!prng.chance(1, 8)) observed.device_serials.push_back(serial);
    for (const LeaseRow& lease : image.leases)
      if (!prng.chance(1, 8)) observed.objects.emplace_back(lease.object, lease.bytes);
    if (!machine.recover(image, observed, prng.chance(1, 4) ? "boot-2" : "boot-1", m.now_ns).ok()) {
      ++refused;
      continue;
    }
    for (const LeaseRow& lease : image.leases) {  // what was accepted can be worked with
      (void)machine.apply(Release{lease.id, "", m.now_ns});
      (void)machine.apply(FenceFinished{lease.id, {}, m.now_ns});
      (void)machine.apply(ScrubFinished{lease.id, {}, m.now_ns});
    }
    for (uint64_t i = 0; i < 3; ++i) {  // and so can what comes after it
      (void)machine.apply(AdoptDevice{"emu:more" + std::to_string(i), "emulated", 8 * granule, granule});
      (void)machine.apply(m.request(granule));
      (void)machine.apply(CreateReservation{"q", "bob", granule, 10 * second, m.now_ns});
    }
    (void)machine.apply(Tick{UINT64_MAX});
    for (const std::string& problem : machine.check_all()) FAIL(problem);
  }
  CHECK(refused > rounds / 4);
  CHECK(refused < rounds);
}
