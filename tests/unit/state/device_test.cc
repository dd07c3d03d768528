// SPDX-License-Identifier: Apache-2.0
// The life of a device: grown, added, drained, given up, lost and back, removed. Each takes its own leases
// only.
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

DeviceRow device(const Manager& m, const std::string& serial) {
  return *m.machine.find_device(serial);
}

// Two devices of four granules, a lease of four on each: emptied to know which is where.
struct TwoFull {
  Manager m{std::vector<uint64_t>{4, 4}};
  LeaseRow low = m.grant(4);
  LeaseRow high = m.grant(4);
  TwoFull() {
    REQUIRE(low.extents.front().device == device(m, "emu:0").id);
    REQUIRE(high.extents.front().device == device(m, "emu:1").id);
  }
};

template <typename E>
bool has_effect(const Step& step, LeaseId lease) {
  for (const Effect& effect : step.effects)
    if (const auto* e = std::get_if<E>(&effect); e != nullptr && e->lease == lease) return true;
  return false;
}

std::string detail_of(const Step& step) {
  return step.reply.ok() ? "" : step.reply.error().detail;
}

}  // namespace

TEST_CASE("devices: one that shows more than it was adopted with has grown; its new granules are free") {
  Manager m({4});
  const LeaseRow lease = m.grant(4);
  const Step grown = m.adopt("emu:0", 7);
  REQUIRE(grown.reply.ok());
  CHECK(grown.delta.devices.at(device(m, "emu:0").id)->capacity_bytes == 7 * granule);
  CHECK(m.use().free_bytes == 3 * granule);
  CHECK(m.grant(3).extents == std::vector<Extent>{{lease.extents.front().device, 4, 3}});
  CHECK(code_of(m.adopt("emu:0", 6)) == ErrorCode::already_exists);
  CHECK(code_of(m.apply(AdoptDevice{"emu:0", "devdax", 7 * granule, granule})) == ErrorCode::already_exists);
  CHECK(code_of(m.apply(AdoptDevice{"emu:0", "emulated", 8 * granule, 2 * granule})) ==
        ErrorCode::already_exists);
}

TEST_CASE("devices: sizes whose sum or count would overflow are refused") {
  Manager m;
  CHECK(code_of(m.apply(AdoptDevice{"emu:0", "emulated", UINT64_MAX, granule})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(AdoptDevice{"emu:0", "emulated", UINT64_MAX, gib})) == ErrorCode::limit_exceeded);
  REQUIRE(m.apply(AdoptDevice{"emu:0", "emulated", adopted_bytes_max / 2, gib}).reply.ok());
  REQUIRE(m.apply(AdoptDevice{"emu:1", "emulated", adopted_bytes_max / 2, gib}).reply.ok());
  CHECK(code_of(m.apply(AdoptDevice{"emu:2", "emulated", gib, gib})) == ErrorCode::limit_exceeded);
  CHECK(m.apply(AdoptDevice{"emu:0", "emulated", adopted_bytes_max / 2, gib}).reply.ok());
}

TEST_CASE("devices: an adopted device is added to a live pool of its kind, once") {
  Manager m({4});
  m.grant(4);
  REQUIRE(m.adopt("emu:9", 6).reply.ok());
  const Step added = m.apply(AddDevice{"p", "emu:9"});
  REQUIRE(added.reply.ok());
  CHECK(std::get<PoolReply>(*added.reply).pool.name == "p");
  CHECK(added.delta.devices.at(device(m, "emu:9").id)->pool == m.machine.find_pool("p")->id);
  CHECK(m.grant(6).extents.front().device == device(m, "emu:9").id);
  const Step again = m.apply(AddDevice{"p", "emu:9"});
  CHECK(again.reply.ok());
  CHECK(again.delta.empty());

  CHECK(code_of(m.apply(AddDevice{"q", "emu:9"})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(AddDevice{"p", "emu:8"})) == ErrorCode::not_found);
  REQUIRE(m.apply(AdoptDevice{"dax:0", "devdax", 8 * granule, granule}).reply.ok());
  REQUIRE(m.apply(AdoptDevice{"emu:7", "emulated", 8 * granule, 2 * granule}).reply.ok());
  CHECK(code_of(m.apply(AddDevice{"p", "dax:0"})) == ErrorCode::invalid_argument);
  CHECK(code_of(m.apply(AddDevice{"p", "emu:7"})) == ErrorCode::invalid_argument);
  REQUIRE(m.apply(CreatePool{"q", {"emu:7"}}).reply.ok());
  CHECK(code_of(m.apply(AddDevice{"p", "emu:7"})) == ErrorCode::busy);
}

