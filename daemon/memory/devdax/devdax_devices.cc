// SPDX-License-Identifier: Apache-2.0
// The devdax backend's view of regions: what is there, what is wrong with it, how fast it is, and taking one
// over.
#include <algorithm>

#include "core/base/limits.h"
#include "core/base/units.h"
#include "core/os/measure_memory.h"
#include "daemon/memory/devdax/devdax.h"

namespace terrace::daemon {
namespace {

std::string count_of(size_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

const DaxHolder* holder_of(const std::vector<DaxHolder>& holders, const std::string& device) {
  const auto at = std::find_if(holders.begin(), holders.end(),
                               [&device](const DaxHolder& one) { return one.device == device; });
  return at == holders.end() ? nullptr : &*at;
}

std::string holder_words(const DaxHolder& holder) {
  return "held by process " + std::to_string(holder.pid) + " (" + holder.command + ")";
}

}  // namespace

// --- looking --------------------------------------------------------------------------------------------

Result<DaxRegion> DevdaxBackend::look_at(const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DaxRegion> regions, bus_.regions());
  for (const DaxRegion& region : regions)
    if (region.serial == serial) return region;
  return Error{.code = ErrorCode::not_found,
               .where = "DevdaxBackend",
               .detail = "there is no dax region " + serial + " now"};
}

std::optional<DaxRegion> DevdaxBackend::region_of(const std::string& serial) const {
  const MutexLock lock(mutex_);
  const auto at = regions_.find(serial);
  return at == regions_.end() ? std::nullopt : std::optional(at->second);
}

bool DevdaxBackend::adopted(const std::string& serial) const {
  const MutexLock lock(mutex_);
  return std::any_of(devices_.begin(), devices_.end(),
                     [&serial](const auto& one) { return one.second.serial == serial; });
}

// The first device of a region is never one: the kernel makes it as long as all of a region that it finds.
bool DevdaxBackend::is_object(const std::string& serial, const DaxDevice& device) const {
  if (device.is_first() || device.ranges.empty()) return false;
  const MutexLock lock(mutex_);
  return std::any_of(objects_.begin(), objects_.end(), [&](const auto& one) {
    return one.second.serial == serial && one.second.ranges == device.ranges;
  });
}

// Devices that are not the manager's.
std::vector<DaxDevice> DevdaxBackend::foreign_devices_in(const DaxRegion& region) const {
  std::vector<DaxDevice> strangers;
  for (const DaxDevice& device : region.devices) {
    if ((device.is_first() && device.bytes == 0) || is_object(region.serial, device)) continue;
    if (is_kept(region.serial, device)) continue;
    strangers.push_back(device);
  }
  return strangers;
}

SeenDevice DevdaxBackend::seen(const DaxRegion& region, const std::vector<DaxHolder>& holders) const {
  SeenDevice device{.serial = region.serial,
                    .backend = std::string(kind()),
                    .capacity_bytes = region.bytes,
                    .granule_bytes = std::max(region.align_bytes, limits::granule_bytes),
                    .detail = region.name + ", dynamic dax region"};
  if (region.target_node >= 0) device.detail += ", node " + std::to_string(region.target_node);
  if (region.start % device.granule_bytes != 0) {
    device.detail +=
        "; begins at no multiple of " + format_size(device.granule_bytes) + " and cannot be leased";
    device.granule_bytes = 0;
  }
  device.detail += pages_.in_words(region.serial);
  const bool ours = adopted(region.serial);
  const std::vector<DaxDevice> strangers = foreign_devices_in(region);
  for (const DaxDevice& one : strangers) {
    if (one.driver != DaxDriver::kmem) continue;
    device.detail += "; " + one.name +
                     " of it is memory of the kernel's own (system-ram), which cannot be leased: " +
                     "`daxctl reconfigure-device --mode=devdax --force " + one.name +
                     "`, and keep udev or memhp_default_state from onlining it at boot";
  }
  if (ours || strangers.empty()) return device;
  device.contents = count_of(strangers.size(), "dax device") + ":";
  const char* comma = " ";
  for (const DaxDevice& one : strangers) {
    device.contents += comma + one.name + " (" + format_size(one.bytes);
    if (const DaxHolder* holder = holder_of(holders, one.name)) device.contents += ", " + holder_words(*holder);
    device.contents += ")";
    comma = ", ";
  }
  return device;
}

Status DevdaxBackend::refresh() {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DaxRegion> regions, bus_.regions());
  std::vector<SeenDevice> devices;
  std::map<std::string, DaxRegion> by_serial;
  std::map<std::string, TierAttributes> firmware;
  for (const DaxRegion& region : regions) {
    devices.push_back(seen(region, {}));
    firmware[region.serial] = firmware_attributes(region.target_node, region.name);
    firmware[region.serial].isolation = Isolation::device;
    firmware[region.serial].fence = pages_.fence(region.serial);
    DaxRegion& kept = by_serial[region.serial] = region;
    kept.devices.clear();
  }
  {
    const MutexLock lock(mutex_);
    seen_ = std::move(devices);
    regions_ = std::move(by_serial);
    firmware_ = std::move(firmware);
    for (const auto& [id, device] : devices_) {
      const auto region = regions_.find(device.serial);
      if (region != regions_.end()) {
        record_.track(device.serial, region->second.range());
        if (claim_.has_value() && record_.may_claim(device.serial, region->second.range(), *claim_).ok())
          (void)record_.claim(device.serial, *claim_);
      } else {
        record_.forget(device.serial);  // who knows what comes back
      }
    }
  }
  place_objects();
  return {};
}

