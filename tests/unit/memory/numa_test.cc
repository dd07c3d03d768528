// SPDX-License-Identifier: Apache-2.0
// The numa backend on a made-up sysfs in which this machine's node 0, which has real memory, has no processors.
// So memory policies, carving and the check of where pages lie are the kernel's own.
#include "daemon/memory/numa/numa.h"

#include <sys/stat.h>

#include <fstream>

#include "core/os/page_nodes.h"
#include "daemon/memory/files/object_file.h"
#include "tests/support/skip.h"
#include "tests/unit/memory/backend_fixture.h"

using namespace terrace;
using namespace terrace::daemon;
using namespace terrace::daemon::test;

namespace {

constexpr DeviceId first_device{1};
constexpr uint64_t node_bytes = 256 * mib;

class Machine {
 public:
  Machine() { node(0, "", node_bytes, node_bytes); }
  ~Machine() {
    for (const char* name : {"/node0", "/node1"}) ::umount2((folder.path() + name).c_str(), MNT_DETACH);
    std::error_code ignored;
    for (const char* name : {"node0", "node1"})
      std::filesystem::remove_all(shared_memory_directory(folder.path(), name), ignored);
  }

  void write(const std::string& name, const std::string& text) const {
    const std::string file = root() + name;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file) << text;
  }
  void node(int number, const std::string& cpus, uint64_t total, uint64_t free) const {
    const std::string path = "/sys/devices/system/node/node" + std::to_string(number);
    const std::string line = "Node " + std::to_string(number) + " ";
    write("/sys/devices/system/node/online", "0\n");
    write(path + "/cpulist", cpus + "\n");
    write(path + "/distance", "10\n");
    write(path + "/meminfo", line + "MemTotal: " + std::to_string(total / kib) + " kB\n" + line +
                                 "MemFree: " + std::to_string(free / kib) + " kB\n");
  }
  void node_gone(int number) const {
    std::filesystem::remove_all(root() + "/sys/devices/system/node/node" + std::to_string(number));
  }
  std::string root() const { return folder.path() + "/root"; }
  NumaOptions options(bool mount = true) const {
    return {.runtime_directory = folder.path(), .mount = mount, .record = "", .root = root()};
  }

  RuntimeFolder folder;
};

KnownDevice known_node(int node, uint64_t capacity_bytes, DeviceId id = first_device) {
  return {.id = id,
          .serial = numa_serial(node),
          .backend = "numa",
          .capacity_bytes = capacity_bytes,
          .granule_bytes = limits::granule_bytes};
}

// A backend that has adopted the node.
struct Adopted {
  Machine machine;
  NumaBackend backend;
  explicit Adopted(bool mount = true) : backend(machine.options(mount), nullptr) {
    CHECK(backend.refresh().ok());
    backend.know_devices({known_node(0, numa_capacity(node_bytes))});
    if (const Status taken = backend.take_over(numa_serial(0)); !taken.ok())
      FAIL_CHECK(taken.error().to_string());
  }
};

// A container may forbid mbind or move_pages; that is said, not passed over.
bool can_bind() {
  auto file = UniqueFd(::memfd_create("terrace-test", MFD_CLOEXEC));
  if (::ftruncate(file.get(), 4096) != 0) return false;
  const bool can =
      os::bind_file(file.get(), {0, 4096}, 0).ok() && os::nodes_of_file(file.get(), {0, 4096}, 1).ok();
  if (!can) TERRACE_SKIP(memory_policy, "this process may not bind memory to a node, or not ask where it is");
  return can;
}

}  // namespace

TEST_CASE("numa: a node whose files cannot be read is not gone") {
  Machine machine;
  NumaBackend backend(machine.options(), nullptr);
  CHECK(backend.refresh().ok());
  REQUIRE(backend.discover().size() == 1);
  const std::string meminfo = machine.root() + "/sys/devices/system/node/node0/meminfo";
  std::filesystem::rename(meminfo, meminfo + ".away");
  const Status looked = backend.refresh();
  REQUIRE(!looked.ok());
  CHECK(looked.error().os_errno == EAGAIN);
  CHECK(backend.discover().size() == 1);
  std::filesystem::rename(meminfo + ".away", meminfo);
  CHECK(backend.refresh().ok());
}

TEST_CASE("numa: a node's serial is its number, and nothing else is one") {
  CHECK(numa_serial(3) == "numa:node3");
  CHECK(numa_node_of("numa:node3") == 3);
  for (const char* other : {"", "numa:", "numa:node", "numa:node-1", "numa:node1x", "emu:node1", "numa:nodex"})
    CHECK(!numa_node_of(other).has_value());
}

