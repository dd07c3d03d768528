// SPDX-License-Identifier: Apache-2.0
// The pmem backend and pages that somebody holds beyond the fence: counted when a namespace's device goes, and kept
// until they end. What is shared with other kinds is ../devdax/kept_pages.h.
//
// The keeper of a namespace is the namespace itself, enabled again: the kernel gives its place to no other as long as
// it is there, and old mappings stay dead over a new device. What is kept is known by where it lies, for one boot.
// All but kept() run with kernel_mutex_ held.
#include <fcntl.h>

#include <algorithm>

#include "daemon/memory/pmem/dax_memory.h"
#include "daemon/memory/pmem/pmem.h"

namespace terrace::daemon {
namespace {

std::vector<DaxRange> pages_under(const PmemNamespace& space) {
  return {{space.device_start, space.device_bytes}};
}

// 0: it is no dax device now, or not one whose pages can be told from others'.
uint64_t block_bytes_of(const PmemNamespace& space) {
  constexpr uint64_t smallest = 4096;
  const uint64_t block = space.device_align_bytes;
  const bool within = space.device_start >= space.start && space.device_bytes <= space.bytes &&
                      space.device_start - space.start <= space.bytes - space.device_bytes;
  const bool whole = block >= smallest && is_power_of_two(block) && space.device_start % block == 0 &&
                     space.device_bytes % block == 0;
  return !space.device.empty() && within && whole ? block : 0;
}

}  // namespace

// --- learned ----------------------------------------------------------------------------------------------

// Where it is not known yet in this boot: leases of the boot before may be fenced before anything is granted.
Status PmemBackend::learn_pins() {
  std::set<std::string> serials;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, device] : known_devices_) serials.insert(device.serial);
  }
  std::erase_if(serials, [this](const std::string& serial) { return !pages_.to_learn(serial); });
  if (serials.empty()) return {};
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Device> devices, look());
  for (const Device& device : devices)
    if (serials.contains(device.made.serial)) learn_pins(device);
  return publish();
}

// In a namespace of its own in free capacity, which is removed again.
void PmemBackend::learn_pins(Device device) {
  const std::string& serial = device.made.serial;
  if (!pages_.to_learn(serial) || maker_.is_untried(serial)) return;
  const uint64_t unit = pmem_unit_bytes(device.region.ways);
  if (kernel_.set_unit(device.region.start, unit).ok()) device.region.unit_bytes = unit;
  const uint64_t bytes = pmem_namespace_bytes(pmem_namespace_bytes_min, device.region.unit_bytes);
  if (device.region.largest_free_bytes < bytes) {
    pages_.cannot_learn_yet(serial, "pinned pages are counted once " + format_size(bytes) +
                                        " of the region are free in one piece, to see there how");
    return;
  }
  const auto space = make_namespace(device, pmem_probe_label, bytes);
  if (!space.ok()) {
    pages_.cannot_learn_yet(serial, space.error().detail);
    return;
  }
  erased_[serial].remove({space->start, space->start + space->bytes});  // its metadata was written there
  const Status tried = learn_by(serial, *space);
  if (!tried.ok()) pages_.cannot_learn_yet(serial, tried.error().detail);
  (void)destroy_namespace(*space);
}

Status PmemBackend::learn_by(const std::string& serial, const PmemNamespace& space) {
  if (block_bytes_of(space) == 0) {
    return Error{.code = ErrorCode::unsupported,
                 .where = "PmemBackend",
                 .detail = "the kernel does not say where the pages of a namespace lie"};
  }
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd fd, kernel_.open(space, O_RDWR));
  TERRACE_ASSIGN_OR_RETURN(const DaxMapping memory, DaxMapping::map(fd.get(), 0, space.device_bytes, true));
  pages_.learn(serial, memory.bytes(), pages_under(space).front(), block_bytes_of(space),
               [&] { return kernel_.disable(space.uuid); });
  return {};
}

// --- kept -------------------------------------------------------------------------------------------------

// By the whole namespace: without a device nobody says where in it its pages were.
std::vector<KeptMemory> PmemBackend::kept_in(const std::string& serial, const PmemNamespace& space) const {
  std::vector<KeptMemory> kept = record_.kept(serial);
  std::erase_if(kept, [&](const KeptMemory& one) { return !one.overlaps({{space.start, space.bytes}}); });
  return kept;
}

// The keeper has no holder. But where a manager was killed while it fenced, the device may be its holder's still; one
// that the kernel made when the region came back looks the same, so that its pages say nothing of the pins.
Status PmemBackend::take_away(const std::string& serial, const PmemNamespace& space) {
  if (!space.enabled) return {};
  const std::vector<KeptMemory> kept = kept_in(serial, space);
  if (!kept.empty()) {
    const bool keeper =
        std::all_of(kept.begin(), kept.end(), [](const KeptMemory& one) { return one.pins.has_value(); });
    return keeper ? Status{} : kernel_.disable(space.uuid);
  }
  TERRACE_ASSIGN_OR_RETURN(const auto pins, pages_.take_away(serial, pages_under(space), block_bytes_of(space),
                                                             [&] { return kernel_.disable(space.uuid); }));
  if (pins.has_value()) keep_pages(serial, space, *pins);
  return {};
}