// Those of a region that was not there when they were told have a place once it is: a holder that has its
// device still must be shut out by it.
void DevdaxBackend::place_objects() {
  std::map<std::string, std::vector<Extent>> unplaced;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, object] : objects_)
      if (object.ranges.empty()) unplaced[name] = object.extents;
  }
  for (const auto& [name, extents] : unplaced) {
    const auto place = locate(name, extents, "DevdaxBackend::refresh");
    if (!place.ok()) continue;
    const MutexLock lock(mutex_);
    const auto object = objects_.find(name);
    if (object == objects_.end()) continue;
    object->second.serial = place->serial;
    object->second.ranges = place->ranges;
  }
}

std::vector<SeenDevice> DevdaxBackend::inspect() {
  const auto regions = bus_.regions();
  if (!regions.ok()) return discover();
  std::vector<DaxDevice> foreign;
  for (const DaxRegion& region : *regions)
    if (!adopted(region.serial)) foreign.insert(foreign.end(), region.devices.begin(), region.devices.end());
  std::erase_if(foreign, [](const DaxDevice& one) { return one.driver != DaxDriver::device_dax; });
  std::vector<DaxHolder> holders;
  if (auto found = foreign.empty() ? Result<std::vector<DaxHolder>>(holders) : bus_.holders(foreign);
      found.ok())
    holders = *std::move(found);
  std::vector<SeenDevice> devices;
  for (const DaxRegion& region : *regions) devices.push_back(seen(region, holders));
  return devices;
}

std::vector<SeenDevice> DevdaxBackend::discover() {
  const MutexLock lock(mutex_);
  return seen_;
}

TierAttributes DevdaxBackend::attributes(const std::string& serial) const {
  const MutexLock lock(mutex_);
  const auto told = firmware_.find(serial);
  const auto region = regions_.find(serial);
  if (told == firmware_.end() || region == regions_.end()) return {};
  return with_measured_speed(told->second, options_.measured, serial, region->second.bytes);
}

void DevdaxBackend::know_devices(const std::vector<KnownDevice>& devices) {
  const MutexLock lock(mutex_);
  std::set<std::string> before, now;
  for (const auto& [id, device] : devices_) before.insert(device.serial);
  devices_.clear();
  for (const KnownDevice& device : devices) {
    now.insert(device.serial);
    devices_[device.id] = device;
  }
  for (const std::string& serial : before)
    if (!now.contains(serial)) {
      record_.forget(serial);
      if (options_.measured != nullptr) options_.measured->forget(serial);
    }
}

// --- taking over ----------------------------------------------------------------------------------------

