// SPDX-License-Identifier: Apache-2.0
// What a run may use where no sizes are given.
#include "cli/run/run_budget.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "core/base/units.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

// A machine's files, as the kernel writes them.
struct Machine {
  std::string root, proc, cgroup;

  explicit Machine(uint64_t available) {
    char name[] = "/tmp/terrace-machine-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    root = name;
    proc = root + "/proc";
    cgroup = root + "/cgroup";
    put(proc + "/meminfo",
        "MemTotal:       99999999 kB\nMemAvailable:   " + std::to_string(available / kib) + " kB\n");
  }
  ~Machine() { std::filesystem::remove_all(root); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  void group(const std::string& path, const std::string& limit, uint64_t use, uint64_t cache = 0) {
    put(cgroup + path + "/memory.max", limit + "\n");
    put(cgroup + path + "/memory.current", std::to_string(use) + "\n");
    put(cgroup + path + "/memory.stat", "anon 5\ninactive_file " + std::to_string(cache) + "\n");
  }
  uint64_t available() { return available_memory_bytes(proc, cgroup); }
};

PoolInfo pool(const char* name, uint64_t room) {
  PoolInfo info;
  info.name = name;
  info.grantable_bytes = room;
  return info;
}

}  // namespace

TEST_CASE("run budget: memory is what the machine has available, where no control group leaves less") {
  Machine machine(8 * gib);
  CHECK(machine.available() == 8 * gib);
  machine.put(machine.proc + "/self/cgroup", "0::/a/b\n");
  CHECK(machine.available() == 8 * gib);
  machine.group("/a/b", "max", gib);
  CHECK(machine.available() == 8 * gib);
  machine.group("/a", std::to_string(4 * gib), gib);  // above its own
  CHECK(machine.available() == 3 * gib);
  machine.group("/a", std::to_string(4 * gib), gib, 512 * mib);  // files that can be dropped
  CHECK(machine.available() == 3 * gib + 512 * mib);
  machine.group("/a/b", std::to_string(gib), 2 * gib);  // full
  CHECK(machine.available() == 0);
}

TEST_CASE("run budget: in a container only the group at the root is seen") {
  Machine machine(8 * gib);
  machine.put(machine.proc + "/self/cgroup", "0::/system.slice/docker-1.scope\n");
  machine.group("", std::to_string(2 * gib), gib);
  CHECK(machine.available() == gib);
}

TEST_CASE("run budget: control groups of the first version") {
  Machine machine(8 * gib);
  machine.put(machine.proc + "/self/cgroup", "7:cpu:/x\n4:memory:/x\n");
  machine.put(machine.cgroup + "/memory/x/memory.limit_in_bytes", "3221225472\n");
  machine.put(machine.cgroup + "/memory/x/memory.usage_in_bytes", "1073741824\n");
  CHECK(machine.available() == 2 * gib);
}

TEST_CASE("run budget: half of it, whole granules, and never nothing") {
  CHECK(default_ddr_bytes(8 * gib + 3) == 4 * gib);
  CHECK(default_ddr_bytes(0) == 64 * mib);
}

TEST_CASE("run budget: of several pools the one with most to grant") {
  CHECK(roomiest({}) == nullptr);
  CHECK(roomiest({pool("full", 0), pool("crumbs", mib)}) == nullptr);
  const std::vector<PoolInfo> pools = {pool("a", 4 * mib), pool("b", 9 * mib), pool("c", 0)};
  REQUIRE(roomiest(pools) != nullptr);
  CHECK(roomiest(pools)->name == "b");
  CHECK(default_cxl_bytes(pools[1]) == 8 * mib);
  CHECK(default_cxl_bytes(pool("huge", UINT64_MAX)) == 1024 * gib);
}
