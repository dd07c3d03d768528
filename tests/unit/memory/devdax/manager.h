// SPDX-License-Identifier: Apache-2.0
// A manager over a kernel that is made up (tests/support/fake_dax_bus.h), for the tests of the devdax backend;
// tests/guest/devdax_test.py is the same with the real one.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "daemon/memory/devdax/devdax.h"
#include "tests/support/fake_dax_bus.h"

namespace terrace::daemon {

using test::FakeCrash;
using test::FakeDaxBus;

constexpr uint64_t granule = 2 * mib;
constexpr uint64_t base = 4 * gib;
constexpr uint64_t capacity = 32 * mib;
inline const std::string serial = "dax:hmem@0x100000000";

struct DevdaxManager {
  FakeDaxBus& bus;
  std::unique_ptr<DevdaxBackend> backend;
  std::string directory;
  std::string boot = "boot-1";
  MeasuredRecord* measured = nullptr;

  explicit DevdaxManager(FakeDaxBus& kernel, std::string records = "")
      : bus(kernel), directory(std::move(records)) {
    start({});
  }

  // As a daemon's start does it; what list() says.
  std::vector<ObservedObject> start(const std::vector<KnownObject>& objects, bool adopted = false) {
    backend = std::make_unique<DevdaxBackend>(
        bus, DevdaxOptions{
                 .record_directory = directory, .boot_id = boot, .erase_threads = 1, .measured = measured});
    if (adopted) know();
    backend->know_objects(objects);
    CHECK(backend->refresh().ok());
    auto listed = backend->list();
    REQUIRE(listed.ok());
    return *listed;
  }
  void know() { backend->know_devices({{DeviceId{1}, serial, "devdax", capacity, granule}}); }
  void adopt() {
    know();
    REQUIRE(backend->take_over(serial).ok());
  }
  void adopt_erased() {
    adopt();
    REQUIRE(backend->carve("devdax:lease-99", capacity, whole()).ok());
    REQUIRE(backend->fence("devdax:lease-99").ok());
    REQUIRE(backend->scrub("devdax:lease-99").ok());
    bus.done.clear();
  }
  static std::vector<Extent> whole() { return {extent(0, capacity / granule)}; }
  static Extent extent(uint64_t first, uint64_t granules) { return {DeviceId{1}, first, granules}; }
};

inline bool all_zero(const std::vector<std::byte>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte one) { return one == std::byte{0}; });
}

inline std::string scratch_directory() {
  char path[] = "/tmp/t-devdax-XXXXXX";
  REQUIRE(::mkdtemp(path) != nullptr);
  return path;
}

struct DevdaxFixture {
  FakeDaxBus bus;
  DevdaxFixture() { bus.add_region(serial, base, capacity); }
};

}  // namespace terrace::daemon
