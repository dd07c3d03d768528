// SPDX-License-Identifier: Apache-2.0
// The devdax backend and pages that somebody holds beyond the fence: counted when a device goes, and kept until they
// end. What is shared with other kinds is in kept_pages.h. All but kept() run with kernel_mutex_ held.
#include <algorithm>

#include "daemon/memory/devdax/devdax.h"

namespace terrace::daemon {

// Once a boot, or once a process where it cannot be learned: by a device of the manager's own over the first block of
// `free`, which no lease has.
void DevdaxBackend::learn_pins(const DaxRegion& region, DaxRange free) {
  if (region.align_bytes == 0 || free.bytes < region.align_bytes || !pages_.to_learn(region.serial)) return;
  free.bytes = region.align_bytes;
  const auto device = make_own(region, {free});
  if (!device.ok()) return;
  if (const auto memory = bus_.map(*device); memory.ok()) {
    pages_.learn(region.serial, (*memory)->bytes(), free, device->align_bytes,
                 [&] { return bus_.disable(device->name); });
  } else {
    pages_.cannot_learn_yet(region.serial, memory.error().detail);
  }
  (void)dismantle_own(region, *device);
}

// After the old device is gone, so that no old mapping comes back: gives the kernel pages again in which the pins
// can end. Where it cannot be done the memory is kept for this boot.
void DevdaxBackend::keep_pages(const DaxRegion& region, const std::vector<DaxRange>& ranges, int64_t pins) {
  // Written before the device is there, so that a manager that is killed in between takes it for nothing else.
  (void)record_.keep(region.serial, {ranges, pins});
  if (!make(region, ranges).ok()) (void)record_.keep(region.serial, {ranges, std::nullopt});
}

bool DevdaxBackend::is_kept(const std::string& serial, const DaxDevice& device) const {
  if (device.is_first() || device.ranges.empty()) return false;
  const std::vector<KeptMemory> kept = record_.kept(serial);
  return std::any_of(kept.begin(), kept.end(), [&](const KeptMemory& one) {
    return one.pins.has_value() && one.ranges == device.ranges;
  });
}

Status DevdaxBackend::reclaim(const DaxRegion& region, const std::vector<DaxRange>& ranges) {
  for (const KeptMemory& memory : record_.kept(region.serial))
    if (memory.overlaps(ranges)) TERRACE_RETURN_IF_ERROR(reclaim_one(region, memory));
  return {};
}

// The manager's device over kept memory; nullopt: it has none.
Result<std::optional<DaxDevice>> DevdaxBackend::keeper_of(const DaxRegion& region, const KeptMemory& memory) {
  TERRACE_ASSIGN_OR_RETURN(const DaxRegion now, look_at(region.serial));
  for (const DaxDevice& device : now.devices)
    if (device.ranges == memory.ranges && is_kept(region.serial, device)) return std::optional(device);
  return std::optional<DaxDevice>();
}

Status DevdaxBackend::look_at_kept(const KeptMemory& memory, const std::optional<DaxDevice>& keeper,
                                   const std::string& serial) {
  const bool there = keeper.has_value() && keeper->driver == DaxDriver::device_dax;
  return pages_.look(serial, memory, there ? keeper->align_bytes : 0);
}

Status DevdaxBackend::reclaim_one(const DaxRegion& region, const KeptMemory& memory) {
  TERRACE_ASSIGN_OR_RETURN(const auto keeper, keeper_of(region, memory));
  TERRACE_RETURN_IF_ERROR(look_at_kept(memory, keeper, region.serial));
  // That they have ended is known by the keeper only: so it is on record before that goes.
  if (memory.pins != 0) TERRACE_RETURN_IF_ERROR(record_.keep(region.serial, {memory.ranges, 0}));
  if (keeper.has_value()) TERRACE_RETURN_IF_ERROR(dismantle(region, *keeper, Had::nobody));
  record_.let_go(region.serial, memory.ranges);
  return {};
}

Kept DevdaxBackend::kept(const std::string& name, const std::vector<Extent>& extents) {
  const auto place = locate(name, extents, "DevdaxBackend::kept");
  const auto region = place.ok() ? region_of(place->serial) : std::nullopt;
  if (!region.has_value()) return Kept::yes;
  const MutexLock lock(kernel_mutex_);
  Kept found = Kept::no;
  for (const KeptMemory& memory : record_.kept(place->serial)) {
    if (!memory.overlaps(place->ranges)) continue;
    const auto keeper = keeper_of(*region, memory);
    if (!keeper.ok() || !look_at_kept(memory, *keeper, place->serial).ok()) return Kept::yes;
    found = Kept::ended;
  }
  return found;
}

}  // namespace terrace::daemon
