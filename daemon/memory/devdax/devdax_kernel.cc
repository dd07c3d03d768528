// SPDX-License-Identifier: Apache-2.0
// The devdax backend's sequences of kernel steps, with a failpoint after each. All run with kernel_mutex_ held.
#include <algorithm>
#include <cerrno>
#include <optional>

#include "core/base/failpoint.h"
#include "core/base/units.h"
#include "daemon/memory/devdax/devdax.h"

namespace terrace::daemon {
namespace {

constexpr std::string_view orphan_prefix = "devdax:orphan-";

bool gone(const Status& status) {
  return !status.ok() && status.error().code == ErrorCode::not_found;
}

bool in_the_way(const DaxDevice& device, const std::vector<DaxRange>& ranges) {
  for (const DaxRange& theirs : device.ranges)
    for (const DaxRange& ours : ranges)
      if (ours.overlaps(theirs)) return true;
  return false;
}

Error in_use(std::string detail) {
  return Error{.code = ErrorCode::busy, .where = "DevdaxBackend::make", .detail = std::move(detail)};
}

Error planted(int code, const char* where) {
  return os_error(code, where, "a dax device could not be changed");
}

}  // namespace

// A device with exactly these ranges, enabled. What was made is undone when a step fails; what cannot be undone
// is an orphan that the next make_room() removes.
Result<DaxDevice> DevdaxBackend::make(const DaxRegion& region, const std::vector<DaxRange>& ranges) {
  TERRACE_ASSIGN_OR_RETURN(const std::string name, bus_.create(region));
  Status built = build(name, region, ranges);
  if (built.ok()) {
    auto device = bus_.device(name);
    if (device.ok() && device->ranges == ranges && device->driver == DaxDriver::device_dax) return device;
    built = device.ok() ? Error{.code = ErrorCode::io_error,
                                .where = "DevdaxBackend::make",
                                .detail = "the kernel gave " + name + " other memory than it was told to"}
                        : device.error();
  }
  if (const auto left = bus_.device(name); left.ok()) (void)dismantle(region, *left, Had::nobody);
  return std::move(built).error();
}

Status DevdaxBackend::build(const std::string& device, const DaxRegion& region,
                            const std::vector<DaxRange>& ranges) {
  constexpr const char* where = "DevdaxBackend::make";
  if (const int code = TERRACE_FAILPOINT(dax_after_create); code != 0) return planted(code, where);
  TERRACE_ASSIGN_OR_RETURN(const DaxDevice made, bus_.device(device));
  if (made.align_bytes != region.align_bytes) {
    TERRACE_RETURN_IF_ERROR(bus_.set_align(device, region.align_bytes));
  }
  for (const DaxRange& range : ranges) TERRACE_RETURN_IF_ERROR(bus_.add_range(device, range));
  if (const int code = TERRACE_FAILPOINT(dax_after_size); code != 0) return planted(code, where);
  TERRACE_RETURN_IF_ERROR(bus_.enable(device));
  if (const int code = TERRACE_FAILPOINT(dax_after_enable); code != 0) return planted(code, where);
  return {};
}

// Every step may have been done already. A device that is gone is dismantled.
Status DevdaxBackend::dismantle(const DaxRegion& region, const DaxDevice& device, Had had) {
  constexpr const char* where = "DevdaxBackend::dismantle";
  if (device.driver == DaxDriver::kmem) {
    return Error{.code = ErrorCode::busy,
                 .where = where,
                 .detail = device.name +
                           " is memory of the kernel's own (system-ram); take it offline first: "
                           "`daxctl reconfigure-device --mode=devdax --force " +
                           device.name + "`"};
  }
  std::optional<int64_t> pins;
  if (device.driver != DaxDriver::none && had == Had::maybe) {
    auto taken = pages_.take_away(region.serial, device.ranges, device.align_bytes,
                                  [&] { return bus_.disable(device.name); });
    if (!taken.ok()) return gone(taken.error()) ? Status{} : taken.error();
    pins = *taken;
  } else if (device.driver != DaxDriver::none) {
    if (Status status = bus_.disable(device.name); !status.ok()) return gone(status) ? Status{} : status;
  }
  if (const int code = TERRACE_FAILPOINT(dax_after_disable); code != 0) return planted(code, where);
  if (device.bytes > 0) {
    if (Status status = bus_.release_ranges(device.name); !status.ok()) return gone(status) ? Status{} : status;
  }
  if (const int code = TERRACE_FAILPOINT(dax_after_shrink); code != 0) return planted(code, where);
  if (!device.is_first()) {
    if (Status status = bus_.destroy(region, device.name); !status.ok() && !gone(status)) return status;
  }
  if (pins.has_value()) keep_pages(region, device.ranges, *pins);
  if (const int code = TERRACE_FAILPOINT(dax_after_destroy); code != 0) return planted(code, where);
  return {};
}

// Devices of nobody's in the way of memory that the rows say is free: the region's first one where a region
// comes back while the manager runs, or what a failed undo left.
Status DevdaxBackend::make_room(const DaxRegion& region, const std::vector<DaxRange>& ranges) {
  for (const DaxDevice& device : region.devices) {
    if (!in_the_way(device, ranges)) continue;
    if (is_kept(region.serial, device)) return in_use(device.name + " lies on pages that somebody still holds");
    if (is_object(region.serial, device))
      return in_use(device.name + " has the memory of an object, of which some should be free");
    TERRACE_ASSIGN_OR_RETURN(const std::vector<DaxHolder> held, bus_.holders({device}));
    if (!held.empty()) {
      return in_use(device.name + ", which no lease has, lies on the memory of one and is held by process " +
                    std::to_string(held.front().pid) + " (" + held.front().command +
                    "): end it, or destroy that device");
    }
    TERRACE_RETURN_IF_ERROR(record_.mark_unerased(region.serial, device.ranges));
    TERRACE_RETURN_IF_ERROR(dismantle(region, device, Had::maybe));
  }
  return {};
}

// Looks at the other devices of the region, which may be many, only when one of them is in the way.
Result<DaxDevice> DevdaxBackend::make_with_room(const DaxRegion& region, const std::vector<DaxRange>& ranges) {
  TERRACE_RETURN_IF_ERROR(reclaim(region, ranges));
  auto made = make(region, ranges);
  if (made.ok() || (made.error().code != ErrorCode::busy && made.error().code != ErrorCode::capacity_exhausted))
    return made;
  TERRACE_ASSIGN_OR_RETURN(const DaxRegion now, look_at(region.serial));
  TERRACE_RETURN_IF_ERROR(make_room(now, ranges));
  return make(now, ranges);
}

// By where it lies; what the kernel calls it is only where to look first.
Status DevdaxBackend::fence_object(const std::string& name, const Object& object) {
  const auto region = region_of(object.serial);
  if (object.ranges.empty()) return {};  // its region was not there when it was told of, nor any device of it
  if (region.has_value() && !object.device.empty()) {
    const auto device = bus_.device(object.device);
    // Without ranges it was fenced half-way before.
    const bool ours =
        device.ok() && !device->is_first() && !is_kept(object.serial, *device) &&
        (device->ranges == object.ranges || (device->bytes == 0 && device->driver == DaxDriver::none));
    if (ours) {
      TERRACE_RETURN_IF_ERROR(dismantle(*region, *device, Had::maybe));
      set_device(name, "");
      return {};
    }
  }
  const auto now = look_at(object.serial);
  if (!now.ok() && now.error().code != ErrorCode::not_found) return now.error();
  // Not there: unplugged, and the kernel took every mapping with it.
  if (now.ok()) {
    for (const DaxDevice& device : now->devices)
      if (device.ranges == object.ranges && !device.is_first() && !is_kept(object.serial, device))
        TERRACE_RETURN_IF_ERROR(dismantle(*now, device, Had::maybe));
  }
  set_device(name, "");
  return {};
}

// Whoever made it: what it lies on is free by the rows, or of a lease that lost its own device. One that
// somebody has open is left alone: an adoption that was cut off, or refused, must cost nobody his memory.
// make_room() says whom it waits for once its room is needed. A device without memory is what a fence that was
// cut off left: whoever has it open has nothing, and shall not keep it there.
Status DevdaxBackend::fence_orphan(const std::string& device) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DaxRegion> regions, bus_.regions());
  for (const DaxRegion& region : regions) {
    if (!adopted(region.serial)) continue;
    for (const DaxDevice& one : region.devices) {
      if (one.name != device || is_object(region.serial, one)) continue;
      // Without a driver its mappings are dead, and whoever still has it has nothing.
      std::vector<DaxHolder> held;
      if (one.driver != DaxDriver::none && one.bytes != 0) {
        TERRACE_ASSIGN_OR_RETURN(held, bus_.holders({one}));
      }
      if (!held.empty()) {
        return in_use(one.name + ", which no lease has, is held by process " +
                      std::to_string(held.front().pid) + " (" + held.front().command +
                      "): end it, or destroy that device");
      }
      TERRACE_RETURN_IF_ERROR(record_.mark_unerased(region.serial, one.ranges));
      return dismantle(region, one, Had::maybe);
    }
  }
  return {};
}

Status DevdaxBackend::fence(const std::string& name) {
  const MutexLock lock(kernel_mutex_);
  if (name.starts_with(orphan_prefix)) return fence_orphan(name.substr(orphan_prefix.size()));
  const auto object = find(name);
  return object.has_value() ? fence_object(name, *object) : Status{};
}

}  // namespace terrace::daemon
