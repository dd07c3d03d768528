// SPDX-License-Identifier: Apache-2.0
// What is said of memory on several devices, and what was measured once.
#include "daemon/memory/tier_attributes.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "daemon/memory/measured_record.h"
#include "tests/unit/memory/backend_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

constexpr uint64_t gb = 1'000'000'000;

TierAttributes device(uint32_t latency_ns, uint64_t bandwidth,
                      AttributesSource source = AttributesSource::hmat) {
  return {.latency_ns = latency_ns,
          .bandwidth_bytes_per_s = bandwidth,
          .node = 1,
          .distance = 20,
          .persistent = true,
          .source = source,
          .isolation = Isolation::device};
}

void write(const std::string& file, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(file).parent_path());
  std::ofstream(file) << text;
}

}  // namespace

TEST_CASE("tier: of one device all is as it says; of none nothing is known") {
  CHECK(combined({{device(300, 8 * gb), gib}}, true) == device(300, 8 * gb));
  CHECK(combined({}, false) == TierAttributes{});
}

TEST_CASE("tier: over several devices latency is the worst, bandwidth the slowest's or that of all stripes") {
  const std::vector<TierPart> parts = {{device(300, 8 * gb), 4 * gib}, {device(350, 4 * gb), 4 * gib}};
  const TierAttributes linear = combined(parts, false);
  CHECK(linear.latency_ns == 350);
  CHECK(linear.bandwidth_bytes_per_s == 4 * gb);
  CHECK(linear.node == 1);
  CHECK(linear.persistent);
  const TierAttributes striped = combined(parts, true);
  CHECK(striped.latency_ns == 350);
  CHECK(striped.bandwidth_bytes_per_s == 8 * gb);  // both until the slower one is done
  CHECK(combined({{device(300, 8 * gb), gib}, {device(300, 8 * gb), gib}}, true).bandwidth_bytes_per_s ==
        16 * gb);
  TierAttributes emulated = device(100, 8 * gb);
  emulated.isolation = Isolation::file;  // all of it is the machine's own memory
  CHECK(combined({{emulated, gib}, {emulated, gib}}, true).bandwidth_bytes_per_s == 8 * gb);
}

TEST_CASE("tier: what one device lacks is not known of all, and the least separate one counts") {
  TierAttributes other = device(0, 0, AttributesSource::none);
  other.node = 2;
  other.distance = 0;
  other.persistent = false;
  other.isolation = Isolation::node;
  other.fence = Fence::trusting;
  for (const bool striped : {false, true}) {
    const TierAttributes all = combined({{device(300, 8 * gb), gib}, {other, gib}}, striped);
    CHECK(all == TierAttributes{.isolation = Isolation::node, .fence = Fence::trusting});
    CHECK(combined({{other, gib}, {device(300, 8 * gb), gib}}, striped) == all);
  }
  const auto measured =
      combined({{device(300, gb), gib}, {device(300, gb, AttributesSource::measured), gib}}, false);
  CHECK(measured.source == AttributesSource::measured);
}

TEST_CASE(
    "tier: the node's table comes first, then what the kernel makes of the devices', then a measurement") {
  const RuntimeFolder folder;
  const std::string region = folder.path() + "/sys/bus/cxl/devices/region3/access1";
  const TierAttributes unknown = firmware_attributes(7, "region3", folder.path());
  CHECK(unknown == TierAttributes{.node = 7});
  CHECK(with_measured_speed(unknown, {}).source == AttributesSource::none);
  const TierAttributes timed = with_measured_speed(unknown, {.latency_ns = 210, .bandwidth_bytes_per_s = gb});
  CHECK(timed.source == AttributesSource::measured);
  CHECK(timed.latency_ns == 210);
  write(region + "/read_latency", "180\n");
  write(region + "/read_bandwidth", "20480\n");
  const TierAttributes cdat = firmware_attributes(7, "region3", folder.path());
  CHECK(cdat.source == AttributesSource::cdat);
  CHECK(cdat.latency_ns == 180);
  CHECK(cdat.bandwidth_bytes_per_s == 20 * gib);
  CHECK(with_measured_speed(cdat, {.latency_ns = 1, .bandwidth_bytes_per_s = 1}) == cdat);
  CHECK(firmware_attributes(7, "", folder.path()).source == AttributesSource::none);
  const std::string node = folder.path() + "/sys/devices/system/node/node7";
  write(node + "/meminfo", "Node 7 MemTotal: 1048576 kB\n");
  write(node + "/access0/initiators/read_latency", "250\n");
  CHECK(firmware_attributes(7, "region3", folder.path()).source == AttributesSource::hmat);
  CHECK(firmware_attributes(7, "region3", folder.path()).latency_ns == 250);
}