// Gives the kernel pages again in which the pins can end. Where it cannot be done the memory is kept for this boot.
void PmemBackend::keep_pages(const std::string& serial, const PmemNamespace& space, int64_t pins) {
  const std::vector<DaxRange> pages = pages_under(space);
  // Written before the device is there, so that a manager that is killed in between takes it for nothing else.
  (void)record_.keep(serial, {pages, pins});
  const Status enabled = kernel_.enable(space.uuid);
  const auto keeper = find_namespace(space.uuid);
  if (!enabled.ok() || !keeper.ok() || pages_under(*keeper) != pages)
    (void)record_.keep(serial, {pages, std::nullopt});
}

Status PmemBackend::look_at_kept(const std::string& serial, const PmemNamespace& space,
                                 const KeptMemory& memory) const {
  return pages_.look(serial, memory, pages_under(space) == memory.ranges ? block_bytes_of(space) : 0);
}

Status PmemBackend::reclaim(const std::string& serial, PmemNamespace& space) {
  const std::vector<KeptMemory> kept = kept_in(serial, space);
  if (kept.empty()) return {};
  TERRACE_ASSIGN_OR_RETURN(space, find_namespace(space.uuid));
  for (const KeptMemory& memory : kept) TERRACE_RETURN_IF_ERROR(look_at_kept(serial, space, memory));
  // That they have ended is known by the keeper's pages only: so it is on record before those go.
  for (const KeptMemory& memory : kept)
    if (memory.pins != 0) TERRACE_RETURN_IF_ERROR(record_.keep(serial, {memory.ranges, 0}));
  if (space.enabled) TERRACE_RETURN_IF_ERROR(kernel_.disable(space.uuid));
  for (const KeptMemory& memory : kept) record_.let_go(serial, memory.ranges);
  TERRACE_ASSIGN_OR_RETURN(space, find_namespace(space.uuid));
  return {};
}

Kept PmemBackend::kept(const std::string& name, const std::vector<Extent>& extents) {
  const auto serial = device_of(name, extents);
  const MutexLock lock(kernel_mutex_);
  if (!serial.ok() || !find_device(*serial).ok()) return Kept::yes;
  const auto object = find(name);
  if (!object.ok()) return Kept::yes;
  if (!object->has_value()) return Kept::no;
  const Object& found = **object;
  const std::vector<KeptMemory> kept = kept_in(found.serial, found.space);
  if (kept.empty()) return Kept::no;
  const bool ended =
      std::all_of(kept.begin(), kept.end(), [&](const KeptMemory& memory) TERRACE_REQUIRES(kernel_mutex_) {
        return look_at_kept(found.serial, found.space, memory).ok();
      });
  return ended ? Kept::ended : Kept::yes;
}

// --- of no lease ------------------------------------------------------------------------------------------

bool PmemBackend::remove_ended(const Device& device) {
  const std::string& serial = device.made.serial;
  bool removed = false;
  for (PmemNamespace space : device.region.namespaces) {
    if (is_known(space.label, serial) || kept_in(serial, space).empty()) continue;
    if (reclaim(serial, space).ok()) removed |= destroy_namespace(space).ok();
  }
  return removed;
}

// What somebody holds pages of stays, and its room with it, until remove_ended() or the next start.
Status PmemBackend::remove_foreign(const Device& device) {
  const std::string& serial = device.made.serial;
  for (PmemNamespace space : device.region.namespaces) {
    if (is_known(space.label, serial)) continue;
    TERRACE_RETURN_IF_ERROR(take_away(serial, space));
    const Status reclaimed = reclaim(serial, space);
    if (!reclaimed.ok() && reclaimed.error().code == ErrorCode::busy) continue;
    TERRACE_RETURN_IF_ERROR(reclaimed);
    TERRACE_RETURN_IF_ERROR(destroy_namespace(space));
  }
  return {};
}

Status PmemBackend::check_not_kept(const std::string& serial, const PmemNamespace& space) const {
  if (kept_in(serial, space).empty()) return {};
  return Error{.code = ErrorCode::busy,
               .where = "PmemBackend::carve",
               .detail = "the kernel would give " + format_size(space.bytes) + " of region " + serial +
                         " of which pages may still be held by who had them before, as a namespace that kept "
                         "them was removed from outside: they are kept until the machine is restarted"};
}

}  // namespace terrace::daemon
