// SPDX-License-Identifier: Apache-2.0
// The start from a store that is a copy of an earlier state: nothing that was somebody's is taken, and nothing that was
// given is given again.
#include <algorithm>

#include "core/base/limits.h"
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

constexpr uint64_t jump = uint64_t{1} << 36;

// A manager with one lease of two granules on a device of eight, as a backup has it.
struct Backup {
  Backup() : lease(m.grant(2)) {
    image = m.machine.image();
    image.meta.restored = true;
    observed.device_serials = {"emu:0"};
    observed.older_copy = true;
    observed.objects.emplace_back(lease.object, lease.bytes);
  }
  void see(const std::string& object, uint64_t granules) {
    observed.objects.emplace_back(object, granules * granule);
    observed.kept[object] = "a tenant had it";
  }
  // Starts; a second start from what came of it must change nothing.
  Recovery recover() {
    auto recovery = machine.recover(image, observed, "boot-1", m.now_ns);
    REQUIRE_MESSAGE(recovery.ok(), recovery.error().to_string());
    for (const std::string& problem : machine.check_all()) FAIL_CHECK(problem);
    StateMachine again;
    Observation later = observed;
    later.older_copy = false;
    const auto repeated = again.recover(machine.image(), later, "boot-1", m.now_ns);
    REQUIRE_MESSAGE(repeated.ok(), repeated.error().to_string());
    CHECK(repeated->delta.empty());
    CHECK(repeated->orphans == recovery->orphans);
    return std::move(recovery).value();
  }
  const LeaseRow& at(uint64_t id) const {
    const LeaseRow* row = machine.find_lease(LeaseId{id});
    REQUIRE(row != nullptr);
    return *row;
  }

  Manager m{{8}};
  LeaseRow lease;
  Image image;
  Observation observed;
  StateMachine machine;
};

}  // namespace

TEST_CASE("restored: memory that the backup does not know is quarantined, with room of its own") {
  Backup b;
  b.see("lease-5", 3);
  b.see("lease-1-7", 1);  // lease 1 was handed over under epoch 7
  const Recovery recovery = b.recover();
  CHECK(recovery.orphans.empty());
  CHECK(recovery.effects.empty());
  const LeaseRow& unknown = b.at(5);
  CHECK(unknown.phase == LeasePhase::quarantined);
  CHECK(unknown.object == "lease-5");
  CHECK(unknown.bytes == 3 * granule);
  CHECK(unknown.reason.find("found after a restore") != std::string::npos);
  const auto& leases = b.machine.leases();
  REQUIRE(leases.size() == 3);
  const auto other = std::find_if(leases.begin(), leases.end(),
                                  [](const auto& one) { return one.second.object == "lease-1-7"; });
  REQUIRE(other != leases.end());
  CHECK(other->second.phase == LeasePhase::quarantined);
  CHECK(b.at(b.lease.id.value) == b.lease);
  CHECK(b.machine.pool_use(b.lease.pool).quarantined_bytes == 4 * granule);
  CHECK(b.machine.pool_use(b.lease.pool).free_bytes == 2 * granule);
  CHECK(recovery.delta.leases.size() == 2);
  CHECK(!recovery.delta.meta->restored);

  // An administrator's release fences and erases it; a tenant's does not.
  CHECK(b.machine.apply(Release{LeaseId{5}, unknown.tenant, b.m.now_ns}).effects.empty());
  const Step released = b.machine.apply(Release{LeaseId{5}, "", b.m.now_ns});
  REQUIRE(released.effects.size() == 1);
  CHECK(std::get<FenceObject>(released.effects[0]).object == "lease-5");
}

TEST_CASE("restored: memory that the backup does not know gets no room on a device that is not there") {
  Backup b;
  REQUIRE(b.m.adopt("emu:1", 4).reply.ok());
  REQUIRE(b.m.apply(AddDevice{"p", "emu:1"}).reply.ok());
  b.image = b.m.machine.image();
  b.image.meta.restored = true;
  b.observed.device_serials = {"emu:1"};  // the device of eight is away
  b.see("lease-5", 3);
  (void)b.recover();
  const LeaseRow& unknown = b.at(5);
  REQUIRE(unknown.extents.size() == 1);
  CHECK(unknown.extents.front().device == b.machine.find_device("emu:1")->id);
}

