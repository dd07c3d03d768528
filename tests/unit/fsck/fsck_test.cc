// SPDX-License-Identifier: Apache-2.0
// Each way in which rows, objects, devices and processes can disagree is found, and a healthy world is not.
#include "daemon/fsck/fsck.h"

#include "tests/unit/fsck/fsck_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

TEST_CASE("fsck: nothing is wrong with a healthy store") {
  World world;
  CHECK(world.check().empty());
  world.image.meta.boot_id.clear();
  CHECK(check_consistency(Image{}, {}, {}, {}).empty());
}

TEST_CASE("fsck: a lease without its object") {
  World world;
  world.objects.erase(world.objects.begin() + 1);
  SUBCASE("this boot") {
    only(world.check(), Severity::error, {"lease 2", "lease-2 is gone", "start terraced"});
  }
  SUBCASE("another boot") {
    world.context.boot_id = "later";
    const auto findings = world.check();
    REQUIRE(findings.size() == 2);
    CHECK(findings[0].severity == Severity::error);
    CHECK(findings[0].what.find("restarted") != std::string::npos);
    CHECK(findings[1].severity == Severity::note);
  }
}

TEST_CASE("fsck: an object of a wrong size") {
  World world;
  SUBCASE("shorter") {
    world.objects[0].bytes -= 2 * mib;
    only(world.check(), Severity::error, {"lease 1", "6 MiB instead of 8 MiB"});
    world.context.serving = true;
    CHECK(world.check().front().severity == Severity::error);
  }
  SUBCASE("longer") {
    world.objects[0].bytes += 2 * mib;
    only(world.check(), Severity::error, {"lease 1", "holder"});
    world.context.serving = true;
    only(world.check(), Severity::note, {"lease 1", "grows"});
  }
  SUBCASE("fenced") {
    world.objects[0].bytes = 0;
    only(world.check(), Severity::error, {"lease 1", "fenced"});
  }
  SUBCASE("what a shrink that was begun may leave") {
    world.image.leases[0].target_bytes = 2 * mib;
    only(world.check(), Severity::note, {"lease 1", "being cut"});
    world.objects[0].bytes = 2 * mib;
    only(world.check(), Severity::note, {"lease 1", "being cut"});
    world.objects[0].bytes = 4 * mib;
    only(world.check(), Severity::error, {"lease 1"});
  }
}

TEST_CASE("fsck: an object without a lease") {
  World world;
  world.objects.push_back({"lease-9", 4 * mib, 4 * mib});
  only(world.check(), Severity::warning, {"object lease-9", "no lease", "start terraced: it destroys it"});
  world.context.in_flight.insert("lease-9");
  CHECK(world.check().empty());
}

TEST_CASE("fsck: extents that overlap, leave their device, or are on an unknown one") {
  World world;
  SUBCASE("overlap") {
    world.image.leases[1].extents[0].first_granule = 3;
    only(world.check(), Severity::error, {"lease 2", "granules 3 to 3", "device emu:a", "lease 1"});
  }
  SUBCASE("a long one over several") {
    world.image.leases[0].extents[0].granules = 30;
    world.image.leases[0].bytes = 60 * mib;
    world.objects[0].bytes = 60 * mib;
    world.add_lease(4, {{DeviceId{1}, 20, 1}});
    const auto findings = world.check();
    REQUIRE(findings.size() == 2);
    CHECK(findings[0].subject.find("lease 2") == 0);
    CHECK(findings[1].subject.find("lease 4") == 0);
  }
  SUBCASE("outside") {
    for (const Extent& outside : {Extent{DeviceId{2}, 32, 1}, Extent{DeviceId{2}, 31, 2},
                                  Extent{DeviceId{2}, ~uint64_t{0}, 2}, Extent{DeviceId{2}, 5, 0}}) {
      world.image.leases[2].extents[0] = outside;
      const auto findings = world.check();
      REQUIRE(!findings.empty());
      CHECK(findings[0].severity == Severity::error);
      CHECK(findings[0].subject.find("lease 3") == 0);
    }
  }
  SUBCASE("unknown device") {
    world.image.leases[2].extents[0].device = DeviceId{7};
    only(world.check(), Severity::error, {"lease 3", "device 7"});
  }
}

