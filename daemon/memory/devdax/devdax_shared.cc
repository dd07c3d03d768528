// SPDX-License-Identifier: Apache-2.0
// Devdax memory that several machines see at once: proving that it is the same, and handing it over with
// nothing left in caches. Each does its work through a device of the manager's own, which lives only meanwhile.
#include <algorithm>
#include <cstring>

#include "core/base/limits.h"
#include "core/os/erase.h"
#include "core/os/fault_guard.h"
#include "daemon/memory/devdax/devdax.h"

namespace terrace::daemon {
namespace {

Status memory_failed(const std::string& serial, const char* where) {
  return Error{.code = ErrorCode::io_error,
               .where = where,
               .detail = "the memory of device " + serial + " failed under the access (SIGBUS)"};
}

}  // namespace

Status DevdaxBackend::with_own(const DaxRegion& region, const std::vector<DaxRange>& ranges,
                               const std::function<Status(const DaxDevice&)>& work) {
  DaxDevice device;
  {
    const MutexLock lock(kernel_mutex_);
    TERRACE_ASSIGN_OR_RETURN(device, make_own(region, ranges));
  }
  Status done = work(device);
  const MutexLock lock(kernel_mutex_);
  const Status gone = dismantle_own(region, device);
  return done.ok() ? gone : done;
}

Result<Nonce> DevdaxBackend::exchange(const std::string& name, const std::vector<Extent>& extents,
                                      const Nonce& put) {
  TERRACE_ASSIGN_OR_RETURN(const Place place, locate(name, extents, "DevdaxBackend::exchange"));
  TERRACE_ASSIGN_OR_RETURN(const DaxRegion region, look_at(place.serial));
  const uint64_t granule = std::max(region.align_bytes, limits::granule_bytes);
  const std::vector<DaxRange> first{
      {place.ranges.front().start, std::min(place.ranges.front().bytes, granule)}};
  TERRACE_RETURN_IF_ERROR(record_.mark_unerased(place.serial, first));
  Nonce found{};
  const auto swap = [&](const DaxDevice& device) -> Status {
    TERRACE_ASSIGN_OR_RETURN(const auto memory, bus_.map(device));
    const std::span<std::byte> line = memory->bytes().first(put.size());
    const bool whole = os::guarded([&] {
      os::flush(line);
      std::memcpy(found.data(), line.data(), found.size());
      std::memcpy(line.data(), put.data(), put.size());
      os::flush(line);
    });
    return whole ? Status{} : memory_failed(place.serial, "DevdaxBackend::exchange");
  };
  TERRACE_RETURN_IF_ERROR(with_own(region, first, swap));
  return found;
}

Status DevdaxBackend::clean(const std::string& name, const std::vector<Extent>& extents) {
  TERRACE_ASSIGN_OR_RETURN(const Place place, locate(name, extents, "DevdaxBackend::clean"));
  const std::vector<DaxRange> unerased = record_.unerased(place.serial, place.ranges);
  if (unerased.empty()) return {};
  TERRACE_ASSIGN_OR_RETURN(const DaxRegion region, look_at(place.serial));
  TERRACE_RETURN_IF_ERROR(
      with_own(region, unerased, [&](const DaxDevice& device) { return erase_ranges(device, unerased); }));
  record_.mark_erased(place.serial, unerased);
  return {};
}

Status DevdaxBackend::write_back(const std::string& name, const std::vector<Extent>& extents) {
  constexpr const char* where = "DevdaxBackend::write_back";
  TERRACE_ASSIGN_OR_RETURN(const Place place, locate(name, extents, where));
  const auto flush = [&](const DaxDevice& device) -> Status {
    TERRACE_ASSIGN_OR_RETURN(const auto memory, bus_.map(device));
    const bool whole = os::guarded([&] { os::flush(memory->bytes()); });
    return whole ? Status{} : memory_failed(place.serial, where);
  };
  // A hand-over that goes on where it was cut off: the object is there already.
  if (const auto device = device_of(name); device.ok()) return flush(*device);
  if (const auto half_made = find(name); half_made.has_value() && !half_made->device.empty()) {
    const MutexLock lock(kernel_mutex_);
    TERRACE_RETURN_IF_ERROR(fence_object(name, *half_made));
  }
  TERRACE_ASSIGN_OR_RETURN(const DaxRegion region, look_at(place.serial));
  return with_own(region, place.ranges, flush);
}

Result<Hidden> DevdaxBackend::hide(const std::string& view, const std::vector<Extent>& extents) {
  if (!find(view).has_value()) return Hidden::lines_may_remain;
  TERRACE_RETURN_IF_ERROR(fence(view));
  if (kept(view, extents) == Kept::yes) return still_kept(view);
  TERRACE_RETURN_IF_ERROR(write_back(view, extents));
  TERRACE_RETURN_IF_ERROR(scrub(view));
  return Hidden::written_back;
}

std::vector<std::string> DevdaxBackend::dax_regions() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> paths;
  for (const auto& [id, device] : devices_) {
    const auto region = regions_.find(device.serial);
    if (region != regions_.end()) paths.push_back(region->second.path);
  }
  return paths;
}

}  // namespace terrace::daemon
