// SPDX-License-Identifier: Apache-2.0
// How many granules of each device rows have, leases' and growths', counted as rows come and go. The free index
// (ExtentMap) is kept by runs: whoever takes or frees without the other is seen by their sum (I3), when the account of
// that device changes next.
//
// Place     daemon/state keeps one; pure.
// Threads   One.
// Invariant used <= the device's granules. What breaks it, or gives back what nobody has, ends the process.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

class GranuleAccount {
 public:
  void add_device(DeviceId id, uint64_t granules) {
    const bool added = devices_.try_emplace(id, Device{granules, 0, false}).second;
    TERRACE_CHECK(added, "I3: a device is accounted for twice");
  }
  void grow_device(DeviceId id, uint64_t granules) {
    of(id).total += granules;
    note(id);
  }
  void remove_device(DeviceId id) {
    TERRACE_CHECK(of(id).used == 0, "I3: a device that is removed still has granules of leases");
    devices_.erase(id);
  }

  void take(const std::vector<Extent>& extents) {
    for (const Extent& extent : extents) {
      Device& device = of(extent.device);
      TERRACE_CHECK(extent.granules <= device.total - device.used,
                    "I3: leases have more of a device than it has");
      device.used += extent.granules;
      note(extent.device);
    }
  }
  void give(const std::vector<Extent>& extents) {
    for (const Extent& extent : extents) {
      Device& device = of(extent.device);
      TERRACE_CHECK(extent.granules <= device.used, "I3: a lease gives back more of a device than all have");
      device.used -= extent.granules;
      note(extent.device);
    }
  }

  uint64_t used(DeviceId id) const {
    const auto at = devices_.find(id);
    return at == devices_.end() ? 0 : at->second.used;
  }
  // The devices that changed since the last call, `free_of(id)` of each of them having so many granules free:
  // ends the process unless used and free add up.
  template <typename FreeOf>
  void settle(FreeOf free_of) {
    for (const DeviceId id : changed_) {
      const auto at = devices_.find(id);
      if (at == devices_.end()) continue;  // removed since
      at->second.noted = false;
      TERRACE_CHECK(free_of(id) == at->second.total - at->second.used,
                    "I3: free and leased granules of a device do not add up to its capacity");
    }
    changed_.clear();
  }

 private:
  struct Device {
    uint64_t total = 0;
    uint64_t used = 0;
    bool noted = false;  // is in changed_
  };

  Device& of(DeviceId id) {
    const auto at = devices_.find(id);
    TERRACE_CHECK(at != devices_.end(), "I1: an extent lies on a device that is not adopted");
    return at->second;
  }
  void note(DeviceId id) {
    if (!std::exchange(of(id).noted, true)) changed_.push_back(id);
  }

  std::unordered_map<DeviceId, Device> devices_;
  std::vector<DeviceId> changed_;
};

}  // namespace terrace::daemon
