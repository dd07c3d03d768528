// SPDX-License-Identifier: Apache-2.0
// The pmem backend's view of the hardware: regions of both buses, namespaces in adopted ones, what all of it is
// called.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/kernel_clock.h"
#include "daemon/memory/pmem/pmem.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t large_region_bytes = 16 * gib;
constexpr std::string_view name_prefix = "pmem:";
constexpr std::string_view stray_prefix = "pmem:stray-";

std::string count(size_t number, const std::string& what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

}  // namespace

uint64_t pmem_unit_bytes(unsigned ways) {
  // The kernel wants an equal share, a power of two, of each memdev.
  return ways % 3 == 0 ? 3 * pmem_align_bytes : pmem_align_bytes;
}

uint64_t pmem_namespace_bytes(uint64_t bytes, uint64_t unit_bytes) {
  const uint64_t needed = std::max(bytes + pmem_align_bytes, pmem_namespace_bytes_min);
  return (needed + unit_bytes - 1) / unit_bytes * unit_bytes;
}

uint64_t pmem_granule_bytes(uint64_t region_bytes) {
  return region_bytes >= large_region_bytes ? 128 * mib : 16 * mib;
}

uint64_t pmem_capacity_bytes(uint64_t region_bytes, unsigned ways) {
  const uint64_t granule = pmem_granule_bytes(region_bytes);
  return region_bytes / pmem_namespace_bytes(granule, pmem_unit_bytes(ways)) * granule;
}

// A region is on the CXL bus by its decoders and on the other by what is in it; the address tells them to
// belong together.
Result<std::vector<PmemBackend::Device>> PmemBackend::look() {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<PmemRegion> regions, kernel_.regions());
  std::vector<Device> devices;
  unseen_.clear();
  if (regions.empty()) return devices;
  TERRACE_ASSIGN_OR_RETURN(const std::vector<MadeRegion> made, maker_.regions(&unseen_));
  for (const MadeRegion& one : made)
    for (const PmemRegion& region : regions)
      if (!one.ram && one.start == region.start) devices.push_back({one, region});
  return devices;
}

// What was not found may be there all the same: an error that passes.
Status PmemBackend::all_seen() const {
  if (unseen_.empty()) return {};
  return os_error(EAGAIN, "PmemBackend", unseen_ + " is there, but could not be looked at; try again");
}

Result<PmemBackend::Device> PmemBackend::find_device(const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<Device> devices, look());
  for (Device& device : devices)
    if (device.made.serial == serial) return std::move(device);
  TERRACE_RETURN_IF_ERROR(all_seen());
  return Error{.code = ErrorCode::unavailable,
               .where = "PmemBackend",
               .detail = "region " + serial + " is not there now; `terrace device list` says why"};
}

Result<PmemNamespace> PmemBackend::find_namespace(const std::string& uuid) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<PmemRegion> regions, kernel_.regions());
  for (PmemRegion& region : regions)
    for (PmemNamespace& space : region.namespaces)
      if (space.uuid == uuid) return std::move(space);
  return Error{.code = ErrorCode::io_error,
               .where = "PmemBackend",
               .detail = "namespace " + uuid + " vanished, although the kernel reported no error"};
}

// --- objects ----------------------------------------------------------------------------------------------

// By label; what has none of ours, or another's, is a stray that goes by its uuid.
std::map<std::string, PmemBackend::Object> PmemBackend::objects_of(const std::vector<Device>& devices) const {
  std::map<std::string, Object> objects;
  // A label that is a lease's on another region is no lease's here.
  const auto elsewhere = [this](const std::string& label, const std::string& serial) {
    if (is_known(label, serial)) return false;
    const MutexLock lock(mutex_);
    return known_objects_.contains(label);
  };
  for (const Device& device : devices) {
    if (!is_adopted(device.made.serial)) continue;
    const uint64_t granule = pmem_granule_bytes(device.region.bytes);
    for (const PmemNamespace& space : device.region.namespaces) {
      const bool devdax = !space.device.empty();
      const bool whole = devdax && kept_in(device.made.serial, space).empty();
      Object object{device.made.serial, space, whole ? space.device_bytes / granule * granule : 0};
      const bool ours = space.label.starts_with(name_prefix) && !space.label.starts_with(stray_prefix) &&
                        !elsewhere(space.label, device.made.serial);
      if (!ours || !objects.try_emplace(space.label, object).second)
        objects.emplace(std::string(stray_prefix) + space.uuid, object);
    }
  }
  return objects;
}

