// SPDX-License-Identifier: Apache-2.0
// Registered memory is held where the preload library could move it. Here its two symbols are this file's.
#include "terrace/hold.h"

#include <algorithm>
#include <mutex>

#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

std::mutex mutex;
std::vector<std::pair<const void*, size_t>> holds;
bool may_move = false;

}  // namespace

extern "C" int terrace_hold(const void* address, size_t bytes) {
  const std::lock_guard lock(mutex);
  if (!may_move) return 0;
  holds.emplace_back(address, bytes);
  return 1;
}

extern "C" void terrace_unhold(const void* address, size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto found = std::find(holds.begin(), holds.end(), std::pair(address, bytes));
  REQUIRE(found != holds.end());  // what was not held is not let go
  holds.erase(found);
}

TEST_CASE("HostRegistration: memory that could move is held as long as it is registered") {
  FakeDriver driver;
  for (const auto& device : {driver.open(), emulated()}) {
    const Bytes bytes(100 * kib);
    may_move = true;
    auto registration = must(device->register_host(bytes, HostAccess::read_write));
    REQUIRE(holds.size() == 1);
    const auto* begin = static_cast<const std::byte*>(holds[0].first);
    CHECK(begin <= bytes.data());
    CHECK(begin + holds[0].second >= bytes.data() + bytes.size());
    may_move = false;
    const Bytes other(4096);
    const auto plain = must(device->register_host(other, HostAccess::read_write));
    CHECK(holds.size() == 1);
    registration.reset();
    CHECK(holds.empty());
  }
}

TEST_CASE("HostRegistration: a refused one holds nothing") {
  FakeDriver driver;
  driver->register_code = 1;
  const auto device = driver.open();
  const Bytes bytes(100 * kib);
  may_move = true;
  const auto registration = must(device->register_host(bytes, HostAccess::read_write));
  CHECK_FALSE(registration->direct());
  CHECK(holds.empty());
  may_move = false;
}
