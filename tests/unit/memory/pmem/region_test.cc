// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/region/region.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "core/base/units.h"
#include "daemon/memory/region/region_plan.h"
#include "tests/unit/memory/pmem/fake_cxl_machine.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::Died;
using terrace::test::FakeCxlMachine;
using terrace::test::StepFault;

namespace {

using Names = std::vector<std::string>;

class RecordFile {
 public:
  RecordFile() {
    char name[] = "/tmp/t-region-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  ~RecordFile() {
    for (const char* end : {"", ".new"}) ::unlink((path() + end).c_str());
    ::rmdir(directory_.c_str());
  }
  std::string path() const { return directory_ + "/state-regions.toml"; }
  std::vector<RegionRecord> read() const {
    const auto records = RegionRecords(path()).read();
    CHECK(records.ok());
    return records.ok() ? *records : std::vector<RegionRecord>{};
  }

 private:
  std::string directory_;
};

Status trusted(const CxlRegion&) {
  return {};
}

bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

FakeCxlMachine two_bridges_one_window() {
  FakeCxlMachine machine;
  machine.add_memdev("0xc0");
  machine.add_memdev("0xc1");
  machine.add_window({{"0xc0"}, {"0xc1"}});
  return machine;
}

}  // namespace

// --- planned ------------------------------------------------------------------------------------------------

TEST_CASE("plan_region: what cannot be is refused in words that say how to fix it") {
  FakeCxlMachine machine;
  for (const char* serial : {"0xc0", "0xc1", "0xc2"}) machine.add_memdev(serial);
  machine.add_memdev("0xd0", true);
  machine.add_window({{"0xc0"}});
  machine.add_window({{"0xc1", "0xc2", "0xd0"}});
  const CxlView view = *machine.cxl().look();
  const auto refusal = [&](RegionRequest request) {
    const auto plan = plan_region(request, view);
    REQUIRE(!plan.ok());
    return plan.error();
  };
  CHECK(says(refusal({{}, 0, 0}).detail, "1, 2, 3, 4, 6, 8, 12 or 16 memdevs, not 0"));
  CHECK(says(refusal({{"0xc0", "0xc0"}, 0, 0}).detail, "memdev 0xc0 is named twice"));
  CHECK(says(refusal({{"0xc0"}, 300, 0}).detail, "256, 512, 1024"));
  CHECK(refusal({{"0xc9"}, 0, 0}).code == ErrorCode::not_found);
  CHECK(says(refusal({{"0xc9"}, 0, 0}).detail, "there are: 0xc0, 0xc1, 0xc2, 0xd0"));
  CHECK(says(refusal({{"0xc0"}, 0, 100 * mib}).detail, "multiple of 256 MiB, which 100 MiB is not"));
  CHECK(refusal({{"0xc0"}, 0, 1 * gib}).code == ErrorCode::capacity_exhausted);
  CHECK(says(refusal({{"0xc0"}, 0, 1 * gib}).detail,
             "have 512 MiB each free for a region, and 1 GiB are needed"));
  CHECK(says(refusal({{"0xc1", "0xd0"}, 0, 0}).detail, "0xc1 is persistent and 0xd0 is not"));
  const Error apart = refusal({{"0xc0", "0xc1"}, 0, 0});
  CHECK(apart.code == ErrorCode::invalid_argument);
  CHECK(says(apart.detail, "decoder0.0 does not lead to memdev 0xc1; decoder0.1 does not lead to memdev 0xc0"));
  CHECK(says(apart.detail, "regions of their own"));
}