Result<std::optional<PmemBackend::Object>> PmemBackend::find(const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Device> devices, look());
  std::map<std::string, Object> objects = objects_of(devices);
  const auto at = objects.find(name);
  if (at == objects.end()) {
    TERRACE_RETURN_IF_ERROR(all_seen());
    return std::optional<Object>();
  }
  return std::optional<Object>(std::move(at->second));
}

bool PmemBackend::is_known(const std::string& label, const std::string& serial) const {
  const MutexLock lock(mutex_);
  const auto object = known_objects_.find(label);
  if (object == known_objects_.end()) return false;
  return std::any_of(object->second.extents.begin(), object->second.extents.end(),
                     [&](const Extent& extent) TERRACE_REQUIRES(mutex_) {
                       const auto device = known_devices_.find(extent.device);
                       return device != known_devices_.end() && device->second.serial == serial;
                     });
}

bool PmemBackend::may_be_somebodys(const std::string& name, const std::string& serial) const {
  return name.starts_with(stray_prefix) || !is_known(name, serial);
}

bool PmemBackend::is_adopted(const std::string& serial) const {
  const MutexLock lock(mutex_);
  return std::any_of(known_devices_.begin(), known_devices_.end(),
                     [&](const auto& entry) { return entry.second.serial == serial; });
}

Result<std::string> PmemBackend::device_of(const std::string& name, const std::vector<Extent>& extents) const {
  const MutexLock lock(mutex_);
  std::set<std::string> serials;
  for (const Extent& extent : extents) {
    const auto at = known_devices_.find(extent.device);
    serials.insert(at == known_devices_.end() ? "" : at->second.serial);
  }
  if (serials.size() == 1 && !serials.begin()->empty()) return *serials.begin();
  if (serials.size() > 1) {
    return Error{.code = ErrorCode::capacity_exhausted,
                 .where = "PmemBackend::carve",
                 .detail = name + " would lie on " + std::to_string(serials.size()) +
                           " regions, and a namespace lies in one: ask for less, or compact the pool"};
  }
  return Error{.code = ErrorCode::invalid_argument,
               .where = "PmemBackend::carve",
               .detail = name + " lies on no device that is known here"};
}

bool PmemBackend::on_lost_device(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto object = known_objects_.find(name);
  if (object == known_objects_.end()) return false;
  for (const Extent& extent : object->second.extents) {
    const auto device = known_devices_.find(extent.device);
    if (device == known_devices_.end()) continue;
    const bool here = std::any_of(devices_.begin(), devices_.end(), [&](const SeenDevice& seen) {
      return seen.serial == device->second.serial && seen.capacity_bytes != 0;
    });
    if (!here) return true;
  }
  return false;
}

void PmemBackend::know_devices(const std::vector<KnownDevice>& devices) {
  const MutexLock lock(mutex_);
  std::set<std::string> given_up;
  for (const auto& [id, device] : known_devices_) given_up.insert(device.serial);
  known_devices_.clear();
  for (const KnownDevice& device : devices) {
    known_devices_[device.id] = device;
    given_up.erase(device.serial);
  }
  for (const std::string& serial : given_up) record_.forget(serial);
  stale_ = true;
}

// Adopted regions that are there: publish() has found their records.
Status PmemBackend::claim(const StoreClaim& claim) {
  const MutexLock lock(mutex_);
  std::vector<std::pair<std::string, DaxRange>> regions;
  for (const auto& [id, device] : known_devices_)
    if (const auto bytes = region_bytes_.find(device.serial); bytes != region_bytes_.end())
      regions.emplace_back(device.serial, DaxRange{0, bytes->second});
  for (const auto& [serial, range] : regions) TERRACE_RETURN_IF_ERROR(record_.may_claim(serial, range, claim));
  if (claim.check_only) return {};
  for (const auto& [serial, range] : regions) TERRACE_RETURN_IF_ERROR(record_.claim(serial, claim));
  claim_ = claim;
  return {};
}