TEST_CASE("numa: leases get whole granules of a node, less what is kept for the kernel") {
  CHECK(numa_margin(gib) == 32 * mib);
  CHECK(numa_margin(512 * gib) == 4 * gib);
  CHECK(numa_capacity(gib) == 992 * mib);
  CHECK(numa_capacity(gib + 4 * kib) == 992 * mib);
  CHECK(numa_capacity(32 * mib) == 0);
  CHECK(numa_capacity(0) == 0);
}

TEST_CASE("numa: nodes without processors are devices, others are not") {
  Machine machine;
  machine.write("/sys/devices/system/node/online", "0-2\n");
  machine.node(1, "0-3", gib, gib);
  machine.node(2, "", gib, gib / 2);
  machine.write("/sys/devices/system/node/online", "0-2\n");
  machine.write("/sys/devices/system/node/node1/distance", "12 10 21\n");
  machine.write("/sys/devices/system/node/node2/access0/initiators/read_latency", "300\n");
  machine.write("/sys/devices/system/node/node2/access0/initiators/read_bandwidth", "8192\n");
  machine.write(
      "/proc/zoneinfo",
      "Node 0, zone   Normal\n  pages free 1\n        managed  0\nNode 0, zone  Movable\n        managed  "
      "10\nNode 2, zone   Normal\n        managed  5\n");
  NumaBackend backend(machine.options(), nullptr);
  CHECK(backend.discover().empty());  // not looked yet
  CHECK(backend.refresh().ok());
  const std::vector<SeenDevice> seen = backend.discover();
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].serial == "numa:node0");
  CHECK(seen[0].detail.find("Movable") == std::string::npos);
  CHECK(seen[1].serial == "numa:node2");
  CHECK(seen[1].backend == "numa");
  CHECK(seen[1].capacity_bytes == 992 * mib);
  CHECK(seen[1].granule_bytes == limits::granule_bytes);
  CHECK(seen[1].detail.find("not all of it is in zone Movable") != std::string::npos);
  CHECK(seen[1].detail.find("other programs have 512 MiB") != std::string::npos);
  CHECK(backend.attributes("numa:node2") == TierAttributes{.latency_ns = 300,
                                                           .bandwidth_bytes_per_s = 8 * gib,
                                                           .node = 2,
                                                           .distance = 21,
                                                           .source = AttributesSource::hmat,
                                                           .isolation = Isolation::node});
  CHECK(backend.attributes("numa:node0").source == AttributesSource::none);
  CHECK(backend.attributes("emu:cxl0") == TierAttributes{});
}

TEST_CASE("numa: an adopted node keeps its capacity while its memory is there, and is gone when it is not") {
  Machine machine;
  NumaBackend backend(machine.options(), nullptr);
  CHECK(backend.refresh().ok());
  const uint64_t adopted = backend.discover().at(0).capacity_bytes;
  backend.know_devices({known_node(0, adopted)});
  machine.node(0, "", node_bytes - 3 * mib, node_bytes - 3 * mib);
  CHECK(backend.refresh().ok());
  CHECK(backend.discover().at(0).capacity_bytes == adopted);
  machine.node(0, "", adopted - mib, adopted - mib);
  CHECK(backend.refresh().ok());
  CHECK(backend.discover().at(0).capacity_bytes < adopted);
  machine.node_gone(0);
  CHECK(backend.refresh().ok());
  CHECK(backend.discover().empty());
  const Status carved = backend.carve("numa:lease-1", granule, granules(1));
  // The directory was made while the node was there, and an object could only be where the node is.
  if (!carved.ok()) CHECK(carved.error().code != ErrorCode::ok);
}

TEST_CASE("numa: a lease's pages are on the node, read as zeros, and are gone after the fence") {
  if (!can_bind()) return;
  for (const bool mount : {true, false}) {
    Adopted numa(mount);
    const Status carved = numa.backend.carve("numa:lease-7", 4 * granule, granules(4));
    REQUIRE_MESSAGE(carved.ok(), carved.error().to_string());
    auto fd = numa.backend.open("numa:lease-7", ObjectAccess::read_write);
    REQUIRE(fd.ok());
    const auto pages = os::nodes_of_file(fd->get(), {0, 4 * granule}, 1 << 20);
    REQUIRE(pages.ok());
    CHECK(pages->elsewhere(0) == 0);
    std::byte* at = map(fd->get(), 4 * granule);
    REQUIRE(at != nullptr);
    CHECK(all_zero(at, 4 * granule));
    at[0] = std::byte{7};
    REQUIRE(numa.backend.list()->size() == 1);
    CHECK(numa.backend.list()->at(0).name == "numa:lease-7");
    CHECK(numa.backend.usage("numa:lease-7")->allocated == 4 * granule);
    REQUIRE(numa.backend.fence("numa:lease-7").ok());
    const int status = run_in_child([&] { return static_cast<int>(at[0]); });
    CHECK(WIFSIGNALED(status));
    CHECK(*numa.backend.scrub("numa:lease-7") == 4 * granule);
    CHECK(numa.backend.list()->empty());
    CHECK(numa.backend.fence("numa:lease-7").ok());
    CHECK(*numa.backend.scrub("numa:lease-7") == 0);
    ::munmap(at, 4 * granule);
    fd->reset();
    CHECK(numa.backend.remove_directories().ok());
  }
}