Status DevdaxBackend::unused(const std::string& serial, const std::vector<DaxDevice>& strangers) const {
  const auto in_use = [&](const std::string& what) {
    return Error{.code = ErrorCode::busy,
                 .where = "DevdaxBackend::take_over",
                 .detail = "device " + serial + ": " + what};
  };
  for (const DaxDevice& device : strangers) {
    if (device.driver == DaxDriver::kmem)
      return in_use(device.name + " is memory of the kernel's own (system-ram); take it offline first");
  }
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DaxHolder> holders, bus_.holders(strangers));
  if (holders.empty()) return {};
  std::string text = holders.front().device + " is " + holder_words(holders.front());
  if (holders.size() > 1) text += " and by " + std::to_string(holders.size() - 1) + " more";
  return in_use(text + "; adopt it when it is let go");
}

Status DevdaxBackend::may_claim(const DaxRegion& region) const {
  std::optional<StoreClaim> claim;
  {
    const MutexLock lock(mutex_);
    claim = claim_;
  }
  return claim.has_value() ? record_.may_claim(region.serial, region.range(), *claim) : Status();
}

// Adopted devices that are there: refresh() has found their records.
Status DevdaxBackend::claim(const StoreClaim& claim) {
  std::vector<std::pair<std::string, DaxRange>> devices;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, device] : devices_)
      if (const auto region = regions_.find(device.serial); region != regions_.end())
        devices.emplace_back(device.serial, region->second.range());
  }
  for (const auto& [serial, range] : devices) TERRACE_RETURN_IF_ERROR(record_.may_claim(serial, range, claim));
  if (claim.check_only) return {};
  for (const auto& [serial, range] : devices) TERRACE_RETURN_IF_ERROR(record_.claim(serial, claim));
  const MutexLock lock(mutex_);
  claim_ = claim;
  return {};
}

Status DevdaxBackend::may_take_over(const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const DaxRegion region, look_at(serial));
  TERRACE_RETURN_IF_ERROR(may_claim(region));
  return unused(serial, foreign_devices_in(region));
}

// First everything that stands against it, then what cannot be taken back.
Status DevdaxBackend::take_over(const std::string& serial) {
  {
    const MutexLock lock(kernel_mutex_);
    TERRACE_ASSIGN_OR_RETURN(const DaxRegion region, look_at(serial));
    TERRACE_RETURN_IF_ERROR(may_claim(region));
    record_.track(serial, region.range());  // says what of it is kept, if it was ours in this boot
    const std::vector<DaxDevice> strangers = foreign_devices_in(region);
    TERRACE_RETURN_IF_ERROR(unused(serial, strangers));
    {
      const MutexLock state(mutex_);
      if (claim_.has_value()) TERRACE_RETURN_IF_ERROR(record_.claim(serial, *claim_));
    }
    TERRACE_RETURN_IF_ERROR(record_.mark_unerased(serial, {region.range()}));
    for (const DaxDevice& device : strangers) TERRACE_RETURN_IF_ERROR(dismantle(region, device, Had::maybe));
    learn_pins(region, region.range());
    measure(region);
  }
  (void)refresh();  // it is ours now, whether it can be looked at once more or not
  return {};
}

// Whether neither the firmware nor a measurement says how fast the region is.
bool DevdaxBackend::to_measure(const DaxRegion& region) const {
  return options_.measured != nullptr && !options_.measured->find(region.serial, region.bytes).known() &&
         firmware_attributes(region.target_node, region.name).source == AttributesSource::none;
}

// Once, on memory that nobody has; what cannot be measured stays unknown.
void DevdaxBackend::measure(const DaxRegion& region) {
  if (!to_measure(region)) return;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, object] : objects_)
      if (object.serial == region.serial) return;  // some of it may be somebody's
  }
  const uint64_t granule = std::max(region.align_bytes, limits::granule_bytes);
  const uint64_t bytes = std::min(region.bytes, std::max(os::measured_bytes, granule)) / granule * granule;
  const auto device = make_own(region, {{region.start, bytes}});
  if (!device.ok()) return;
  if (const auto memory = bus_.map(*device); memory.ok())
    options_.measured->set(region.serial, region.bytes, os::measure_memory((*memory)->bytes()));
  (void)dismantle_own(region, *device);
}

// A device that was adopted by a manager that measured nothing: on what was just erased.
void DevdaxBackend::measure_erased(const DaxRegion& region, const DaxDevice& device) {
  if (!to_measure(region)) return;
  if (const auto memory = bus_.map(device); memory.ok())
    options_.measured->set(region.serial, region.bytes, os::measure_memory((*memory)->bytes()));
}

}  // namespace terrace::daemon
