// SPDX-License-Identifier: Apache-2.0
// Dax memory to the kernel and back, on a made-up kernel that fails, or stops, at each of its steps.
#include "daemon/memory/numa/system_ram.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "core/base/units.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

constexpr const char* serial = "dax:hmem@0x100000000";

// One region with one device, as the kernel does it: what is bound cannot be changed, what is online not
// unbound.
class MadeUpKernel final : public RamKernel {
 public:
  MadeUpKernel() {
    list = {{.serial = serial, .name = "hmem.0", .bytes = gib, .node = 1, .devices = {whole()}}};
  }

  static RamDevice whole() { return {.name = "dax0.0", .driver = RamDriver::device_dax, .bytes = gib}; }
  RamDevice& device() { return list[0].devices.at(0); }

  Result<std::vector<RamRegion>> regions() override { return list; }
  Status fill(const RamRegion&) override {
    TERRACE_RETURN_IF_ERROR(step("fill"));
    list[0].devices = {{.name = "dax0.0", .driver = RamDriver::none, .bytes = gib}};
    return {};
  }
  Status disable(const std::string& name) override {
    TERRACE_RETURN_IF_ERROR(step("disable " + name));
    if (device().online > 0) return busy("online");
    device().driver = RamDriver::none;
    device().blocks = 0;
    return {};
  }
  Status enable_devdax(const std::string& name) override {
    TERRACE_RETURN_IF_ERROR(step("devdax " + name));
    if (device().driver != RamDriver::none) return busy("bound");
    device().driver = RamDriver::device_dax;
    return {};
  }
  Status enable_ram(const std::string& name) override {
    TERRACE_RETURN_IF_ERROR(step("ram " + name));
    if (device().driver != RamDriver::none) return busy("bound");
    device().driver = RamDriver::kmem;
    device().blocks = 8;
    device().online = policy == "offline" ? 0 : 8;
    device().movable = policy == "online_movable";
    return {};
  }
  Status online_movable(const std::string& name) override {
    TERRACE_RETURN_IF_ERROR(step("online " + name));
    if (device().online < 8) device().movable = true;
    device().online = 8;
    return {};
  }
  Status offline(const std::string& name) override {
    TERRACE_RETURN_IF_ERROR(step("offline " + name));
    if (pinned_blocks > 0) {
      device().online = pinned_blocks;
      return busy("pinned");
    }
    device().online = 0;
    return {};
  }
  bool has_cpus(int node) override { return node == 0; }
  std::string auto_online() override { return policy; }
  Result<std::string> holders(const std::string& name) override {
    if (blind) return os_error(EMFILE, "kernel", "/proc");
    return name == "dax0.0" ? held_by : std::string();
  }
  std::string users(int) override { return "vllm[12] 200 MiB"; }

  static Error busy(const char* why) { return {.code = ErrorCode::busy, .where = "kernel", .detail = why}; }
  // Fails from the step `fail_at` on, for `failures` steps.
  Status step(const std::string& what) {
    steps.push_back(what);
    const int now = static_cast<int>(steps.size());
    if (now >= fail_at && now < fail_at + failures)
      return Error{.code = ErrorCode::io_error, .where = "kernel", .detail = what + " failed"};
    return {};
  }

  std::vector<RamRegion> list;
  std::string policy = "offline";
  std::string held_by;
  bool blind = false;  // who holds a device cannot be looked at
  uint32_t pinned_blocks = 0;
  int fail_at = 1000;
  int failures = 1;
  std::vector<std::string> steps;
};

class Record {
 public:
  Record() {
    char path[] = "/tmp/terrace-ram-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    path_ = path;
  }
  ~Record() { std::filesystem::remove_all(path_); }
  std::string file() const { return path_ + "/system-ram"; }
  std::string text() const {
    std::ifstream file_stream(file());
    return {std::istreambuf_iterator<char>(file_stream), {}};
  }
  void write(const std::string& words) const { std::ofstream(file()) << words; }

 private:
  std::string path_;
};