TEST_CASE("numa: root's objects are on a tmpfs of the node's own, bounded and with its policy") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(root, "only root may mount");
    return;
  }
  if (!can_bind()) return;
  Adopted numa;
  const std::string memory = numa.backend.describe_memory();
  if (memory.find("/dev/shm") != std::string::npos) {
    TERRACE_SKIP(mount, "root may not mount here");
    return;
  }
  CHECK_MESSAGE(memory.find("memory policy bind:0") != std::string::npos, memory);
  CHECK_MESSAGE(memory.find("232 MiB") != std::string::npos, memory);  // 224 MiB and a quarter of the margin
  CHECK(numa.backend.object_directories() == std::vector<std::string>{numa.machine.folder.path() + "/node0"});
}

TEST_CASE("numa: what the HMAT does not say is measured once the node is adopted, and said to be") {
  if (!can_bind()) return;
  Machine machine;
  NumaOptions options = machine.options();
  MeasuredRecord record;
  options.measured = &record;
  NumaBackend backend(options, nullptr);
  CHECK(backend.refresh().ok());
  CHECK(backend.attributes("numa:node0").source == AttributesSource::none);
  backend.know_devices({known_node(0, numa_capacity(node_bytes))});
  REQUIRE(backend.take_over("numa:node0").ok());
  const TierAttributes told = backend.attributes("numa:node0");
  CHECK(told.source == AttributesSource::measured);
  CHECK(told.latency_ns > 0);
  CHECK(told.bandwidth_bytes_per_s > 0);
  CHECK(told.node == 0);
  CHECK(told.isolation == Isolation::node);
  CHECK(backend.list()->empty());
  CHECK(backend.remove_directories().ok());  // nothing of the measurement is left
}

TEST_CASE("numa: a node that grows while it is adopted gives more") {
  if (!can_bind()) return;
  Adopted numa;
  numa.machine.node(0, "", gib, gib);
  CHECK(numa.backend.refresh().ok());
  CHECK(numa.backend.discover().at(0).capacity_bytes == 992 * mib);
  const uint64_t count = 300 * mib / granule;
  const Status carved = numa.backend.carve("numa:lease-1", count * granule, granules(count));
  CHECK_MESSAGE(carved.ok(), carved.error().to_string());
}