TEST_CASE("fsck: rows that the state machine refuses are told in its words") {
  World world;
  world.image.leases[1].epoch = LeaseEpoch{1};
  only(world.check(), Severity::error, {"store", "repeats"});
  world.image.leases[1].epoch = LeaseEpoch{2};
  world.image.leases[1].bytes += 2 * mib;
  world.objects[1].bytes += 2 * mib;
  only(world.check(), Severity::error, {"store", "add up"});
}

TEST_CASE("fsck: a device that is absent, of another size, failed or drained") {
  World world;
  SUBCASE("absent with leases") {
    world.devices.pop_back();
    only(world.check(), Severity::error, {"device emu:b", "not there", "2 live leases"});
  }
  SUBCASE("absent without") {
    world.image.leases.resize(1);
    world.objects.resize(1);
    world.devices.pop_back();
    only(world.check(), Severity::warning, {"device emu:b", "not there"});
  }
  SUBCASE("of another size") {
    world.devices[0].capacity_bytes = 128 * mib;
    only(world.check(), Severity::error, {"device emu:a", "64 MiB", "128 MiB"});
  }
  SUBCASE("of another granule") {
    world.devices[0].granule_bytes = 4 * mib;
    only(world.check(), Severity::error, {"device emu:a", "granules of 4 MiB"});
  }
  SUBCASE("failed") {
    world.image.devices[0].state = DeviceState::failed;
    only(world.check(), Severity::warning, {"device emu:a", "failed", "undrain"});
  }
  SUBCASE("draining") {
    world.image.devices[0].state = DeviceState::draining;
    only(world.check(), Severity::note, {"device emu:a", "drained"});
  }
  SUBCASE("seen and not adopted") {
    world.devices.push_back({"emu:new", "emulated", 64 * mib, 2 * mib, ""});
    CHECK(world.check().empty());
  }
}

TEST_CASE("fsck: leases on their way out, quarantined or handed over") {
  World world;
  LeaseRow& lease = world.image.leases[0];
  SUBCASE("fencing") {
    lease.phase = LeasePhase::fencing;
    lease.reason = "revoked";
    only(world.check(), Severity::note, {"lease 1", "taken back (revoked)"});
    world.objects.erase(world.objects.begin());
    only(world.check(), Severity::note, {"lease 1"});
    world.context.serving = true;
    CHECK(world.check().empty());
  }
  SUBCASE("quarantined") {
    lease.phase = LeasePhase::quarantined;
    lease.reason = "EIO while scrubbing";
    only(world.check(), Severity::warning, {"lease 1", "EIO while scrubbing", "8 MiB"});
  }
  SUBCASE("handed over") {
    lease.phase = LeasePhase::transferring;
    lease.next_object = "lease-1-next";
    only(world.check(), Severity::note, {"lease 1", "handed"});
    world.objects[0].bytes = 2 * mib;  // what is missing in the next one
    world.objects.push_back({"lease-1-next", lease.bytes + 2 * mib, lease.bytes});
    only(world.check(), Severity::note, {"lease 1", "handed"});
    world.objects.back().bytes = lease.bytes;
    world.objects.erase(world.objects.begin());
    only(world.check(), Severity::note, {"lease 1", "handed"});
    world.objects.back().bytes = lease.bytes + 2 * mib;
    only(world.check(), Severity::error, {"lease 1", "2 MiB", "lost"});
  }
}

TEST_CASE("fsck: quotas that are exceeded") {
  World world;
  world.image.quotas.push_back({"*", 16 * mib, 0});
  only(world.check(), Severity::warning, {"tenant t", "18 MiB of at most 16 MiB"});
  world.image.quotas.push_back({"t", 0, 2});
  only(world.check(), Severity::warning, {"tenant t", "3 leases of at most 2"});
  world.image.quotas.back().leases_max = 3;
  CHECK(world.check().empty());
}