TEST_CASE("devices: nothing is placed on one that drains; its leases stay, and are wanted elsewhere") {
  Manager m({4, 4});
  Grant asked = m.request(2 * granule);
  asked.movable = true;
  const LeaseRow movable = m.grant(asked);
  const LeaseRow fixed = m.grant(1);
  CHECK(m.machine.moves_wanted().empty());
  const Step drained = m.apply(DrainDevice{"emu:0"});
  REQUIRE(drained.reply.ok());
  CHECK(drained.delta.devices.at(device(m, "emu:0").id)->state == DeviceState::draining);
  CHECK(m.apply(DrainDevice{"emu:0"}).delta.empty());
  CHECK(m.phase(movable.id) == LeasePhase::active);
  CHECK(m.use().grantable_bytes == 4 * granule);
  CHECK(m.grant(1).extents.front().device == device(m, "emu:1").id);
  const Step refused = m.apply(m.request(4 * granule));
  CHECK(code_of(refused) == ErrorCode::capacity_exhausted);
  CHECK(detail_of(refused).find("free on devices that take no leases now 2 MiB") != std::string::npos);

  const std::vector<WantedMove> wanted = m.machine.moves_wanted();
  REQUIRE(wanted.size() == 2);
  CHECK(wanted[0].lease == movable.id);
  CHECK(wanted[0].movable);
  CHECK(wanted[0].for_drain);
  CHECK_FALSE(wanted[0].target.valid());
  CHECK(wanted[1].lease == fixed.id);
  CHECK_FALSE(wanted[1].movable);

  REQUIRE(m.apply(Revoke{movable.id, "", 5 * second, m.now_ns}).reply.ok());
  CHECK_FALSE(m.machine.moves_wanted()[0].movable);  // it is on its way out already
  REQUIRE(m.apply(Release{movable.id, "", m.now_ns}).reply.ok());
  CHECK(m.machine.moves_wanted().size() == 1);  // what is being erased leaves by itself
  const Step back = m.apply(UndrainDevice{"emu:0", m.now_ns});
  CHECK(back.delta.devices.at(device(m, "emu:0").id)->state == DeviceState::in_service);
  CHECK(m.apply(UndrainDevice{"emu:0", m.now_ns}).delta.empty());
  CHECK(m.machine.moves_wanted().empty());
}

TEST_CASE("devices: one that is given up takes its own leases with it; they are scrubbed as far as it goes") {
  TwoFull t;
  const Step failed = t.m.apply(FailDevice{"emu:0", t.m.now_ns});
  REQUIRE(failed.reply.ok());
  CHECK(std::get<DeviceReply>(*failed.reply).device.state == DeviceState::failed);
  CHECK(failed.delta.leases.size() == 1);
  CHECK(failed.delta.leases.at(t.low.id)->cause == LeaseCause::device_lost);
  CHECK(failed.delta.leases.at(t.low.id)->reason == "device emu:0 was given up");
  CHECK(has_effect<FenceObject>(failed, t.low.id));
  CHECK(t.m.phase(t.high.id) == LeasePhase::active);
  CHECK(t.m.apply(FailDevice{"emu:0", t.m.now_ns}).delta.empty());
  CHECK(code_of(t.m.apply(DrainDevice{"emu:0"})) == ErrorCode::busy);

  CHECK(has_effect<ScrubObject>(t.m.apply(FenceFinished{t.low.id, {}, t.m.now_ns}), t.low.id));
  REQUIRE(t.m.apply(ScrubFinished{t.low.id, failure(), t.m.now_ns}).reply.ok());
  CHECK(t.m.phase(t.low.id) == LeasePhase::quarantined);
  CHECK(code_of(t.m.apply(t.m.request(granule))) == ErrorCode::capacity_exhausted);

  const Step back = t.m.apply(UndrainDevice{"emu:0", t.m.now_ns});
  CHECK(has_effect<FenceObject>(back, t.low.id));
  t.m.finish(t.low.id);
  CHECK(t.m.grant(4).extents.front().device == device(t.m, "emu:0").id);
}