TEST_CASE("numa: leases are found again by the next backend, and nothing else takes the directory") {
  if (!can_bind()) return;
  Machine machine;
  const std::vector<KnownDevice> known = {known_node(0, numa_capacity(node_bytes))};
  {
    NumaBackend backend(machine.options(), nullptr);
    backend.know_devices(known);
    CHECK(backend.refresh().ok());
    REQUIRE(backend.carve("numa:lease-3", granule, granules(1)).ok());
    NumaBackend second(machine.options(), nullptr);
    second.know_devices(known);
    CHECK(second.refresh().ok());
    CHECK(second.discover().at(0).detail.find("another terraced") != std::string::npos);
    CHECK(second.carve("numa:lease-4", granule, granules(1)).error().code == ErrorCode::unavailable);
  }
  NumaBackend backend(machine.options(), nullptr);
  backend.know_devices(known);
  CHECK(backend.refresh().ok());
  REQUIRE(backend.list().ok());
  REQUIRE(backend.list()->size() == 1);
  CHECK(backend.list()->at(0).bytes == granule);
  REQUIRE(backend.fence("numa:lease-3").ok());
  CHECK(backend.scrub("numa:lease-3").ok());
  // Given up, the directory goes with the next look.
  const std::string path = backend.object_directories().at(0);
  backend.know_devices({});
  CHECK(backend.refresh().ok());
  CHECK(backend.object_directories().empty());
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("numa: the directory of a node belongs to a store as the emulated one does, now and later") {
  if (!can_bind()) return;
  const StoreClaim own{.store = {1, 2}, .owner = "state file /a.db", .remedy = "--state"};
  const StoreClaim other{.store = {3, 4}, .owner = "state file /b.db", .remedy = "--state", .is_new = true};
  Adopted numa(false);
  REQUIRE(numa.backend.claim(own).ok());
  CHECK(numa.backend.claim(own).ok());
  CHECK_FALSE(numa.backend.claim(other).ok());
  REQUIRE(numa.backend.carve("numa:lease-1", 2 * mib, {{first_device, 0, 1}}).ok());
  CHECK(!numa.backend.list()->front().handed_out);
  REQUIRE(numa.backend.hand_out("numa:lease-1").ok());
  CHECK(numa.backend.list()->front().handed_out);
}

TEST_CASE("numa: resize, hand-over and copy keep to the node") {
  if (!can_bind()) return;
  Adopted numa;
  NumaBackend& backend = numa.backend;
  REQUIRE(backend.carve("numa:lease-1", granule, granules(1)).ok());
  {
    auto fd = backend.open("numa:lease-1", ObjectAccess::read_write);
    REQUIRE(::pwrite(fd->get(), "bytes", 5, 0) == 5);
  }
  REQUIRE(backend.resize("numa:lease-1", granule, 3 * granule, granules(3)).ok());
  REQUIRE(backend.rebind("numa:lease-1", "numa:lease-1-2", 3 * granule, granules(3)).ok());
  CHECK(backend.open("numa:lease-1", ObjectAccess::read_write).error().code == ErrorCode::not_found);
  REQUIRE(backend.carve("numa:lease-2", 3 * granule, granules(3, 4)).ok());
  REQUIRE(backend.copy("numa:lease-1-2", "numa:lease-2", 3 * granule).ok());
  auto fd = backend.open("numa:lease-2", ObjectAccess::read_only);
  char read[5] = {};
  REQUIRE(::pread(fd->get(), read, 5, 0) == 5);
  CHECK(std::string(read, 5) == "bytes");
  CHECK(backend.copy("numa:lease-9", "numa:lease-2", granule).error().code == ErrorCode::not_found);
}

TEST_CASE("numa: what others took of the node is not carved, before the kernel looks for someone to kill") {
  if (!can_bind()) return;
  Adopted numa;
  numa.machine.node(0, "", node_bytes, 20 * mib);
  const Status carved = numa.backend.carve("numa:lease-1", 8 * granule, granules(8));
  REQUIRE(!carved.ok());
  CHECK(carved.error().code == ErrorCode::capacity_exhausted);
  CHECK_MESSAGE(carved.error().detail.find("node 0 has 20 MiB free") != std::string::npos,
                carved.error().detail);
  CHECK(numa.backend.list()->empty());
  REQUIRE(numa.backend.carve("numa:lease-1", granule, granules(1)).ok());
  const Status grown = numa.backend.resize("numa:lease-1", granule, 16 * granule, granules(16));
  REQUIRE(!grown.ok());
  CHECK(grown.error().code == ErrorCode::capacity_exhausted);
  CHECK(numa.backend.usage("numa:lease-1")->bytes == granule);
  CHECK(numa.backend.usage("numa:lease-1")->allocated == granule);
}

TEST_CASE("numa: a lease over two nodes, of an unknown device or of another kind is refused") {
  Machine machine;
  machine.node(1, "", node_bytes, node_bytes);
  machine.write("/sys/devices/system/node/online", "0-1\n");
  NumaBackend backend(machine.options(false), nullptr);
  backend.know_devices({known_node(0, 224 * mib), known_node(1, 224 * mib, DeviceId{2})});
  CHECK(backend.refresh().ok());
  const Status both = backend.carve("numa:lease-1", 2 * granule, {{DeviceId{1}, 0, 1}, {DeviceId{2}, 0, 1}});
  CHECK(both.error().code == ErrorCode::unsupported);
  CHECK(backend.carve("numa:lease-1", granule, {{DeviceId{9}, 0, 1}}).error().code == ErrorCode::unavailable);
  CHECK(backend.carve("numa:lease-1", granule, {}).error().code == ErrorCode::invalid_argument);
  CHECK(backend.carve("lease-1", granule, granules(1)).error().code == ErrorCode::invalid_argument);
  CHECK(backend.carve("numa:../x", granule, granules(1)).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("numa: pages that the kernel put elsewhere fail the carve, in words, and leave nothing") {
  if (!can_bind()) return;
  // The made-up machine says that this memory is node 1's, and its tmpfs has no policy; all real memory is node
  // 0's.
  Machine machine;
  machine.node(1, "", node_bytes, node_bytes);
  machine.write("/sys/devices/system/node/online", "0-1\n");
  if (os::node_attributes(1).exists) return;  // a machine on which node 1 is real
  NumaBackend backend(machine.options(false), nullptr);
  backend.know_devices({known_node(1, 224 * mib)});
  CHECK(backend.refresh().ok());
  const Status carved = backend.carve("numa:lease-1", granule, granules(1));
  REQUIRE(!carved.ok());
  CHECK_MESSAGE(carved.error().detail.find("node 1") != std::string::npos, carved.error().detail);
  CHECK(backend.list()->empty());
}