TEST_CASE("plan_region: a window that interleaves says its granularity, and wants all its host bridges") {
  FakeCxlMachine machine = two_bridges_one_window();
  machine.add_memdev("0xc2");
  const CxlView view = *machine.cxl().look();
  const auto one = plan_region({{"0xc0"}, 0, 0}, view);
  REQUIRE(!one.ok());
  CHECK(says(one.error().detail, "interleaves over 2 host bridges, and needs equally many memdevs below each"));
  const auto coarse = plan_region({{"0xc0", "0xc1"}, 4096, 0}, view);
  REQUIRE(!coarse.ok());
  CHECK(says(coarse.error().detail, "by 256 bytes, and the region must have that granularity, too"));
  const auto plan = plan_region({{"0xc1", "0xc0"}, 0, 0}, view);
  REQUIRE(plan.ok());
  CHECK(plan->bytes == 1 * gib);
  CHECK(plan->attempts.front() == RegionAttempt{"decoder0.0", {"0xc1", "0xc0"}, 256});
  CHECK(plan->attempts.at(1) == RegionAttempt{"decoder0.0", {"0xc0", "0xc1"}, 256});
}

// --- made ---------------------------------------------------------------------------------------------------

TEST_CASE("RegionMaker: the order that the kernel takes is found, and the serial says which") {
  FakeCxlMachine machine = two_bridges_one_window();
  const RecordFile file;
  RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
  const auto serial = maker.create({{"0xc1", "0xc0"}, 0, 0}, trusted);
  REQUIRE(serial.ok());
  CHECK(*serial == "pmem:0xc0.0xc1");
  CHECK(machine.regions() == 1);
  const auto records = file.read();
  REQUIRE(records.size() == 1);
  CHECK(records[0].made);
  CHECK(records[0].memdevs == Names{"0xc0", "0xc1"});
  CHECK(records[0].granularity == 256);
  CHECK(records[0].bytes == 1 * gib);
  const auto again = maker.create({{"0xc0", "0xc1"}, 0, 0}, trusted);
  REQUIRE(!again.ok());
  CHECK(again.error().code == ErrorCode::busy);
  CHECK(says(again.error().detail, "region1 has it"));  // the first was of the order given
}

TEST_CASE("RegionMaker: below one host bridge the coarsest granularity that the decoders can do is taken") {
  FakeCxlMachine machine;
  machine.add_memdev("0xc0");
  machine.add_memdev("0xc1");
  machine.add_window({{"0xc0", "0xc1"}});
  machine.granularity_max = 2048;
  RegionMaker maker(machine.cxl(), RegionRecords(""));
  REQUIRE(maker.create({{"0xc0", "0xc1"}, 0, 0}, trusted).ok());
  const auto regions = maker.regions();
  REQUIRE(regions.ok());
  CHECK(regions->at(0).granularity == 2048);
  REQUIRE(maker.destroy("pmem:0xc0.0xc1").ok());
  REQUIRE(maker.create({{"0xc0", "0xc1"}, 512, 512 * mib}, trusted).ok());
  CHECK(maker.regions()->at(0).granularity == 512);
  CHECK(maker.regions()->at(0).bytes == 512 * mib);
}

TEST_CASE("RegionMaker: a second region below one host bridge is refused with the reason") {
  FakeCxlMachine machine;
  machine.add_memdev("0xc0");
  machine.add_memdev("0xc1");
  machine.add_window({{"0xc0", "0xc1"}});
  RegionMaker maker(machine.cxl(), RegionRecords(""));
  REQUIRE(maker.create({{"0xc0"}, 0, 0}, trusted).ok());
  const auto second = maker.create({{"0xc1"}, 0, 0}, trusted);
  REQUIRE(!second.ok());
  CHECK(second.error().code == ErrorCode::busy);
  CHECK(says(second.error().detail, "one region per host bridge on this platform"));
  CHECK(says(second.error().detail, "same host bridge as 0xc0, which is in region0"));
  CHECK(machine.regions() == 1);
}

TEST_CASE("RegionMaker: volatile memdevs make a volatile region, named as a dax device is") {
  FakeCxlMachine machine;
  machine.add_memdev("0xd0", true);
  machine.add_window({{"0xd0"}});
  RegionMaker maker(machine.cxl(), RegionRecords(""));
  const auto serial = maker.create({{"0xd0"}, 0, 0}, trusted);
  REQUIRE(serial.ok());
  CHECK(*serial == "dax:0xd0");
  CHECK(maker.regions()->at(0).ram);
}

