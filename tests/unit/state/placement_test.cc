// SPDX-License-Identifier: Apache-2.0
// Pools under each placement.
#include "tests/unit/state/manager_fixture.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

// Devices "emu:0"... of so many granules, adopted and in no pool.
std::vector<std::string> adopted(Manager& m, const std::vector<uint64_t>& granules, uint64_t granule_bytes) {
  std::vector<std::string> serials;
  for (const uint64_t count : granules) {
    serials.push_back("emu:" + std::to_string(serials.size()));
    REQUIRE(m.apply(AdoptDevice{serials.back(), "emulated", count * granule_bytes, granule_bytes}).reply.ok());
  }
  return serials;
}

}  // namespace

TEST_CASE("placement: a striped pool has stripes of one granule unless told otherwise") {
  Manager m;
  const auto serials = adopted(m, {8, 8}, granule);
  const Step made = m.apply(CreatePool{"p", serials, Placement::striped, 0});
  REQUIRE(made.reply.ok());
  CHECK(std::get<PoolReply>(*made.reply).pool.stripe_bytes == granule);
  CHECK(made.delta.pools.begin()->second->placement == Placement::striped);
  const LeaseRow lease = m.grant(3);
  REQUIRE(lease.extents.size() == 3);
  CHECK(lease.extents[0].device == lease.extents[2].device);
  CHECK(lease.extents[0].device != lease.extents[1].device);
  CHECK(lease.extents[2].first_granule == lease.extents[0].end());
}

TEST_CASE("placement: impossible stripes and placements are refused") {
  Manager m;
  const auto serials = adopted(m, {8, 8}, 2 * granule);
  for (const CreatePool& pool : {CreatePool{"p", serials, Placement::striped, granule},
                                 CreatePool{"p", serials, Placement::striped, 3 * granule},
                                 CreatePool{"p", serials, Placement::linear, 2 * granule},
                                 CreatePool{"p", serials, Placement::spread, 2 * granule},
                                 CreatePool{"p", serials, static_cast<Placement>(3), 0}}) {
    CHECK(code_of(m.apply(pool)) == ErrorCode::invalid_argument);
  }
  CHECK(m.apply(CreatePool{"p", serials, Placement::striped, 4 * granule}).reply.ok());
}

TEST_CASE("placement: a large striped lease stays within its extents by wider stripes") {
  Manager m;
  const auto serials = adopted(m, {1000, 1000, 1000}, granule);
  REQUIRE(m.apply(CreatePool{"p", serials, Placement::striped, granule}).reply.ok());
  const LeaseRow lease = m.grant(1500);
  CHECK(lease.extents.size() == 250);  // of six granules
  for (const Extent& extent : lease.extents) CHECK(extent.granules == 6);
}

TEST_CASE("placement: spread puts each lease on the device with the most free") {
  Manager m;
  const auto serials = adopted(m, {8, 12, 10}, granule);
  REQUIRE(m.apply(CreatePool{"p", serials, Placement::spread, 0}).reply.ok());
  CHECK(m.grant(5).extents.front().device == m.machine.find_device("emu:1")->id);
  CHECK(m.grant(5).extents.front().device == m.machine.find_device("emu:2")->id);
  CHECK(m.grant(5).extents.front().device == m.machine.find_device("emu:0")->id);
}

TEST_CASE("placement: no policy places on a device that drains, failed or vanished") {
  for (const Placement placement : {Placement::linear, Placement::striped, Placement::spread}) {
    Manager m;
    const auto serials = adopted(m, {8, 8, 8, 8}, granule);
    REQUIRE(m.apply(CreatePool{"p", serials, placement, 0}).reply.ok());
    REQUIRE(m.apply(DrainDevice{"emu:0"}).reply.ok());
    REQUIRE(m.apply(FailDevice{"emu:1", m.now_ns}).reply.ok());
    REQUIRE(m.apply(DeviceLost{"emu:3", m.now_ns}).reply.ok());
    CHECK(m.grant(8).extents == std::vector<Extent>{{m.machine.find_device("emu:2")->id, 0, 8}});
    CHECK(code_of(m.apply(m.request(granule))) == ErrorCode::capacity_exhausted);
  }
}

TEST_CASE("placement: a pool of 1 GiB granules grants whole ones") {
  Manager m;
  const auto serials = adopted(m, {3, 3}, gib);
  REQUIRE(m.apply(CreatePool{"p", serials, Placement::striped, 0}).reply.ok());
  const LeaseRow lease = m.grant(m.request(gib + 1));
  CHECK(lease.bytes == 2 * gib);
  CHECK(lease.extents.size() == 2);
  CHECK(code_of(m.apply(m.request(UINT64_MAX))) == ErrorCode::capacity_exhausted);
}

TEST_CASE("placement: a lease of dax memory stays on one device, in pieces there before it would span two") {
  Manager m;
  std::vector<std::string> serials{"dax:a", "dax:b"};
  for (const std::string& serial : serials)
    REQUIRE(m.apply(AdoptDevice{serial, "devdax", 8 * granule, granule}).reply.ok());
  REQUIRE(m.apply(CreatePool{"p", serials, Placement::linear, 0}).reply.ok());
  const LeaseRow first = m.grant(3), second = m.grant(2), third = m.grant(3);
  CHECK(third.extents.front().device == first.extents.front().device);
  CHECK(m.grant(6).extents.front().device != first.extents.front().device);
  for (const LeaseRow& lease : {first, third}) {
    REQUIRE(m.apply(Release{lease.id, lease.tenant, m.now_ns}).reply.ok());
    m.finish(lease.id);
  }
  const LeaseRow pieces = m.grant(6);  // 3 + 3 around the second lease: the other device has only two
  REQUIRE(pieces.extents.size() == 2);
  CHECK(pieces.extents[0].device == pieces.extents[1].device);
  CHECK(m.grant(2).extents.front().device != second.extents.front().device);
}

TEST_CASE("placement: what no one device has room for is refused although the pool has it") {
  Manager m;
  std::vector<std::string> serials{"dax:a", "dax:b"};
  for (const std::string& serial : serials)
    REQUIRE(m.apply(AdoptDevice{serial, "devdax", 8 * granule, granule}).reply.ok());
  REQUIRE(m.apply(CreatePool{"p", serials, Placement::striped, granule}).reply.ok());
  const Step refused = m.apply(m.request(9 * granule));
  CHECK(code_of(refused) == ErrorCode::capacity_exhausted);
  CHECK(refused.reply.error().detail.find("lies on one device") != std::string::npos);
  CHECK(m.grant(8).extents.size() == 1);
}