Status PmemBackend::may_claim(const Device& device) const {
  const MutexLock lock(mutex_);
  if (!claim_.has_value()) return {};
  return record_.may_claim(device.made.serial, {device.region.start, device.region.bytes}, *claim_);
}

void PmemBackend::claim_tracked(const std::string& serial) {
  const MutexLock lock(mutex_);
  if (claim_.has_value() && record_.may_claim(serial, {}, *claim_).ok()) (void)record_.claim(serial, *claim_);
}

void PmemBackend::know_objects(const std::vector<KnownObject>& objects) {
  const MutexLock lock(mutex_);
  known_objects_.clear();
  for (const KnownObject& object : objects) known_objects_[object.name] = object;
  stale_ = true;
}

// --- devices ----------------------------------------------------------------------------------------------

std::string PmemBackend::contents(const Device& device, bool users_too) const {
  size_t foreign = 0;
  std::string users;
  for (const PmemNamespace& space : device.region.namespaces) {
    if (is_known(space.label, device.made.serial)) continue;
    ++foreign;
    if (!users_too || !users.empty()) continue;
    if (const auto user = kernel_.users(space); user.ok() && !user->empty())
      users = ", " + (space.device.empty() ? space.block : space.device) + " in use: " + *user;
  }
  return foreign == 0 ? std::string()
                      : count(foreign, "namespace") + " of somebody else's, and all data in them" + users;
}

SeenDevice PmemBackend::describe(const Device& device, bool users) const {
  SeenDevice seen;
  seen.serial = device.made.serial;
  seen.backend = std::string(kind());
  seen.granule_bytes = pmem_granule_bytes(device.region.bytes);
  seen.capacity_bytes = pmem_capacity_bytes(device.region.bytes, device.region.ways);
  const size_t ways = device.made.memdevs.size();
  seen.detail = "persistent region of " + format_size(device.region.bytes) + " over " + count(ways, "memdev") +
                (ways > 1 ? " by " + std::to_string(device.made.granularity) + " bytes" : "") + "; " +
                format_size(seen.capacity_bytes) + " can be leased, as each lease takes " +
                format_size(pmem_namespace_bytes(seen.granule_bytes, pmem_unit_bytes(device.region.ways)) -
                            seen.granule_bytes) +
                " more for metadata" + pages_.in_words(seen.serial);
  if (!is_adopted(seen.serial)) seen.contents = contents(device, users);
  return seen;
}

// mutex_ is held.
void PmemBackend::add_problems(std::vector<SeenDevice>& seen) const {
  for (const RegionProblem& problem : problems_) {
    const auto here = std::find_if(seen.begin(), seen.end(),
                                   [&](const SeenDevice& one) { return one.serial == problem.serial; });
    if (here != seen.end()) {
      if (here->detail.find(problem.text) == std::string::npos) here->detail += "; " + problem.text;
    } else if (!problem.serial.empty()) {
      seen.push_back({problem.serial, std::string(kind()), 0, 0,
                      "on record, and cannot be made again now: " + problem.text});
    }
  }
}

// What could not be looked at now is as it was seen last. mutex_ is held.
void PmemBackend::keep_unseen(std::vector<SeenDevice>& seen, std::map<std::string, TierAttributes>& attributes,
                              std::map<std::string, Object>& objects) const {
  for (const SeenDevice& before : devices_) {
    const bool now = std::any_of(seen.begin(), seen.end(),
                                 [&](const SeenDevice& one) { return one.serial == before.serial; });
    if (now) continue;
    seen.push_back(before);
    if (const auto at = attributes_.find(before.serial); at != attributes_.end()) attributes.insert(*at);
    for (const auto& [name, object] : objects_)
      if (object.serial == before.serial) objects.emplace(name, object);
  }
}

// Users are looked for without any lock: that takes as long as there are processes.
std::vector<SeenDevice> PmemBackend::inspect() {
  std::vector<Device> devices;
  {
    const MutexLock lock(kernel_mutex_);
    auto looked = look();
    if (!looked.ok()) return discover();
    devices = *std::move(looked);
  }
  std::vector<SeenDevice> seen;
  for (const Device& device : devices) seen.push_back(describe(device, true));
  const MutexLock lock(mutex_);
  add_problems(seen);
  return seen;
}

