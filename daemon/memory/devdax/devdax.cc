// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/devdax/devdax.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "core/base/failpoint.h"
#include "core/base/units.h"
#include "core/os/erase.h"

namespace terrace::daemon {
namespace {

constexpr std::string_view orphan_name = "devdax:orphan-";
// Objects of litmus runs, which no row has (daemon/litmus/litmus_runs.h): no row says that they must be erased, so
// the record does, from before they are written to until erase() was done.
constexpr std::string_view rowless_name = "devdax:litmus-";

Error no_object(const std::string& name, const char* where) {
  return Error{.code = ErrorCode::not_found, .where = where, .detail = "there is no memory object " + name};
}

// The part of `ranges` from `offset` on, `length` long, in the order of the object's bytes.
std::vector<DaxRange> slice(const std::vector<DaxRange>& ranges, uint64_t offset, uint64_t length) {
  std::vector<DaxRange> parts;
  for (const DaxRange& range : ranges) {
    if (offset >= range.bytes) {
      offset -= range.bytes;
      continue;
    }
    const uint64_t bytes = std::min(range.bytes - offset, length);
    if (bytes > 0) parts.push_back({range.start + offset, bytes});
    length -= bytes;
    offset = 0;
  }
  return parts;
}

// Through a pipe: a fence of either side meanwhile is an error of the kernel's copying, not a signal to us.
Status copy_bytes(std::span<const std::byte> from, std::span<std::byte> to, const char* where) {
  constexpr int pipe_bytes = 1 * mib;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return os_error(errno, where, "cannot make a pipe");
  const UniqueFd out(ends[0]), in(ends[1]);
  const int granted = ::fcntl(in.get(), F_SETPIPE_SZ, pipe_bytes);  // without it the copy is only slower
  const size_t at_once = granted > 0 ? static_cast<size_t>(granted) : 16 * kib;
  size_t sent = 0, done = 0;
  while (done < to.size()) {
    const bool sending = sent == done;
    const ssize_t moved = sending ? ::write(in.get(), from.data() + sent, std::min(at_once, from.size() - sent))
                                  : ::read(out.get(), to.data() + done, sent - done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return os_error(errno, where, "the memory was taken away while it was copied");
    (sending ? sent : done) += static_cast<size_t>(moved);
  }
  return {};
}

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

DevdaxBackend::DevdaxBackend(DaxBus& bus, DevdaxOptions options)
    : bus_(bus),
      options_(std::move(options)),
      record_(options_.record_directory, options_.boot_id, options_.read_only),
      pages_(record_, options_.pins) {}

// --- where objects are ----------------------------------------------------------------------------------

Result<DevdaxBackend::Place> DevdaxBackend::locate(const std::string& name, const std::vector<Extent>& extents,
                                                   const char* where) const {
  const auto wrong = [&](ErrorCode code, const std::string& what) {
    return Error{.code = code, .where = where, .detail = name + ": " + what};
  };
  const MutexLock lock(mutex_);
  Place place;
  for (const Extent& extent : extents) {
    const auto device = devices_.find(extent.device);
    if (device == devices_.end()) return wrong(ErrorCode::invalid_argument, "it lies on an unknown device");
    if (!place.serial.empty() && place.serial != device->second.serial) {
      return wrong(ErrorCode::unsupported, "it would lie on both " + place.serial + " and " +
                                               device->second.serial +
                                               "; one dax device cannot span two regions");
    }
    place.serial = device->second.serial;
    const auto region = regions_.find(place.serial);
    if (region == regions_.end())
      return wrong(ErrorCode::unavailable, "device " + place.serial + " is not there now");
    const uint64_t granule = device->second.granule_bytes;
    const uint64_t granules = region->second.bytes / granule;
    if (extent.granules == 0 || extent.first_granule >= granules ||
        extent.granules > granules - extent.first_granule)
      return wrong(ErrorCode::invalid_argument, "it reaches outside of device " + place.serial);
    place.ranges.push_back({region->second.start + extent.first_granule * granule, extent.granules * granule});
    place.bytes += place.ranges.back().bytes;
  }
  if (place.ranges.empty()) return wrong(ErrorCode::invalid_argument, "it has no extents");
  return place;
}

std::optional<DevdaxBackend::Object> DevdaxBackend::find(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto at = objects_.find(name);
  return at == objects_.end() ? std::nullopt : std::optional(at->second);
}

void DevdaxBackend::set_device(const std::string& name, const std::string& device) {
  const MutexLock lock(mutex_);
  if (const auto at = objects_.find(name); at != objects_.end()) at->second.device = device;
}

// Read afresh: /dev/dax0.3 may be another device by now.
Result<DaxDevice> DevdaxBackend::device_of(const std::string& name) const {
  constexpr const char* where = "DevdaxBackend::open";
  const auto object = find(name);
  if (!object.has_value() || object->device.empty()) return no_object(name, where);
  TERRACE_ASSIGN_OR_RETURN(DaxDevice device, bus_.device(object->device));
  if (device.ranges != object->ranges || device.driver != DaxDriver::device_dax) {
    return Error{.code = ErrorCode::not_found,
                 .where = where,
                 .detail = "the dax device " + object->device + " of object " + name +
                           " was disabled or changed from outside"};
  }
  return device;
}

void DevdaxBackend::know_objects(const std::vector<KnownObject>& known) {
  (void)refresh();  // where extents lie is known by where regions do; later looks place what has no place now
  std::vector<std::pair<const KnownObject*, Place>> placed;
  for (const KnownObject& object : known) {
    auto place = locate(object.name, object.extents, "DevdaxBackend::know_objects");
    // Its region is not there: it has no memory now, and need not be found.
    placed.emplace_back(&object, place.ok() ? std::move(*place) : Place{});
  }
  const MutexLock lock(mutex_);
  objects_.clear();
  for (auto& [object, place] : placed)
    objects_[object->name] = {place.serial, place.ranges, object->bytes, "", next_order_++, object->extents};
}

// --- life of an object ----------------------------------------------------------------------------------

Result<DaxDevice> DevdaxBackend::make_for(const std::string& name, const Place& place) {
  const auto region = region_of(place.serial);
  if (!region.has_value()) return no_object(place.serial, "DevdaxBackend::make");
  auto made = make_with_room(*region, place.ranges);
  const MutexLock lock(mutex_);
  if (made.ok()) objects_[name] = {place.serial, place.ranges, place.bytes, made->name, next_order_++};
  return made;
}

Status DevdaxBackend::carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) {
  constexpr const char* where = "DevdaxBackend::carve";
  TERRACE_ASSIGN_OR_RETURN(const Place place, locate(name, extents, where));
  if (place.bytes != bytes) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = name + ": " + std::to_string(bytes) + " bytes are not what its extents have"};
  }
  DaxDevice device;
  {
    const MutexLock lock(kernel_mutex_);
    if (const auto object = find(name); object.has_value() && !object->device.empty())
      return Error{.code = ErrorCode::already_exists, .where = where, .detail = "there is an object " + name};
    if (const auto region = region_of(place.serial); region.has_value())
      learn_pins(*region, place.ranges.front());
    TERRACE_ASSIGN_OR_RETURN(device, make_for(name, place));
  }
  const std::vector<DaxRange> unerased = record_.unerased(place.serial, place.ranges);
  Status ready = unerased.empty() ? Status{} : erase_ranges(device, unerased);
  if (ready.ok() && name.starts_with(rowless_name)) {
    ready = record_.mark_unerased(place.serial, place.ranges);
  } else if (ready.ok() && !unerased.empty()) {
    record_.mark_erased(place.serial, unerased);
  }
  if (ready.ok()) return {};
  (void)fence(name);
  const MutexLock lock(mutex_);
  objects_.erase(name);
  return ready;
}