TEST_CASE("RegionMaker: a region that fails its probe is taken apart, and nothing is on record") {
  FakeCxlMachine machine = two_bridges_one_window();
  const RecordFile file;
  RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
  const auto made = maker.create({{"0xc0", "0xc1"}, 0, 0}, [](const CxlRegion&) -> Status {
    return Error{.code = ErrorCode::io_error, .where = "probe", .detail = "it forgets"};
  });
  REQUIRE(!made.ok());
  CHECK(made.error().detail == "it forgets");
  CHECK(machine.regions() == 0);
  CHECK(file.read().empty());
}

TEST_CASE("RegionMaker: where no record can be written the kernel is not touched") {
  FakeCxlMachine machine = two_bridges_one_window();
  RegionMaker maker(machine.cxl(), RegionRecords("/nonexistent/state-regions.toml"));
  machine.fault_at(1000, StepFault::none);
  CHECK(!maker.create({{"0xc0", "0xc1"}, 0, 0}, trusted).ok());
  CHECK(machine.steps() == 0);
}

// --- failures, lies and deaths at every step ----------------------------------------------------------------

TEST_CASE("RegionMaker: whatever step fails or lies, there is a whole region or nothing") {
  for (const StepFault fault : {StepFault::fails, StepFault::fails_late, StepFault::lies}) {
    for (unsigned step = 1; step <= 8; ++step) {
      CAPTURE(step);
      CAPTURE(static_cast<int>(fault));
      FakeCxlMachine machine = two_bridges_one_window();
      const RecordFile file;
      RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
      machine.fault_at(step, fault);
      const auto made = maker.create({{"0xc0", "0xc1"}, 0, 0}, trusted);
      machine.no_faults();
      if (made.ok()) {  // another order or attempt did it, or the fault came after
        CHECK(maker.regions()->size() == 1);
        CHECK(file.read().size() == 1);
        CHECK(machine.regions() == 1);
      } else {
        CHECK(maker.regions()->empty());
        // A removal that failed, too, leaves a region that the next start takes apart.
        (void)maker.restore(trusted);
        CHECK(file.read().empty());
      }
    }
  }
}

TEST_CASE("RegionMaker: killed at any step, the next start leaves the whole region or nothing") {
  for (const StepFault fault : {StepFault::dies_before, StepFault::dies_after}) {
    for (unsigned step = 1; step <= 6; ++step) {
      CAPTURE(step);
      FakeCxlMachine machine = two_bridges_one_window();
      const RecordFile file;
      {
        RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
        machine.fault_at(step, fault);
        bool died = false;
        try {
          (void)maker.create({{"0xc0", "0xc1"}, 0, 0}, trusted);
        } catch (const Died&) {
          died = true;
        }
        CHECK(died == (step <= 6));
        machine.no_faults();
      }
      RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
      CHECK(maker.restore(trusted).empty());
      CHECK(machine.regions() == 0);  // never acknowledged
      CHECK(file.read().empty());
      CHECK(maker.create({{"0xc0", "0xc1"}, 0, 0}, trusted).ok());
    }
  }
}

TEST_CASE("RegionMaker: killed while it makes a region again, the next start goes on") {
  for (unsigned step = 1; step <= 6; ++step) {
    CAPTURE(step);
    FakeCxlMachine machine = two_bridges_one_window();
    const RecordFile file;
    RegionMaker first(machine.cxl(), RegionRecords(file.path()));
    REQUIRE(first.create({{"0xc1", "0xc0"}, 0, 0}, trusted).ok());
    machine.reboot();
    machine.fault_at(step, StepFault::dies_after);
    try {
      (void)first.restore(trusted);
      FAIL("it did not die");
    } catch (const Died&) {
    }
    machine.no_faults();
    RegionMaker second(machine.cxl(), RegionRecords(file.path()));
    CHECK(second.restore(trusted).empty());
    REQUIRE(second.regions()->size() == 1);
    CHECK(second.regions()->at(0).serial == "pmem:0xc0.0xc1");
    CHECK(machine.regions() == 1);
  }
}