TEST_CASE("restored: ids and epochs go on beyond all that can have been given") {
  Backup b;
  b.see("lease-900", 1);
  const Recovery recovery = b.recover();
  CHECK(recovery.delta.meta->next_lease >= 900 + jump);
  CHECK(recovery.delta.meta->next_epoch >= b.image.meta.next_epoch + jump);
  const Step granted = b.machine.apply(b.m.request(granule));
  REQUIRE(granted.reply.ok());
  const LeaseRow* row = b.machine.find_lease(std::get<GrantPending>(*granted.reply).lease);
  CHECK(row->id.value > 900);
  CHECK(row->epoch.value > jump);
}

TEST_CASE("restored: without anything unknown the epochs jump all the same, once") {
  Backup b;
  b.observed.older_copy = false;  // the store says it itself
  const Recovery recovery = b.recover();
  CHECK(recovery.delta.meta->next_epoch == b.image.meta.next_epoch + jump);
  CHECK(recovery.delta.leases.empty());
}

TEST_CASE("restored: files that were copied back by hand are known by what they do not know") {
  Backup b;
  b.image.meta.restored = false;
  b.see("lease-5", 3);
  const Recovery recovery = b.recover();
  CHECK(b.at(5).phase == LeasePhase::quarantined);
  CHECK(recovery.delta.meta->next_epoch >= jump);
}

TEST_CASE("restored: what finds no room in a pool stays where it is, and is in nobody's way") {
  Backup b;
  b.see("lease-5", 7);
  const Recovery recovery = b.recover();
  CHECK(b.machine.leases().size() == 1);
  CHECK(recovery.orphans.empty());
  CHECK(recovery.delta.meta->next_lease > 5);
  CHECK(b.machine.pool_use(b.lease.pool).free_bytes == 6 * granule);
}

TEST_CASE("restored: a lease of another size than the backup knows keeps what it has now") {
  for (const uint64_t granules : {uint64_t{1}, uint64_t{5}}) {
    Backup b;
    b.observed.objects[0].second = granules * granule;
    const Recovery recovery = b.recover();
    CHECK(recovery.effects.empty());
    const LeaseRow& row = b.at(b.lease.id.value);
    CHECK(row.phase == LeasePhase::active);
    CHECK(row.bytes == granules * granule);
    CHECK(b.machine.pool_use(b.lease.pool).free_bytes == (8 - granules) * granule);
  }
  Backup b;
  b.observed.objects[0].second = 9 * granule;  // there is not as much
  b.recover();
  CHECK(b.at(b.lease.id.value).phase == LeasePhase::quarantined);
}

TEST_CASE("restored: a lease that was being cut when the backup was made is not cut now") {
  Backup b;
  b.image.leases[0].target_bytes = granule;
  const Recovery recovery = b.recover();
  CHECK(recovery.effects.empty());
  CHECK(b.at(b.lease.id.value).bytes == 2 * granule);
  CHECK(b.at(b.lease.id.value).target_bytes == 0);
}

TEST_CASE("restored: a lease that ended after the backup is lost, and says so") {
  Backup b;
  b.observed.objects.clear();
  const Recovery recovery = b.recover();
  const LeaseRow& row = b.at(b.lease.id.value);
  CHECK(row.phase == LeasePhase::fencing);
  CHECK(row.reason.find("after the backup") != std::string::npos);
}

TEST_CASE("restored: memory that is found by its place is not trusted to be the same lease's") {
  Backup b;
  b.image.devices[0].backend = "devdax";
  b.image.leases[0].object = "devdax:lease-1";
  b.observed.objects = {{"devdax:lease-1", b.lease.bytes}};
  for (const LeasePhase phase : {LeasePhase::active, LeasePhase::fencing}) {
    Backup fresh;
    fresh.image = b.image;
    fresh.observed = b.observed;
    fresh.image.leases[0].phase = phase;
    if (phase == LeasePhase::fencing) fresh.image.leases[0].expiry_ns = 0;
    const Recovery recovery = fresh.recover();
    CHECK(recovery.effects.empty());  // whose memory it is now, nobody knows: it is not fenced
    CHECK(fresh.at(1).phase == LeasePhase::quarantined);
  }
}