bool is_devdax(const MadeUpKernel& kernel) {
  const RamDevice& device = kernel.list[0].devices.at(0);
  return device.driver == RamDriver::device_dax && device.online == 0;
}
bool is_ram(const MadeUpKernel& kernel) {
  const RamDevice& device = kernel.list[0].devices.at(0);
  return device.driver == RamDriver::kmem && device.online == 8 && device.movable;
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("SystemRam: a dax device that somebody has is not taken from under him, and he is named") {
  const Record record;
  MadeUpKernel kernel;
  SystemRam ram(kernel, record.file());
  kernel.held_by = "vllm[12]";
  const auto refused = ram.online(serial);
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK(refused.error().detail.find("dax0.0 of dax:hmem@0x100000000 is held by vllm[12]") != std::string::npos);
  kernel.held_by.clear();
  kernel.blind = true;  // that nobody was seen does not say that nobody has it
  CHECK(!ram.online(serial).ok());
  CHECK(kernel.steps.empty());
  CHECK(record.text().empty());
  kernel.blind = false;
  CHECK(ram.online(serial).ok());
}

TEST_CASE("system ram: a region becomes memory of its node in zone Movable, and a dax device again") {
  MadeUpKernel kernel;
  const Record record;
  SystemRam ram(kernel, record.file());
  const auto node = ram.online(serial);
  REQUIRE_MESSAGE(node.ok(), node.error().detail);
  CHECK(*node == 1);
  CHECK(is_ram(kernel));
  CHECK(kernel.steps == std::vector<std::string>{"disable dax0.0", "ram dax0.0", "online dax0.0"});
  CHECK(record.text() == std::string(serial) + " online\n");
  CHECK(ram.online(serial).ok());  // again: nothing to do
  CHECK(kernel.steps.size() == 3);
  kernel.steps.clear();
  REQUIRE(ram.offline(1).ok());
  CHECK(is_devdax(kernel));
  CHECK(kernel.steps == std::vector<std::string>{"offline dax0.0", "disable dax0.0", "devdax dax0.0"});
  CHECK(record.text().empty());
}

TEST_CASE("system ram: a region that nobody divided is filled with a device; a divided one is refused") {
  MadeUpKernel kernel;
  SystemRam ram(kernel, "");
  kernel.list[0].devices.clear();
  REQUIRE(ram.online(serial).ok());
  CHECK(is_ram(kernel));
  REQUIRE(ram.offline(1).ok());

  kernel.list[0].devices = {{.name = "dax0.1", .driver = RamDriver::device_dax, .bytes = 128 * mib}};
  kernel.steps.clear();
  const auto divided = ram.online(serial);
  CHECK(divided.error().code == ErrorCode::busy);
  CHECK(contains(divided.error().detail, "dax0.1 (128 MiB)"));
  CHECK(kernel.steps.empty());
}

TEST_CASE("system ram: memory without a node, of a node with processors, or unknown is refused untouched") {
  MadeUpKernel kernel;
  SystemRam ram(kernel, "");
  CHECK(ram.online("dax:hmem@0x1").error().code == ErrorCode::not_found);
  kernel.list[0].node = 0;
  CHECK(ram.online(serial).error().code == ErrorCode::unsupported);
  kernel.list[0].node = -1;
  CHECK(ram.online(serial).error().code == ErrorCode::unsupported);
  CHECK(ram.offline(1).error().code == ErrorCode::unsupported);
  CHECK(kernel.steps.empty());
  CHECK(is_devdax(kernel));
}

TEST_CASE("system ram: whatever step of online fails, the device is as it was, and nothing is on record") {
  int failed_steps = 0;
  for (int fail_at = 1;; ++fail_at) {
    MadeUpKernel kernel;
    kernel.fail_at = fail_at;
    const Record record;
    SystemRam ram(kernel, record.file());
    const auto node = ram.online(serial);
    if (node.ok()) break;
    ++failed_steps;
    CHECK_MESSAGE(is_devdax(kernel), "failed at step " << fail_at);
    CHECK(record.text().empty());
    CHECK(contains(node.error().detail, "failed"));
    CHECK(!contains(node.error().detail, "could not be put back"));
    kernel.fail_at = 1000;
    CHECK(ram.online(serial).ok());
  }
  CHECK(failed_steps == 3);
}

TEST_CASE("system ram: what cannot be undone either is said") {
  MadeUpKernel kernel;
  kernel.fail_at = 2;
  kernel.failures = 100;
  SystemRam ram(kernel, "");
  const auto node = ram.online(serial);
  REQUIRE(!node.ok());
  CHECK(contains(node.error().detail, "ram dax0.0 failed"));
  CHECK(contains(node.error().detail, "could not be put back as it was: devdax dax0.0 failed"));
}

TEST_CASE(
    "system ram: memory that the kernel brought online by itself is taken as it is, or moved to zone Movable") {
  for (const char* policy : {"online_movable", "online", "online_kernel"}) {
    MadeUpKernel kernel;
    kernel.policy = policy;
    SystemRam ram(kernel, "");
    const auto node = ram.online(serial);
    REQUIRE_MESSAGE(node.ok(), node.error().detail);
    CHECK(is_ram(kernel));
  }
}

TEST_CASE("system ram: memory that cannot leave the wrong zone is said to be so, with the setting to change") {
  MadeUpKernel kernel;
  kernel.policy = "online";
  kernel.pinned_blocks = 2;
  SystemRam ram(kernel, "");
  const auto node = ram.online(serial);
  REQUIRE(!node.ok());
  CHECK(node.error().code == ErrorCode::busy);
  CHECK(contains(node.error().detail, "auto_online_blocks says 'online'"));
  CHECK(contains(node.error().detail, "memhp_default_state=online_movable"));
  CHECK(contains(node.error().detail, "could not be put back"));
}

TEST_CASE("system ram: pages in use keep all of it online, and those who use them are named") {
  MadeUpKernel kernel;
  const Record record;
  SystemRam ram(kernel, record.file());
  REQUIRE(ram.online(serial).ok());
  kernel.pinned_blocks = 3;
  const Status down = ram.offline(1);
  REQUIRE(!down.ok());
  CHECK(down.error().code == ErrorCode::busy);
  CHECK(contains(down.error().detail, "vllm[12] 200 MiB"));
  CHECK(is_ram(kernel));
  CHECK(record.text() == std::string(serial) + " online\n");
  kernel.pinned_blocks = 0;
  CHECK(ram.offline(1).ok());
  CHECK(is_devdax(kernel));
}

TEST_CASE("system ram: whatever step of offline fails, memory is online as it was, or the device is nobody's") {
  for (int fail_at = 1; fail_at <= 3; ++fail_at) {
    MadeUpKernel kernel;
    const Record record;
    SystemRam ram(kernel, record.file());
    REQUIRE(ram.online(serial).ok());
    kernel.steps.clear();
    kernel.fail_at = fail_at;
    const Status down = ram.offline(1);
    REQUIRE(!down.ok());
    CHECK_MESSAGE((fail_at < 3 ? is_ram(kernel) : kernel.device().driver == RamDriver::none),
                  "step " << fail_at);
    kernel.fail_at = 1000;
    if (fail_at < 3) {
      CHECK(ram.offline(1).ok());
      CHECK(is_devdax(kernel));
    } else {
      CHECK(contains(down.error().detail, "daxctl enable-device dax0.0"));
    }
  }
}

TEST_CASE("system ram: a start goes on with whatever a crash left, and does so once") {
  const auto with = [](RamDriver driver, uint32_t online, bool movable) {
    return RamDevice{.name = "dax0.0",
                     .driver = driver,
                     .bytes = gib,
                     .blocks = driver == RamDriver::kmem ? 8u : 0u,
                     .online = online,
                     .movable = movable};
  };
  const std::vector<RamDevice> cut_off = {
      with(RamDriver::device_dax, 0, false), with(RamDriver::none, 0, false), with(RamDriver::kmem, 0, false),
      with(RamDriver::kmem, 3, true),        with(RamDriver::kmem, 8, false), with(RamDriver::kmem, 8, true)};
  for (const RamDevice& device : cut_off) {
    for (const bool leaving : {false, true}) {
      MadeUpKernel kernel;
      kernel.list[0].devices = {device};
      const Record record;
      record.write(std::string(serial) + (leaving ? " leaving\n" : " online\n"));
      SystemRam ram(kernel, record.file());
      CHECK(kernel.steps.empty());
      ram.finish_recorded();
      CHECK(ram.problems().empty());
      CHECK((leaving ? is_devdax(kernel) : is_ram(kernel)));
      CHECK(record.text() == (leaving ? "" : std::string(serial) + " online\n"));
      // By hand, while the manager runs: it is left so.
      kernel.list[0].devices = {MadeUpKernel::whole()};
      kernel.steps.clear();
      ram.finish_recorded();
      CHECK(kernel.steps.empty());
    }
  }
}

TEST_CASE("system ram: what cannot be fixed, and a region that is not there, are problems in words") {
  MadeUpKernel kernel;
  const Record record;
  record.write(std::string(serial) + " online\nnonsense\n a b c\ndax:gone online\n");
  SystemRam ram(kernel, record.file());
  kernel.fail_at = 3;
  ram.finish_recorded();
  REQUIRE(ram.problems().size() == 2);
  CHECK(ram.problems()[0].serial == "dax:gone");
  CHECK(contains(ram.problems()[0].what, "is not there"));
  CHECK(ram.problems()[1].serial == serial);
  CHECK(ram.problems()[1].node == 1);
  CHECK(contains(ram.problems()[1].what, "cannot be brought online"));
  CHECK(is_devdax(kernel));
  // Asked for again, it works, and the problem is gone.
  REQUIRE(ram.online(serial).ok());
  CHECK(ram.problems().size() == 1);
  // The region appears later.
  kernel.list.push_back({.serial = "dax:gone", .name = "hmem.1", .bytes = gib, .node = 2, .devices = {}});
  ram.finish_recorded();
  CHECK(ram.problems().size() <= 1);
}