TEST_CASE("devices: the leases of one that vanished end quarantined, and are erased when it is back") {
  TwoFull t;
  const Step lost = t.m.apply(DeviceLost{"emu:0", t.m.now_ns});
  REQUIRE(lost.reply.ok());
  CHECK(lost.delta.devices.empty());
  CHECK(lost.delta.leases.at(t.low.id)->phase == LeasePhase::fencing);
  CHECK(lost.delta.leases.at(t.low.id)->reason == "device emu:0 vanished");
  CHECK(t.m.machine.absent(device(t.m, "emu:0").id));
  CHECK(t.m.phase(t.high.id) == LeasePhase::active);
  CHECK(t.m.apply(DeviceLost{"emu:0", t.m.now_ns}).effects.empty());
  CHECK(t.m.apply(DeviceLost{"emu:77", t.m.now_ns}).reply.ok());

  const Step fenced = t.m.apply(FenceFinished{t.low.id, {}, t.m.now_ns});
  CHECK_FALSE(has_effect<ScrubObject>(fenced, t.low.id));
  REQUIRE(has_effect<NotifyHolders>(fenced, t.low.id));
  CHECK(std::get<NotifyHolders>(fenced.effects.front()).fenced);
  CHECK(std::get<NotifyHolders>(fenced.effects.front()).cause == LeaseCause::device_lost);
  CHECK(fenced.delta.leases.at(t.low.id)->phase == LeasePhase::quarantined);
  CHECK(fenced.delta.leases.at(t.low.id)->reason.find("device emu:0 is gone") != std::string::npos);

  const Step back = t.m.apply(DeviceBack{"emu:0", t.m.now_ns});
  CHECK(has_effect<FenceObject>(back, t.low.id));
  CHECK(t.m.apply(DeviceBack{"emu:0", t.m.now_ns}).effects.empty());
  t.m.finish(t.low.id);
  CHECK(t.m.use().free_bytes == 4 * granule);
}

// Found with real hardware: a pool said that memory was free which nobody could be given.
TEST_CASE("devices: what nobody has of an absent device is not free, until it is back") {
  Manager m({4, 6});
  const LeaseRow lease = m.grant(1);
  REQUIRE(lease.extents.front().device == device(m, "emu:0").id);
  CHECK(m.use().free_bytes == 9 * granule);
  REQUIRE(m.apply(DeviceLost{"emu:1", m.now_ns}).reply.ok());
  PoolUse use = m.use();
  CHECK(use.capacity_bytes == 10 * granule);
  CHECK(use.free_bytes == 3 * granule);
  CHECK(use.grantable_bytes == 3 * granule);
  CHECK(use.absent_bytes == 6 * granule);
  CHECK(use.largest_free_bytes == 3 * granule);
  CHECK(use.leased_bytes == granule);
  CHECK(m.machine.pool_uses().at(m.machine.find_pool("p")->id).free_bytes == 3 * granule);
  const Step refused = m.apply(m.request(4 * granule));
  CHECK(detail_of(refused).find("free on devices that take no leases now 12 MiB") != std::string::npos);

  // One of which a part is leased: that part is quarantined, and nothing of it is counted twice.
  REQUIRE(m.apply(DeviceLost{"emu:0", m.now_ns}).reply.ok());
  m.apply(FenceFinished{lease.id, {}, m.now_ns});
  use = m.use();
  CHECK(use.free_bytes == 0);
  CHECK(use.largest_free_bytes == 0);
  CHECK(use.absent_bytes == 9 * granule);
  CHECK(use.quarantined_bytes == granule);

  REQUIRE(m.apply(DeviceBack{"emu:1", m.now_ns}).reply.ok());
  CHECK(m.use().free_bytes == 6 * granule);
  CHECK(m.use().absent_bytes == 3 * granule);
}

TEST_CASE("devices: adopting one that vanished again is its coming back") {
  TwoFull t;
  REQUIRE(t.m.apply(DeviceLost{"emu:0", t.m.now_ns}).reply.ok());
  REQUIRE(t.m.apply(FenceFinished{t.low.id, {}, t.m.now_ns}).reply.ok());
  CHECK(has_effect<FenceObject>(t.m.adopt("emu:0", 4), t.low.id));
  CHECK_FALSE(t.m.machine.absent(device(t.m, "emu:0").id));
}

TEST_CASE("devices: a lease on several waits in quarantine until all of them are back") {
  Manager m({4, 4});
  const LeaseRow lease = m.grant(8);
  REQUIRE(m.apply(DeviceLost{"emu:0", m.now_ns}).reply.ok());
  REQUIRE(m.apply(DeviceLost{"emu:1", m.now_ns}).reply.ok());
  REQUIRE(m.apply(FenceFinished{lease.id, {}, m.now_ns}).reply.ok());
  CHECK(m.apply(DeviceBack{"emu:1", m.now_ns}).effects.empty());
  CHECK(m.phase(lease.id) == LeasePhase::quarantined);
  CHECK(has_effect<FenceObject>(m.apply(DeviceBack{"emu:0", m.now_ns}), lease.id));
}

