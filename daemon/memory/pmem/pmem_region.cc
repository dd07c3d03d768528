// SPDX-License-Identifier: Apache-2.0
// The pmem backend's devices: regions composed, tried, taken over and taken apart.
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "daemon/memory/pmem/dax_memory.h"
#include "daemon/memory/pmem/pmem.h"

namespace terrace::daemon {
namespace {

constexpr int region_waits = 50;  // of 100 ms, for the driver to take a region that somebody asked for

void wait_a_moment(Mutex& held) TERRACE_REQUIRES(held) {
  const MutexUnlock unlocked(held);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

Error busy(const PmemNamespace& space, const std::string& user) {
  return Error{.code = ErrorCode::busy,
               .where = "PmemBackend",
               .detail = "namespace " + space.name + " (" +
                         (space.device.empty() ? space.block : space.device) + ") is in use: " + user +
                         "; end that first"};
}

os::MemorySpeed speed_of(PmemKernel& kernel, const PmemNamespace& space) {
  const auto fd = kernel.open(space, O_RDONLY);
  if (!fd.ok()) return {};
  const auto memory = DaxMapping::map(fd->get(), 0, std::min(space.device_bytes, os::measured_bytes), false);
  return memory.ok() ? os::measure_memory(memory->bytes()) : os::MemorySpeed{};
}

}  // namespace

// --- composed ---------------------------------------------------------------------------------------------

Result<std::string> PmemBackend::create_region(const RegionRequest& request) {
  const MutexLock composing(composing_);
  const MutexLock lock(kernel_mutex_);
  TERRACE_ASSIGN_OR_RETURN(
      std::string serial, maker_.create(request, [this](const CxlRegion& made) TERRACE_REQUIRES(kernel_mutex_) {
        return probe(made, true);
      }));
  TERRACE_RETURN_IF_ERROR(publish());
  return serial;
}

Probed PmemBackend::probe(const CxlRegion& made, bool waits) {
  if (made.ram) return probe_volatile(made, waits);
  for (int wait = 0;; ++wait) {
    auto regions = kernel_.regions();
    if (!regions.ok()) return Probed::untried(std::move(regions).error());
    for (const PmemRegion& region : *regions)
      if (region.start == made.start) return probe_region(region);
    if (!waits || wait >= region_waits) break;
    wait_a_moment(kernel_mutex_);
  }
  return Probed::untried(Error{
      .code = ErrorCode::io_error,
      .where = "PmemBackend",
      .detail = made.name + " was made, but does not become a region of persistent memory; are cxl_pmem and "
                            "nd_pmem loaded?"});
}

// Through the device that all of it is at first; leases on it are the devdax backend's.
Probed PmemBackend::probe_volatile(const CxlRegion& made, bool waits) {
  auto device = kernel_.enable_volatile(made.start);
  for (int wait = 0;
       waits && !device.ok() && device.error().code == ErrorCode::not_found && wait < region_waits; ++wait) {
    wait_a_moment(kernel_mutex_);
    device = kernel_.enable_volatile(made.start);
  }
  if (!device.ok()) return Probed::untried(device.error());
  const Probed probed = check_device(*device);
  const Status disabled = kernel_.disable_volatile(made.start);
  return probed.status.ok() && !disabled.ok() ? Probed::untried(disabled.error()) : probed;
}

Probed PmemBackend::check_device(const PmemNamespace& space) {
  const auto writer = kernel_.open(space, O_RDWR);
  const auto reader = kernel_.open(space, O_RDONLY);
  if (!writer.ok() || !reader.ok()) return Probed::untried(writer.ok() ? reader.error() : writer.error());
  Status status = check_memory(writer->get(), reader->get(), space.device_bytes);
  // With an errno it is about the access, and not about what was read.
  if (!status.ok() && status.error().os_errno != 0) return Probed::untried(std::move(status).error());
  return status;
}

// In a namespace of its own in free capacity, which is removed again. A full region proves itself otherwise: a
// namespace becomes a dax device only when its metadata could be read back.
Probed PmemBackend::probe_region(const PmemRegion& region) {
  for (const PmemNamespace& space : region.namespaces) {
    if (space.label != pmem_probe_label) continue;
    if (const Status gone = destroy_namespace(space); !gone.ok()) return Probed::untried(gone.error());
  }
  const uint64_t bytes = pmem_namespace_bytes(pmem_namespace_bytes_min, region.unit_bytes);
  if (region.largest_free_bytes < bytes) {
    for (const PmemNamespace& space : region.namespaces)
      if (!space.device.empty()) return Status();
  }
  const auto space = make_namespace(Device{MadeRegion{}, region}, pmem_probe_label, bytes);
  if (!space.ok()) return Probed::untried(space.error());
  const Probed probed = check_device(*space);
  if (probed.status.ok() && options_.measured != nullptr) probed_[region.start] = speed_of(kernel_, *space);
  const Status removed = destroy_namespace(*space);
  return probed.status.ok() && !removed.ok() ? Probed::untried(removed.error()) : probed;
}

// --- taken over -------------------------------------------------------------------------------------------

Status PmemBackend::empty_of_users(const Device& device) const {
  for (const PmemNamespace& space : device.region.namespaces) {
    if (is_known(space.label, device.made.serial)) continue;
    TERRACE_ASSIGN_OR_RETURN(const std::string user, kernel_.users(space));
    if (!user.empty()) return busy(space, user);
  }
  return {};
}

Status PmemBackend::may_take_over(const std::string& serial) {
  Device device;
  {
    const MutexLock lock(kernel_mutex_);
    TERRACE_ASSIGN_OR_RETURN(device, find_device(serial));
  }
  TERRACE_RETURN_IF_ERROR(may_claim(device));
  return empty_of_users(device);
}

// Namespaces of leases stay: a device may be adopted again while it is in use.
Status PmemBackend::take_over(const std::string& serial) {
  const MutexLock composing(composing_);
  const MutexLock lock(kernel_mutex_);
  TERRACE_ASSIGN_OR_RETURN(const Device device, find_device(serial));
  TERRACE_RETURN_IF_ERROR(may_claim(device));
  TERRACE_RETURN_IF_ERROR(empty_of_users(device));
  record_.track(serial, {device.region.start, device.region.bytes});  // says what of it is kept
  claim_tracked(serial);
  learn_pins(device);
  TERRACE_RETURN_IF_ERROR(remove_foreign(device));
  if (const auto emptied = find_device(serial); emptied.ok()) learn_pins(*emptied);  // where that had no room
  TERRACE_RETURN_IF_ERROR(maker_.remember(serial));
  measure(device);
  return publish();
}

// Once, on memory that nobody has: free capacity, in the namespace that tries a region. Of one that was just
// composed that is done. What cannot be measured stays unknown.
void PmemBackend::measure(const Device& device) {
  const PmemRegion& region = device.region;
  if (options_.measured == nullptr ||
      firmware_attributes(region.node, region.name).source != AttributesSource::none)
    return;
  for (const PmemNamespace& space : region.namespaces)
    if (is_known(space.label, device.made.serial)) return;
  if (!probed_.contains(region.start))
    if (const auto now = find_device(device.made.serial); now.ok()) (void)probe_region(now->region);
  options_.measured->set(device.made.serial, region.bytes, probed_[region.start]);
  probed_.erase(region.start);  // something else may be there when it is adopted again
}

void PmemBackend::measure_erased(const std::string& serial, int fd, ByteRange erased) {
  if (options_.measured == nullptr || attributes(serial).source != AttributesSource::none) return;
  uint64_t bytes = 0;
  {
    const MutexLock lock(mutex_);
    if (const auto at = region_bytes_.find(serial); at != region_bytes_.end()) bytes = at->second;
  }
  if (const auto memory = DaxMapping::map(fd, erased.begin, erased.end - erased.begin, false); memory.ok())
    options_.measured->set(serial, bytes, os::measure_memory(memory->bytes()));
}

// --- taken apart ------------------------------------------------------------------------------------------

// Its dax devices are the devdax backend's, or the kernel's own memory; the server sees to it that it is not
// adopted.
Status PmemBackend::unused_volatile(const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<MadeRegion> regions, maker_.regions());
  for (const MadeRegion& region : regions) {
    if (!region.ram || region.serial != serial) continue;
    TERRACE_ASSIGN_OR_RETURN(const std::string users, kernel_.volatile_users(region.start, region.bytes));
    if (users.empty()) continue;
    return Error{.code = ErrorCode::busy,
                 .where = "PmemBackend::destroy_region",
                 .detail = "region " + serial + " is in use (" + users +
                           "); end that first. What is memory of the kernel is given back by `terrace "
                           "device offline numa:nodeN`"};
  }
  return {};
}

// Labels stay, and what they speak of: the same memdevs in the same order show it again.
Status PmemBackend::destroy_region(const std::string& serial) {
  const MutexLock composing(composing_);
  const MutexLock lock(kernel_mutex_);
  if (const auto device = find_device(serial); device.ok()) {
    TERRACE_RETURN_IF_ERROR(empty_of_users(*device));
    // Another region may lie at its addresses then, and whoever holds pages of them would have its bytes.
    record_.track(serial, {device->region.start, device->region.bytes});
    for (PmemNamespace space : device->region.namespaces) TERRACE_RETURN_IF_ERROR(reclaim(serial, space));
    for (const PmemNamespace& space : device->region.namespaces)
      if (space.enabled) TERRACE_RETURN_IF_ERROR(kernel_.disable(space.uuid));
    TERRACE_RETURN_IF_ERROR(kernel_.disable_region(device->region.start));
  } else if (device.error().code != ErrorCode::unavailable) {
    return device.error();  // it could not be looked at
  }
  TERRACE_RETURN_IF_ERROR(unused_volatile(serial));
  const Status destroyed = maker_.destroy(serial);
  {
    const MutexLock state(mutex_);
    std::erase_if(problems_, [&](const RegionProblem& one) { return one.serial == serial; });
  }
  erased_.erase(serial);
  if (destroyed.ok()) record_.forget(serial);
  const Status published = publish();
  return destroyed.ok() ? published : destroyed;
}

}  // namespace terrace::daemon