// `parts` lie within the device.
Status DevdaxBackend::erase_ranges(const DaxDevice& device, const std::vector<DaxRange>& parts) {
  TERRACE_ASSIGN_OR_RETURN(const auto memory, bus_.map(device));
  uint64_t offset = 0;
  for (const DaxRange& range : device.ranges) {
    for (const DaxRange& part : parts) {
      const uint64_t start = std::max(part.start, range.start), end = std::min(part.end(), range.end());
      if (start >= end) continue;
      const auto erased = os::erase(memory->bytes().subspan(offset + start - range.start, end - start),
                                    {.threads = options_.erase_threads, .seed = random_seed()});
      if (!erased.ok()) return erased.error();
    }
    offset += range.bytes;
  }
  return {};
}

Result<UniqueFd> DevdaxBackend::open(const std::string& name, ObjectAccess access) {
  TERRACE_ASSIGN_OR_RETURN(const DaxDevice device, device_of(name));
  return bus_.open(device, access == ObjectAccess::read_write);
}

Status DevdaxBackend::erase(const std::string& name, const std::vector<Extent>& extents, uint64_t offset,
                            uint64_t length) {
  constexpr const char* where = "DevdaxBackend::erase";
  TERRACE_ASSIGN_OR_RETURN(const Place place, locate(name, extents, where));
  const std::vector<DaxRange> parts = slice(place.ranges, offset, length);
  const auto region = region_of(place.serial);
  if (parts.empty() || !region.has_value()) return no_object(name, where);
  const auto zero = [&](const DaxDevice& device) -> Status {
    TERRACE_RETURN_IF_ERROR(erase_ranges(device, parts));
    if (const int code = TERRACE_FAILPOINT(dax_during_erase); code != 0)
      return os_error(code, where, "cannot erase " + name);
    measure_erased(*region, device);
    return {};
  };
  TERRACE_RETURN_IF_ERROR(with_own(*region, parts, zero));
  record_.mark_erased(place.serial, parts);
  return {};
}