// --- after a reboot -----------------------------------------------------------------------------------------

TEST_CASE("RegionMaker: a missing memdev is told, and the region comes back with it") {
  FakeCxlMachine machine = two_bridges_one_window();
  const RecordFile file;
  RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
  REQUIRE(maker.create({{"0xc0", "0xc1"}, 0, 0}, trusted).ok());
  machine.unplug("0xc1");
  const auto problems = maker.restore(trusted);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].serial == "pmem:0xc0.0xc1");
  CHECK(says(problems[0].text, "there is no memdev 0xc1"));
  const auto other = maker.create({{"0xc0"}, 0, 0}, trusted);
  REQUIRE(!other.ok());
  machine.plug("0xc1");
  CHECK(maker.restore(trusted).empty());
  CHECK(maker.regions()->size() == 1);
}

TEST_CASE("RegionMaker: what somebody else made is left alone, and made again only when it was remembered") {
  FakeCxlMachine machine = two_bridges_one_window();
  const RecordFile file;
  RegionMaker other(machine.cxl(), RegionRecords(""));
  REQUIRE(other.create({{"0xc0", "0xc1"}, 0, 0}, trusted).ok());
  RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
  CHECK(maker.restore(trusted).empty());
  CHECK(machine.regions() == 1);
  CHECK(file.read().empty());
  REQUIRE(maker.remember("pmem:0xc0.0xc1").ok());
  machine.reboot();
  CHECK(maker.restore(trusted).empty());
  CHECK(maker.regions()->size() == 1);
  REQUIRE(maker.destroy("pmem:0xc0.0xc1").ok());
  CHECK(machine.regions() == 0);
  machine.reboot();
  CHECK(maker.restore(trusted).empty());
  CHECK(machine.regions() == 0);
  const auto gone = maker.destroy("pmem:0xc0.0xc1");
  REQUIRE(!gone.ok());
  CHECK(gone.error().code == ErrorCode::not_found);
}

TEST_CASE("RegionMaker: regions over the same memdevs have serials of their own, and keep them over a reboot") {
  FakeCxlMachine machine;
  machine.add_memdev("0xc0");
  machine.add_window({{"0xc0"}});
  machine.one_region_per_bridge = false;
  machine.decoders = 2;
  RegionMaker others(machine.cxl(), RegionRecords(""));  // `cxl create-region`, twice
  REQUIRE(others.create({{"0xc0"}, 256, 256 * mib}, trusted).ok());
  const auto second = others.create({{"0xc0"}, 256, 256 * mib}, trusted);
  REQUIRE(second.ok());
  CHECK(*second == "pmem:0xc0@0x10000000");
  REQUIRE(others.regions()->size() == 2);
  CHECK(others.regions()->at(0).serial == "pmem:0xc0");
  CHECK(others.regions()->at(1).serial == "pmem:0xc0@0x10000000");
  const RecordFile file;
  RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
  REQUIRE(maker.remember("pmem:0xc0@0x10000000").ok());  // the upper one first
  REQUIRE(maker.remember("pmem:0xc0").ok());
  const std::string uuid = file.read().at(0).uuid;
  machine.reboot();
  CHECK(maker.restore(trusted).empty());
  REQUIRE(maker.regions()->size() == 2);
  const auto view = machine.cxl().look();
  for (const CxlRegion& region : view->regions)
    CHECK((region.uuid == uuid) == (region.position_bytes == 256 * mib));
  // Taken apart is the one that was named.
  REQUIRE(maker.destroy("pmem:0xc0").ok());
  REQUIRE(maker.regions()->size() == 1);
  CHECK(maker.regions()->at(0).serial == "pmem:0xc0@0x10000000");
}