TEST_CASE(
    "devices: a lease whose scrub failed for the want of its device is tried again with it, no other is") {
  TwoFull t;
  for (const LeaseRow* lease : {&t.low, &t.high}) {
    REQUIRE(t.m.apply(Release{lease->id, "", t.m.now_ns}).reply.ok());
    REQUIRE(t.m.apply(FenceFinished{lease->id, {}, t.m.now_ns}).reply.ok());
  }
  REQUIRE(t.m.apply(ScrubFinished{t.high.id, failure(), t.m.now_ns}).reply.ok());
  REQUIRE(t.m.apply(DeviceLost{"emu:0", t.m.now_ns}).reply.ok());
  REQUIRE(t.m.apply(DeviceLost{"emu:1", t.m.now_ns}).reply.ok());
  REQUIRE(t.m.apply(ScrubFinished{t.low.id, failure(), t.m.now_ns}).reply.ok());
  CHECK(has_effect<FenceObject>(t.m.apply(DeviceBack{"emu:0", t.m.now_ns}), t.low.id));
  CHECK(t.m.apply(DeviceBack{"emu:1", t.m.now_ns}).effects.empty());
  CHECK(t.m.phase(t.high.id) == LeasePhase::quarantined);  // an operator's matter
}

TEST_CASE("devices: a grant that was being carved on one that is lost never becomes active") {
  for (const bool vanished : {true, false}) {
    Manager m({4});
    const Step pending = m.apply(m.request(granule));
    const LeaseId id = std::get<GrantPending>(*pending.reply).lease;
    if (vanished) {
      REQUIRE(m.apply(DeviceLost{"emu:0", m.now_ns}).reply.ok());
    } else {
      REQUIRE(m.apply(FailDevice{"emu:0", m.now_ns}).reply.ok());
    }
    // Not through the fixture: this refusal leaves a row, for what was carved has to be taken away again.
    const Step carved = m.machine.apply(CarveFinished{id, {}, m.now_ns});
    CHECK(code_of(carved) == ErrorCode::unavailable);
    CHECK(detail_of(carved).find("device emu:0") != std::string::npos);
    CHECK(carved.delta.leases.at(id)->phase == LeasePhase::fencing);
    CHECK(carved.delta.meta.has_value());
    CHECK(m.machine.check_all().empty());
  }
}

TEST_CASE("devices: a lease that was growing onto one that is lost ends at once") {
  Manager m({2, 2});
  const LeaseRow lease = m.grant(2);
  const Step growing = m.apply(Resize{lease.id, "alice", 4 * granule, m.now_ns});
  REQUIRE(growing.reply.ok());
  const DeviceId below = std::get<ResizeObject>(growing.effects.at(0)).extents.back().device;
  REQUIRE(below != lease.extents.front().device);
  const Step lost = m.apply(DeviceLost{m.machine.find_device(below)->serial, m.now_ns});
  CHECK(lost.delta.leases.at(lease.id)->phase == LeasePhase::fencing);
  CHECK(m.machine.find_lease(lease.id)->bytes == 4 * granule);
}

TEST_CASE("devices: a lease on several that were given up is erased once all of them are in service again") {
  Manager m({2, 2});
  const LeaseRow lease = m.grant(4);
  for (const char* serial : {"emu:0", "emu:1"}) REQUIRE(m.apply(FailDevice{serial, m.now_ns}).reply.ok());
  REQUIRE(m.apply(FenceFinished{lease.id, {}, m.now_ns}).reply.ok());
  REQUIRE(m.apply(ScrubFinished{lease.id, failure(), m.now_ns}).reply.ok());
  REQUIRE(m.phase(lease.id) == LeasePhase::quarantined);
  CHECK(m.apply(UndrainDevice{"emu:0"}).effects.empty());
  CHECK(m.phase(lease.id) == LeasePhase::quarantined);
  REQUIRE(m.apply(UndrainDevice{"emu:1"}).reply.ok());
  CHECK(m.phase(lease.id) == LeasePhase::fencing);
}