Result<DaxDevice> DevdaxBackend::make_own(const DaxRegion& region, const std::vector<DaxRange>& ranges) {
  auto made = make_with_room(region, ranges);
  const MutexLock lock(mutex_);
  if (made.ok()) own_.insert(made->name);
  return made;
}

// As it is now: a step may have failed half-way. One that stays is an orphan.
Status DevdaxBackend::dismantle_own(const DaxRegion& region, const DaxDevice& device) {
  {
    const MutexLock lock(mutex_);
    own_.erase(device.name);
  }
  const auto now = bus_.device(device.name);
  if (!now.ok()) return now.error().code == ErrorCode::not_found ? Status{} : now.error();
  return dismantle(region, *now, Had::nobody);
}

Result<uint64_t> DevdaxBackend::scrub(const std::string& name) {
  const auto object = find(name);
  if (!object.has_value()) return uint64_t{0};
  if (!object->device.empty()) {
    return Error{.code = ErrorCode::io_error,
                 .where = "DevdaxBackend::scrub",
                 .detail = "object " + name + " still has the dax device " + object->device};
  }
  const MutexLock lock(mutex_);
  objects_.erase(name);
  return object->bytes;
}

// --- changes --------------------------------------------------------------------------------------------

// What a crash left is either of both devices, or none; as nobody was given the new one before this returned,
// it is as good as the old one.
Status DevdaxBackend::rebind(const std::string& from, const std::string& to, uint64_t bytes,
                             const std::vector<Extent>& extents) {
  constexpr const char* where = "DevdaxBackend::rebind";
  TERRACE_ASSIGN_OR_RETURN(const Place place, locate(to, extents, where));
  if (place.bytes != bytes || from == to) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = to + " cannot take " + std::to_string(bytes) + " bytes over from " + from};
  }
  const MutexLock lock(kernel_mutex_);
  if (const auto next = find(to); next.has_value() && !next->device.empty()) {
    if (device_of(to).ok()) return {};
    TERRACE_RETURN_IF_ERROR(fence_object(to, *next));  // cut off before it was enabled: nobody has it
  }
  const auto old = find(from);
  if (old.has_value() && old->ranges != place.ranges) {
    return Error{.code = ErrorCode::corrupt,
                 .where = where,
                 .detail = "objects " + from + " and " + to + " do not lie in the same place"};
  }
  TERRACE_RETURN_IF_ERROR(record_.begin_hand_over(place.serial));
  TERRACE_RETURN_IF_ERROR(fence_object(from, {place.serial, place.ranges, bytes, old ? old->device : "", 0}));
  if (auto made = make_for(to, place); !made.ok()) return made.error();
  const MutexLock forget(mutex_);
  objects_.erase(from);
  return {};
}

