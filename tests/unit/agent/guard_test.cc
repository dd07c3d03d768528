// SPDX-License-Identifier: Apache-2.0
// The page that an agent and its guard share, the agent's lock, and what the guard fences.
#include "daemon/agent/guard.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "core/base/clock.h"
#include "daemon/agent/host_lease_file.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

struct Directory {
  Directory() {
    char name[] = "/tmp/t-guard-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Directory() { std::filesystem::remove_all(path); }
  void write(const std::string& name, size_t bytes) const {
    const UniqueFd file(::open((path + "/" + name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  }
  uint64_t size(const std::string& name) const { return std::filesystem::file_size(path + "/" + name); }
  std::string path;
};

}  // namespace

// Found by integration/agents: the mapping kept the lock of the first opener, and the second one waited for
// ever.
TEST_CASE("HostLeaseFile: agent and guard have it open at once, and see each other's words") {
  const Directory directory;
  auto agent = HostLeaseFile::open(directory.path + "/host-lease");
  auto guard = HostLeaseFile::open(directory.path + "/host-lease");
  REQUIRE(agent.ok());
  REQUIRE(guard.ok());
  CHECK(guard->fence_at_ns() == 0);
  agent->set_fence_at_ns(17, 20);
  CHECK(guard->fence_at_ns() == 17);
  guard->set_guard_busy(true);
  CHECK(agent->guard_is_busy());
  agent->set_fence_at_ns(18, 20);
  CHECK_FALSE(guard->clear(17));  // it was renewed meanwhile: it stands
  CHECK(agent->fence_at_ns() == 18);
  CHECK(guard->clear(18));
  CHECK(agent->fence_at_ns() == 0);
}

TEST_CASE("HostLeaseFile: a promise outlives the process that set it, and damage is no promise") {
  const Directory directory;
  const std::string path = directory.path + "/host-lease";
  {
    auto first = HostLeaseFile::open(path);
    REQUIRE(first.ok());
    first->set_fence_at_ns(5, 6);
  }
  {
    auto second = HostLeaseFile::open(path);
    REQUIRE(second.ok());
    CHECK(second->fence_at_ns() == 5);
  }
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  REQUIRE(::pwrite(file.get(), "XX", 2, 0) == 2);
  auto third = HostLeaseFile::open(path);
  REQUIRE(third.ok());
  CHECK(third->fence_at_ns() == 0);
}

TEST_CASE("HostLeaseFile: the store that is obeyed outlives the process, and another boot") {
  const Directory directory;
  const std::string path = directory.path + "/host-lease";
  const StoreId one{0x1111, 0x2222}, other{0x3333, 0x4444};
  {
    auto first = HostLeaseFile::open(path);
    REQUIRE(first.ok());
    CHECK(!first->store().valid());
    CHECK(first->set_store(one).ok());
    first->set_fence_at_ns(5, 6);
  }
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  REQUIRE(::pwrite(file.get(), "another boot", 12, 8) == 12);
  {
    auto second = HostLeaseFile::open(path);
    REQUIRE(second.ok());
    CHECK(second->fence_at_ns() == 0);
    CHECK(second->store() == one);
    CHECK(second->set_store(other).ok());
    CHECK(second->store() == other);
  }
  REQUIRE(::pwrite(file.get(), "XX", 2, 0) == 2);
  auto damaged = HostLeaseFile::open(path);
  REQUIRE(damaged.ok());
  CHECK(!damaged->store().valid());
}

TEST_CASE("guard: one agent a runtime directory") {
  const Directory directory;
  const HostFiles files(directory.path);
  {
    const auto first = lock_as_agent(files);
    REQUIRE(first.ok());
    CHECK(lock_as_agent(files).error().code == ErrorCode::busy);
  }
  CHECK(lock_as_agent(files).ok());
}

TEST_CASE("guard: every object file is truncated, nothing else, and a missing directory has none") {
  const Directory directory;
  directory.write("lease-1.obj", 4096);
  directory.write("lease-2.obj", 8192);
  directory.write("mark", 100);
  CHECK(fence_memory({{directory.path}, {}}).ok());
  CHECK(directory.size("lease-1.obj") == 0);
  CHECK(directory.size("lease-2.obj") == 0);
  CHECK(directory.size("mark") == 100);
  CHECK(fence_memory({{directory.path + "/none"}, {}}).ok());
}

// Found by a test of the alerts, which removed its folder: the guard tried to read the record for ever.
TEST_CASE("guard: whose runtime directory was removed fences what it knew, and ends") {
  const Directory memory;
  memory.write("lease-1.obj", 4096);
  Directory runtime;
  const HostFiles files(runtime.path);
  REQUIRE(record_guarded(files, {{memory.path}, {}}).ok());
  auto lease = HostLeaseFile::open(files.lease);
  REQUIRE(lease.ok());
  const SystemClock clock;
  lease->set_fence_at_ns(clock.now_ns() + 1'000'000'000, clock.now_ns() + 1'100'000'000);
  std::thread remover([&] {
    while (!guard_runs(files)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::filesystem::remove_all(runtime.path);
  });
  CHECK(run_guard(files).ok());
  remover.join();
  CHECK(memory.size("lease-1.obj") == 0);
}

TEST_CASE("guard: it fences when the moment has come, also if it was there before its start, and ends alone") {
  const Directory directory;
  const HostFiles files(directory.path);
  directory.write("lease-1.obj", 4096);
  REQUIRE(record_guarded(files, {{directory.path}, {}}).ok());
  auto lease = HostLeaseFile::open(files.lease);
  REQUIRE(lease.ok());
  const SystemClock clock;
  lease->set_fence_at_ns(clock.now_ns() + 200'000'000, clock.now_ns() + 300'000'000);
  CHECK(run_guard(files).ok());  // no agent: it returns once nothing is promised any more
  CHECK(clock.now_ns() >= 200'000'000);
  CHECK(directory.size("lease-1.obj") == 0);
  CHECK(lease->fence_at_ns() == 0);
}

// A kernel made of files: what the guard writes is read afterwards.
TEST_CASE("guard: dax devices that can be mapped are taken from their driver, others are left alone") {
  namespace fs = std::filesystem;
  const Directory directory;
  const std::string region = directory.path + "/hmem.0";
  const std::string drivers = directory.path + "/drivers";
  for (const char* driver : {"device_dax", "kmem"}) {
    fs::create_directories(drivers + "/" + driver);
    directory.write(std::string("drivers/") + driver + "/unbind", 0);
  }
  for (const char* device : {"dax0.0", "dax0.1", "dax0.2", "dax_region", "power"})
    fs::create_directories(region + "/" + device);
  fs::create_directory_symlink(drivers + "/device_dax", region + "/dax0.1/driver");
  fs::create_directory_symlink(drivers + "/kmem", region + "/dax0.2/driver");
  REQUIRE(fence_memory({{}, {region}}).ok());
  const auto written = [&](const std::string& driver) {
    char text[32] = "";
    const UniqueFd file(::open((drivers + "/" + driver + "/unbind").c_str(), O_RDONLY | O_CLOEXEC));
    REQUIRE(::read(file.get(), text, sizeof(text) - 1) >= 0);
    return std::string(text);
  };
  CHECK(written("device_dax") == "dax0.1");
  CHECK(written("kmem").empty());
  CHECK(fence_memory({{}, {directory.path + "/gone"}}).ok());
  fs::remove(drivers + "/device_dax/unbind");
  CHECK_FALSE(fence_memory({{}, {region}}).ok());  // still bound: said, and tried again
}

// Regions and directories were fenced one after the other: one whose driver waited kept all others mapped.
TEST_CASE(
    "guard: one device that takes long keeps nothing else mapped, whatever region or directory it is in") {
  namespace fs = std::filesystem;
  const Directory directory;
  const auto region = [&](const std::string& name) {
    fs::create_directories(directory.path + "/" + name + "/device_dax");
    fs::create_directories(directory.path + "/" + name + "/dax0.0");
    fs::create_directory_symlink(directory.path + "/" + name + "/device_dax",
                                 directory.path + "/" + name + "/dax0.0/driver");
    return directory.path + "/" + name;
  };
  const std::string slow = region("slow"), quick = region("quick");
  const std::string hanging = slow + "/device_dax/unbind";
  REQUIRE(::mkfifo(hanging.c_str(), 0600) == 0);  // whoever writes to it waits for a reader
  directory.write("quick/device_dax/unbind", 0);
  fs::create_directories(directory.path + "/objects");
  directory.write("objects/lease-1.obj", 4096);
  const HostFiles files(directory.path);
  REQUIRE(record_guarded(files, {{directory.path + "/objects"}, {slow, quick}}).ok());
  Status outcome;
  std::thread fencing([&] { outcome = fence_guarded(files); });
  const auto others = [&] {
    return directory.size("quick/device_dax/unbind") + 4096 - directory.size("objects/lease-1.obj");
  };
  bool done = false;
  for (int i = 0; i < 2000 && !done; ++i) {
    done = others() == 6 + 4096;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const UniqueFd reader(::open(hanging.c_str(), O_RDONLY | O_CLOEXEC));
  fencing.join();
  CHECK(done);
  CHECK(outcome.ok());
}