TEST_CASE("devices: one with leases is not removed; the refusal names them") {
  Manager m({8});
  std::vector<LeaseRow> leases;
  for (int i = 0; i < 4; ++i) leases.push_back(m.grant(1));
  const Step refused = m.apply(RemoveDevice{"emu:0", true});
  CHECK(code_of(refused) == ErrorCode::busy);
  CHECK(detail_of(refused).find("still has 4 leases (1, 2, 3, ...); drain it") != std::string::npos);
  for (const LeaseRow& lease : leases) {
    REQUIRE(m.apply(Release{lease.id, "", m.now_ns}).reply.ok());
    m.finish(lease.id);
  }
  const Step removed = m.apply(RemoveDevice{"emu:0", false});
  REQUIRE(removed.reply.ok());
  CHECK_FALSE(removed.delta.devices.begin()->second.has_value());
  CHECK(m.use().capacity_bytes == 0);
  CHECK(code_of(m.apply(m.request(granule))) == ErrorCode::capacity_exhausted);
  CHECK(code_of(m.apply(RemoveDevice{"emu:0", false})) == ErrorCode::not_found);
  REQUIRE(m.adopt("emu:0", 3).reply.ok());  // anew, of any size
  REQUIRE(m.apply(AddDevice{"p", "emu:0"}).reply.ok());
  CHECK(m.grant(3).bytes == 3 * granule);
}

TEST_CASE("devices: what is quarantined on a lost device is forgotten with it, the rest of it is erased") {
  Manager m({4, 4});
  const LeaseRow across = m.grant(6);  // 4 on one, 2 on the other
  const LeaseRow within = m.grant(2);
  REQUIRE(within.extents.front().device == across.extents.back().device);
  const DeviceRow gone = *m.machine.find_device(within.extents.front().device);
  REQUIRE(m.apply(DeviceLost{gone.serial, m.now_ns}).reply.ok());
  CHECK(code_of(m.apply(RemoveDevice{gone.serial, true})) == ErrorCode::busy);  // still being fenced
  for (const LeaseRow* lease : {&across, &within})
    REQUIRE(m.apply(FenceFinished{lease->id, {}, m.now_ns}).reply.ok());
  const Step kept = m.apply(RemoveDevice{gone.serial, false});
  CHECK(code_of(kept) == ErrorCode::busy);
  CHECK(detail_of(kept).find("--forget-quarantined") != std::string::npos);

  const Step removed = m.apply(RemoveDevice{gone.serial, true});
  REQUIRE(removed.reply.ok());
  CHECK_FALSE(removed.delta.leases.at(within.id).has_value());
  CHECK(removed.delta.leases.at(across.id)->bytes == 4 * granule);
  CHECK(has_effect<FenceObject>(removed, across.id));
  m.finish(across.id);
  CHECK(m.use().free_bytes == 4 * granule);
}

TEST_CASE("devices: what is quarantined on a device in service is not forgotten") {
  Manager m({4});
  const LeaseRow lease = m.grant(1);
  REQUIRE(m.apply(Release{lease.id, "", m.now_ns}).reply.ok());
  REQUIRE(m.apply(FenceFinished{lease.id, failure(), m.now_ns}).reply.ok());
  const Step refused = m.apply(RemoveDevice{"emu:0", true});
  CHECK(code_of(refused) == ErrorCode::busy);
  CHECK(detail_of(refused).find("or give the device up first") != std::string::npos);
  REQUIRE(m.apply(FailDevice{"emu:0", m.now_ns}).reply.ok());
  CHECK(m.apply(RemoveDevice{"emu:0", true}).reply.ok());
  CHECK(m.machine.leases().empty());
}

TEST_CASE("devices: uses count each lease once, whatever its phase") {
  Manager m({4, 4});
  const LeaseRow across = m.grant(6);
  const LeaseRow within = m.grant(1);
  REQUIRE(m.apply(Release{within.id, "", m.now_ns}).reply.ok());
  const auto uses = m.machine.device_uses();
  CHECK(uses.at(across.extents.front().device).leases == 1);
  CHECK(uses.at(across.extents.front().device).bytes == 4 * granule);
  CHECK(uses.at(within.extents.front().device).leases == 2);
  CHECK(uses.at(within.extents.front().device).bytes == 3 * granule);
}

TEST_CASE("devices: commands for unknown ones are refused") {
  Manager m;
  CHECK(code_of(m.apply(DrainDevice{"x"})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(UndrainDevice{"x", 1})) == ErrorCode::not_found);
  CHECK(code_of(m.apply(FailDevice{"x", 1})) == ErrorCode::not_found);
  CHECK(m.apply(DeviceBack{"x", 1}).reply.ok());
}