Status DevdaxBackend::resize(const std::string& name, uint64_t, uint64_t, const std::vector<Extent>&) {
  return Error{.code = ErrorCode::unsupported,
               .where = "DevdaxBackend::resize",
               .detail = "object " + name +
                         " is a dax device: its size cannot change while it is mapped. Lease another piece, or "
                         "ask for a lease of the new size and copy"};
}

Status DevdaxBackend::copy(const std::string& from, const std::string& to, uint64_t bytes) {
  constexpr const char* where = "DevdaxBackend::copy";
  TERRACE_ASSIGN_OR_RETURN(const DaxDevice source, device_of(from));
  TERRACE_ASSIGN_OR_RETURN(const DaxDevice target, device_of(to));
  if (source.bytes != bytes || target.bytes != bytes) {
    return Error{.code = ErrorCode::corrupt,
                 .where = where,
                 .detail = "objects " + from + " and " + to + " do not both have " + format_size(bytes)};
  }
  TERRACE_ASSIGN_OR_RETURN(const auto read, bus_.map(source));
  TERRACE_ASSIGN_OR_RETURN(const auto written, bus_.map(target));
  return copy_bytes(read->bytes(), written->bytes(), where);
}

// --- looking --------------------------------------------------------------------------------------------

Result<std::vector<ObservedObject>> DevdaxBackend::list() {
  const MutexLock lock(kernel_mutex_);
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DaxRegion> regions, bus_.regions());
  std::vector<ObservedObject> all;
  const MutexLock state(mutex_);
  for (auto& [name, object] : objects_) object.device.clear();
  for (const DaxRegion& region : regions) {
    const bool ours = std::any_of(devices_.begin(), devices_.end(),
                                  [&](const auto& one) { return one.second.serial == region.serial; });
    if (!ours) continue;
    for (const DaxDevice& device : region.devices) {
      if ((device.is_first() && device.bytes == 0) || own_.contains(device.name)) continue;
      if (is_kept(region.serial, device)) continue;
      // Of two objects in one place (a hand-over) it is the one that was there first.
      std::pair<const std::string, Object>* owner = nullptr;
      for (auto& entry : objects_) {
        const bool here = entry.second.serial == region.serial && entry.second.ranges == device.ranges;
        if (here && !device.is_first() && (owner == nullptr || entry.second.order < owner->second.order))
          owner = &entry;
      }
      const uint64_t usable = device.driver == DaxDriver::device_dax ? device.bytes : 0;
      if (owner != nullptr) owner->second.device = device.name;
      const std::string name = owner != nullptr ? owner->first : std::string(orphan_name) + device.name;
      all.push_back({.name = name, .bytes = usable, .allocated = device.bytes});
    }
  }
  // Hand-overs between their two devices: the bytes lie where they were.
  for (const auto& entry : objects_) {
    const Object& object = entry.second;
    if (!object.device.empty() || object.ranges.empty() || !record_.had_hand_over(object.serial)) continue;
    const bool both_without = std::any_of(objects_.begin(), objects_.end(), [&](const auto& other) {
      return object.order < other.second.order && other.second.device.empty() &&
             other.second.ranges == object.ranges && other.second.serial == object.serial;
    });
    if (both_without) all.push_back({.name = entry.first, .bytes = object.bytes, .allocated = object.bytes});
  }
  return all;
}

Result<ObservedObject> DevdaxBackend::usage(const std::string& name) {
  const auto object = find(name);
  if (!object.has_value() || object->device.empty()) return no_object(name, "DevdaxBackend::usage");
  return ObservedObject{.name = name, .bytes = object->bytes, .allocated = object->bytes};
}

std::string DevdaxBackend::describe_memory() const {
  const MutexLock lock(mutex_);
  return std::to_string(seen_.size()) + (seen_.size() == 1 ? " dax region" : " dax regions");
}

}  // namespace terrace::daemon
