// SPDX-License-Identifier: Apache-2.0
// A small healthy world for the checks: two devices, one pool, three leases, their objects.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/base/units.h"
#include "daemon/fsck/fsck.h"

namespace terrace::daemon::test {

struct World {
  Image image;
  std::vector<ObservedObject> objects;
  std::vector<SeenDevice> devices;
  std::vector<LiveMapping> mappings;
  CheckContext context{.serving = false, .in_flight = {}, .boot_id = "boot"};

  World() {
    image.meta = {.next_device = 3, .next_pool = 2, .next_lease = 10, .next_epoch = 10, .boot_id = "boot"};
    for (uint64_t id = 1; id <= 2; ++id) {
      const std::string serial = id == 1 ? "emu:a" : "emu:b";
      image.devices.push_back({.id = DeviceId{id},
                               .serial = serial,
                               .backend = "emulated",
                               .capacity_bytes = 64 * mib,
                               .granule_bytes = 2 * mib,
                               .pool = PoolId{1}});
      devices.push_back({serial, "emulated", 64 * mib, 2 * mib, ""});
    }
    image.pools.push_back({.id = PoolId{1}, .name = "main"});
    add_lease(1, {{DeviceId{1}, 0, 4}});
    add_lease(2, {{DeviceId{1}, 4, 2}, {DeviceId{2}, 0, 2}});
    add_lease(3, {{DeviceId{2}, 10, 1}});
  }

  LeaseRow& add_lease(uint64_t id, std::vector<Extent> extents) {
    LeaseRow lease;
    lease.id = LeaseId{id};
    lease.pool = PoolId{1};
    lease.tenant = "t";
    lease.host = "h";
    lease.object = "lease-" + std::to_string(id);
    lease.epoch = LeaseEpoch{id};
    lease.phase = LeasePhase::active;
    for (const Extent& extent : extents) lease.bytes += extent.granules * 2 * mib;
    lease.extents = std::move(extents);
    objects.push_back({lease.object, lease.bytes, lease.bytes});
    image.leases.push_back(std::move(lease));
    return image.leases.back();
  }

  std::vector<Finding> check() const { return check_consistency(image, objects, devices, mappings, context); }
};

// The only finding, which must say all of `words` somewhere.
inline Finding only(const std::vector<Finding>& findings, Severity severity,
                    std::initializer_list<std::string_view> words) {
  for (const Finding& finding : findings) INFO(finding.subject << ": " << finding.what);
  REQUIRE(findings.size() == 1);
  const Finding& found = findings.front();
  const std::string text = found.subject + ": " + found.what + " | " + found.repair;
  CAPTURE(text);
  CHECK(found.severity == severity);
  CHECK(!found.repair.empty());
  for (const std::string_view word : words) {
    CAPTURE(word);
    CHECK(text.find(word) != std::string::npos);
  }
  return found;
}

}  // namespace terrace::daemon::test
