// SPDX-License-Identifier: Apache-2.0
// Words and sums that the previews share.
//
// Place     Inside daemon/state/preview.
#pragma once

#include <string>

#include "core/base/units.h"
#include "daemon/state/preview/preview.h"

namespace terrace::daemon {

// "1 lease", "12 leases".
inline std::string count_of(uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// Where a lease lies, and how much of it on which device.
inline std::vector<PlacedExtent> placed_extents(const StateMachine& state, const std::vector<Extent>& extents) {
  std::vector<PlacedExtent> places;
  for (const Extent& extent : extents) {
    const DeviceRow* device = state.find_device(extent.device);
    if (device != nullptr)
      places.push_back({device->serial, extent.first_granule * device->granule_bytes,
                        extent.granules * device->granule_bytes});
  }
  return places;
}
inline std::map<std::string, uint64_t> places_of(const std::vector<PlacedExtent>& extents) {
  std::map<std::string, uint64_t> places;
  for (const PlacedExtent& extent : extents) places[extent.device] += extent.length;
  return places;
}

// "emu:a (64 MiB), emu:b (2 MiB)"
inline std::string places_text(const std::map<std::string, uint64_t>& places) {
  std::string text;
  for (const auto& [serial, bytes] : places)
    text += (text.empty() ? "" : ", ") + serial + " (" + format_size(bytes) + ")";
  return text;
}

inline PreviewedLease lease_of_row(const LeaseRow& row) {
  return {.lease = row.id,
          .tenant = row.tenant,
          .host = row.host,
          .label = row.label,
          .bytes = row.bytes,
          .to = {},
          .state = {},
          .blocked = false};
}

// Requests that left the queue by a step, for room or for a refusal.
struct Served {
  uint64_t granted = 0, granted_bytes = 0, refused = 0;
};

inline void add_served(const Step& step, Served& served) {
  for (const Effect& effect : step.effects) {
    if (const auto* carve = std::get_if<CarveObject>(&effect)) {
      ++served.granted;
      served.granted_bytes += carve->bytes;
    } else if (std::holds_alternative<RefuseGrant>(effect)) {
      ++served.refused;
    }
  }
}

}  // namespace terrace::daemon