TEST_CASE("fsck: reservations that cannot be kept") {
  World world;
  world.image.meta.next_reservation = 9;
  const auto reserve = [&world](uint64_t id, const std::string& tenant, uint64_t bytes) {
    world.image.reservations.push_back(
        {.id = ReservationId{id}, .pool = PoolId{1}, .tenant = tenant, .bytes = bytes});
  };
  reserve(1, "other", 110 * mib);  // of 128 MiB, 18 are leased
  CHECK(world.check().empty());
  SUBCASE("another tenant's") {
    reserve(2, "third", 2 * mib);
    only(world.check(), Severity::warning, {"pool main", "112 MiB", "110 MiB"});
  }
  SUBCASE("what a tenant has counts as use of its own") {
    reserve(2, "t", 18 * mib);
    CHECK(world.check().empty());
    reserve(3, "t", 2 * mib);
    CHECK(world.check().size() == 1);
  }
  SUBCASE("a lease on its way out makes room, a quarantined one does not") {
    reserve(2, "third", 8 * mib);
    world.context.serving = true;
    world.image.leases[0].phase = LeasePhase::fencing;
    CHECK(world.check().empty());
    world.image.leases[0].phase = LeasePhase::quarantined;
    CHECK(world.check().size() == 2);
  }
  SUBCASE("an absent device is no room") {
    world.image.leases.resize(1);
    world.objects.resize(1);
    world.devices.pop_back();
    CHECK(world.check().size() == 2);
  }
}

TEST_CASE("fsck: processes that still have what was taken from them") {
  World world;
  world.mappings = {{.pid = 7, .command = "good", .object = "lease-1", .open = true, .mapped_bytes = 8 * mib}};
  CHECK(world.check().empty());
  SUBCASE("of an ended lease") {
    world.mappings.push_back({.pid = 8, .command = "old", .object = "lease-6", .deleted = true, .open = true});
    only(world.check(), Severity::warning,
         {"process 8 (old)", "holds open 1 object of leases that ended", "lease-6", "end process 8"});
  }
  SUBCASE("of one that is being fenced") {
    world.image.leases[0].phase = LeasePhase::scrubbing;
    world.context.serving = true;
    only(world.check(), Severity::warning, {"process 7 (good)", "maps 8 MiB", "fenced", "lease-1"});
  }
  SUBCASE("of one that a restore found: it has lost nothing yet") {
    world.image.leases[0].phase = LeasePhase::quarantined;
    world.image.leases[0].reason = "found after a restore";
    const auto findings = world.check();
    REQUIRE(findings.size() == 2);
    CHECK(findings[0].repair.find("copy what is wanted out of its object lease-1") == 0);
    CHECK(findings[1].what.find("that a restore found and quarantined") != std::string::npos);
    CHECK(findings[1].repair.find("until an administrator releases the lease") != std::string::npos);
    world.image.leases[0].cause = LeaseCause::released;
    CHECK(world.check()[1].repair.find("SIGBUS") != std::string::npos);
  }
  SUBCASE("of a name that a new object has") {
    world.mappings.push_back(
        {.pid = 8, .command = "old", .object = "lease-1", .deleted = true, .mapped_bytes = 1});
    only(world.check(), Severity::warning, {"process 8", "ended"});
  }
  SUBCASE("of nobody's object, but not of a grant under way") {
    world.objects.push_back({"lease-9", 2 * mib, 2 * mib});
    world.mappings.push_back({.pid = 8, .command = "x", .object = "lease-9", .open = true});
    CHECK(world.check().size() == 2);
    world.context.in_flight.insert("lease-9");
    CHECK(world.check().empty());
  }
  SUBCASE("of very many: one finding that stays short") {
    for (int i = 100; i < 1100; ++i)
      world.mappings.push_back(
          {.pid = 8, .command = "x", .object = "lease-" + std::to_string(i), .deleted = true, .open = true});
    const Finding found = only(world.check(), Severity::warning, {"1000 objects", "lease-107", "..."});
    CHECK(found.what.size() < 300);
  }
}

TEST_CASE("fsck: errors come first") {
  World world;
  world.image.devices[0].state = DeviceState::draining;
  world.objects.push_back({"lease-9", 2 * mib, 2 * mib});
  world.objects.erase(world.objects.begin());
  const auto findings = world.check();
  REQUIRE(findings.size() == 3);
  CHECK(findings[0].severity == Severity::error);
  CHECK(findings[1].severity == Severity::warning);
  CHECK(findings[2].severity == Severity::note);
}