TEST_CASE("measured record: outlives the process, and holds for a device of that size only") {
  const RuntimeFolder folder;
  const std::string path = folder.path() + "/state.db.measured";
  {
    MeasuredRecord record(path);
    CHECK(!record.find("emu:a", gib).known());
    record.set("emu:a", gib, {.latency_ns = 123, .bandwidth_bytes_per_s = 456});
    record.set("dax:hmem@0x100000000", 2 * gib, {.latency_ns = 1, .bandwidth_bytes_per_s = 2});
    record.set("emu:b", gib, {});  // could not be measured
  }
  const MeasuredRecord again(path);
  CHECK(again.find("emu:a", gib) == os::MemorySpeed{.latency_ns = 123, .bandwidth_bytes_per_s = 456});
  CHECK(again.find("dax:hmem@0x100000000", 2 * gib).latency_ns == 1);
  CHECK(!again.find("emu:a", 2 * gib).known());
  CHECK(!again.find("emu:b", gib).known());
}

TEST_CASE("measured record: a torn or foreign file says nothing and is replaced") {
  const RuntimeFolder folder;
  const std::string path = folder.path() + "/state.db.measured";
  for (const char* text :
       {"", "something else\n", "terrace-measured-1\nemu:a 1073741824 123",
        "terrace-measured-1\nemu:a 1073741824 123 456\n", "terrace-measured-1\nemu:a x 1 2\nend\n"}) {
    CAPTURE(text);
    write(path, text);
    MeasuredRecord record(path);
    CHECK(!record.find("emu:a", gib).known());
    record.set("emu:a", gib, {.latency_ns = 9, .bandwidth_bytes_per_s = 9});
    CHECK(MeasuredRecord(path).find("emu:a", gib).latency_ns == 9);
  }
}

TEST_CASE("emulated: an adopted device is measured once, and says what a lease of it is") {
  const RuntimeFolder folder;
  MeasuredRecord record;
  auto directory = ObjectDirectory::prepare(folder.options());
  REQUIRE(directory.ok());
  EmulatedBackend backend(std::move(*directory),
                          {.devices = {{"a", 32 * mib}, {"b", 32 * mib}}, .measured = &record});
  CHECK(backend.attributes("emu:a") == TierAttributes{.isolation = Isolation::file});
  CHECK(backend.attributes("emu:c") == TierAttributes{});
  REQUIRE(backend.take_over("emu:a").ok());
  const TierAttributes told = backend.attributes("emu:a");
  CHECK(told.source == AttributesSource::measured);
  CHECK(told.latency_ns > 0);
  CHECK(told.bandwidth_bytes_per_s > 0);
  CHECK(told.node == -1);
  CHECK(backend.refresh().ok());
  CHECK(backend.attributes("emu:b").source == AttributesSource::none);
  backend.know_devices({{DeviceId{1}, "emu:a", "emulated", 32 * mib, 2 * mib},
                        {DeviceId{2}, "emu:b", "emulated", 32 * mib, 2 * mib}});
  record.set("emu:a", 32 * mib, {.latency_ns = 77, .bandwidth_bytes_per_s = 88});
  CHECK(backend.refresh().ok());  // adopted by a manager that measured nothing
  CHECK(backend.attributes("emu:b").source == AttributesSource::measured);
  CHECK(backend.attributes("emu:a").latency_ns == 77);  // not again
  CHECK(backend.list()->empty());
}