TEST_CASE("RegionMaker: a region is not made again where other bytes lie") {
  FakeCxlMachine machine;
  machine.add_memdev("0xc0");
  machine.add_window({{"0xc0"}});
  machine.one_region_per_bridge = false;
  machine.decoders = 2;
  RegionMaker others(machine.cxl(), RegionRecords(""));
  REQUIRE(others.create({{"0xc0"}, 256, 256 * mib}, trusted).ok());
  REQUIRE(others.create({{"0xc0"}, 256, 256 * mib}, trusted).ok());
  const RecordFile file;
  RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
  REQUIRE(maker.remember("pmem:0xc0@0x10000000").ok());
  machine.reboot();  // and nobody makes the first one again
  const auto problems = maker.restore(trusted);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].serial == "pmem:0xc0@0x10000000");
  CHECK(says(problems[0].text, "make the region that lay before it first"));
  CHECK(machine.regions() == 0);
  REQUIRE(others.create({{"0xc0"}, 256, 256 * mib}, trusted).ok());
  CHECK(maker.restore(trusted).empty());
  CHECK(maker.regions()->size() == 2);
}

TEST_CASE("RegionMaker: a region that is only on record can be forgotten") {
  FakeCxlMachine machine = two_bridges_one_window();
  const RecordFile file;
  RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
  REQUIRE(maker.create({{"0xc0", "0xc1"}, 0, 0}, trusted).ok());
  machine.unplug("0xc0");
  CHECK(maker.destroy("pmem:0xc0.0xc1").ok());
  CHECK(file.read().empty());
}

// --- the record ---------------------------------------------------------------------------------------------

TEST_CASE("RegionRecords: what is written is read, and nothing that was damaged is believed") {
  const std::vector<RegionRecord> records{
      {"pmem:0xc0.0xc1",
       {"0xc0", "0xc1"},
       false,
       256,
       1 * gib,
       "00000000-0000-4000-8000-000000000001",
       "decoder0.0",
       true},
      {"dax:0xd0", {"0xd0"}, true, 4096, 512 * mib, "", "decoder0.1", false},
      {"pmem:0xc2@0x10000000", {"0xc2"}, false, 256, 512 * mib, "", "decoder0.1", true, 256 * mib}};
  const std::string text = format_records(records);
  const auto read = parse_records(text);
  REQUIRE(read.ok());
  CHECK(*read == records);
  CHECK(parse_records(format_records({}))->empty());
  for (size_t length = 0; length < text.size() - 1; ++length) {  // but for its last newline
    const auto cut = parse_records(text.substr(0, length));
    CHECK_MESSAGE(!cut.ok(), length);
  }
  for (size_t at = text.find("version"); at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    const auto other = parse_records(changed);
    CHECK_MESSAGE((!other.ok() || *other == records), at);
  }
}

TEST_CASE("RegionMaker: with a damaged record nothing is made, removed or forgotten, and the file is named") {
  FakeCxlMachine machine = two_bridges_one_window();
  const RecordFile file;
  RegionMaker maker(machine.cxl(), RegionRecords(file.path()));
  REQUIRE(maker.create({{"0xc0", "0xc1"}, 0, 0}, trusted).ok());
  std::ofstream(file.path(), std::ios::app) << "made = perhaps\n";
  machine.fault_at(1000, StepFault::none);
  const auto problems = maker.restore(trusted);
  REQUIRE(problems.size() == 1);
  CHECK(says(problems[0].text, file.path()));
  CHECK(says(problems[0].text, "move it away"));
  CHECK(!maker.destroy("pmem:0xc0.0xc1").ok());
  CHECK(!maker.remember("pmem:0xc0.0xc1").ok());
  CHECK(machine.steps() == 0);
  CHECK(machine.regions() == 1);
}