Status PmemBackend::publish() {
  auto devices = look();
  if (!devices.ok()) return std::move(devices).error();
  std::vector<SeenDevice> seen;
  std::map<std::string, TierAttributes> attributes;
  std::map<std::string, uint64_t> bytes;
  for (const Device& device : *devices) {
    if (is_adopted(device.made.serial)) {
      record_.track(device.made.serial, {device.region.start, device.region.bytes});
      claim_tracked(device.made.serial);
    }
    seen.push_back(describe(device, false));
    TierAttributes& one = attributes[device.made.serial];
    one = firmware_attributes(device.region.node, device.region.name);
    one.persistent = true;
    one.isolation = Isolation::namespace_;
    one.fence = pages_.fence(device.made.serial);
    bytes[device.made.serial] = device.region.bytes;
  }
  std::map<std::string, Object> objects = objects_of(*devices);
  const MutexLock lock(mutex_);
  if (!unseen_.empty()) keep_unseen(seen, attributes, objects);
  add_problems(seen);
  for (auto& [name, object] : objects)
    if (preparing_.contains(name)) object.bytes = 0;
  devices_ = std::move(seen);
  attributes_ = std::move(attributes);
  region_bytes_ = std::move(bytes);
  objects_ = std::move(objects);
  return {};
}

// Without waiting for a driver to take what was made: the next look tries it.
void PmemBackend::restore() {
  std::vector<RegionProblem> problems = maker_.restore(
      [this](const CxlRegion& made) TERRACE_REQUIRES(kernel_mutex_) { return probe(made, false); });
  restored_ns_ = boot_ns();
  restore_due_ = false;
  const MutexLock lock(mutex_);
  problems_ = std::move(problems);
}

// Whoever changes something looks itself when it is done: this need not wait for it. Without a change the look
// before counts, once there were two that saw the same: one alone could have come too early, or too late.
Status PmemBackend::refresh() {
  constexpr unsigned looks_enough = 2;
  const std::unique_lock composing(composing_,
                                   std::try_to_lock);  // it protects no field, so nothing needs to follow it
  if (!kernel_mutex_.try_lock()) {
    return Error{.code = ErrorCode::busy,
                 .os_errno = EAGAIN,
                 .where = "PmemBackend::refresh",
                 .detail = "regions are being changed"};
  }
  const MutexLock lock(kernel_mutex_, std::adopt_lock);
  bool stale = false;
  {
    const MutexLock state(mutex_);
    stale = std::exchange(stale_, false);
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string fingerprint, kernel_.fingerprint());
  const uint64_t now = boot_ns();
  const bool changed = fingerprint != fingerprint_;
  if (changed || stale) looks_ = 0;
  if (looks_ >= looks_enough && now - looked_ns_ < options_.look_ns) return {};
  restore_due_ = restore_due_ || changed || restored_ns_ == 0 || now - restored_ns_ >= options_.look_ns;
  if (restore_due_ && composing.owns_lock()) restore();
  // From before the look: what changes meanwhile has another one taken.
  TERRACE_ASSIGN_OR_RETURN(fingerprint_, kernel_.fingerprint());
  looked_ns_ = boot_ns();
  looks_ = 0;
  TERRACE_RETURN_IF_ERROR(publish());  // what cannot be looked at is as it was seen last
  TERRACE_RETURN_IF_ERROR(learn_pins());
  TERRACE_RETURN_IF_ERROR(all_seen());
  looks_ = changed || stale ? 1 : looks_enough;
  return {};
}

std::vector<SeenDevice> PmemBackend::discover() {
  const MutexLock lock(mutex_);
  return devices_;
}

TierAttributes PmemBackend::attributes(const std::string& serial) const {
  const MutexLock lock(mutex_);
  const auto at = attributes_.find(serial);
  if (at == attributes_.end()) return {};
  return with_measured_speed(at->second, options_.measured, serial, region_bytes_.at(serial));
}

}  // namespace terrace::daemon
