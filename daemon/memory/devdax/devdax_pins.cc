// The devdax backend and pages that somebody holds beyond the fence: counted when a device goes, and kept until they
// end. All but pins_in_words(), fence_of() and kept() run with kernel_mutex_ held.
#include <algorithm>

#include "daemon/memory/devdax/devdax.h"

namespace terrace::daemon {
namespace {

std::vector<PageRange> pages_of(const std::vector<DaxRange>& ranges) {
  std::vector<PageRange> pages;
  for (const DaxRange& range : ranges) pages.push_back({range.start, range.bytes});
  return pages;
}

Error still_held(std::string detail) {
  return Error{.code = ErrorCode::busy, .where = "DevdaxBackend::reclaim", .detail = std::move(detail)};
}

}  // namespace

// For a device's detail: whether its tenants must trust each other, and why.
std::string DevdaxBackend::pins_in_words(const std::string& serial) const {
  if (options_.pins == nullptr) return {};
  const Status sight = options_.pins->usable();
  if (!sight.ok()) return "; for tenants who trust each other: " + sight.error().detail;
  if (record_.idle_count(serial).has_value())
    return "; pages pinned beyond a fence are counted, and kept until they end";
  const std::lock_guard lock(mutex_);
  const auto why = not_learned_.find(serial);
  return why == not_learned_.end() ? "" : "; for tenants who trust each other: " + why->second;
}

// Before the first lease of a boot nobody has pinned anything: what a block counts is learned then.
Fence DevdaxBackend::fence_of(const std::string& serial) const {
  if (options_.pins == nullptr || !options_.pins->usable().ok()) return Fence::trusting;
  const std::lock_guard lock(mutex_);
  return not_learned_.contains(serial) ? Fence::trusting : Fence::verified;
}

// nullopt: pins cannot be seen here.
std::optional<PageBlock> DevdaxBackend::block_of(const std::string& serial, const DaxDevice& device) {
  if (options_.pins == nullptr || device.align_bytes == 0 || !options_.pins->usable().ok()) return std::nullopt;
  const auto idle = record_.idle_count(serial);
  return idle.has_value() ? std::optional(PageBlock{device.align_bytes, *idle}) : std::nullopt;
}

// Once a boot, or once a process where it cannot be learned: by a device of the manager's own over the first block of `free`, which no lease has: what an idle block
// counts, and that the probe fires when a device goes.
void DevdaxBackend::learn_pins(const DaxRegion& region, DaxRange free) {
  if (options_.pins == nullptr || region.align_bytes == 0 || free.bytes < region.align_bytes) return;
  if (record_.idle_count(region.serial).has_value() || !options_.pins->usable().ok()) return;
  {
    const std::lock_guard lock(mutex_);
    if (not_learned_.contains(region.serial)) return;
  }
  free.bytes = region.align_bytes;
  const auto device = make_own(region, {free});
  if (!device.ok()) return;
  Result<PageBlock> block =
      Error{.code = ErrorCode::unavailable, .where = "DevdaxBackend", .detail = "not mapped"};
  if (const auto memory = bus_.map(*device); memory.ok())
    block = options_.pins->learn((*memory)->bytes(), {free.start, free.bytes}, device->align_bytes);
  Status learned = block.ok() ? Status{} : block.error();
  if (block.ok()) {
    const auto left =
        options_.pins->during({{free.start, free.bytes}}, *block, [&] { return bus_.disable(device->name); });
    if (left.ok()) record_.set_idle_count(region.serial, block->idle);
    if (!left.ok()) learned = left.error();
  }
  (void)dismantle_own(region, *device);
  const std::lock_guard lock(mutex_);
  if (!learned.ok()) not_learned_[region.serial] = learned.error().detail;
}

// Disables the device. Returns the pins that were left; nullopt where there were none, or none could be seen.
Result<std::optional<int64_t>> DevdaxBackend::take_mappings(const DaxRegion& region, const DaxDevice& device) {
  const auto block = block_of(region.serial, device);
  if (!block.has_value()) {
    TERRACE_RETURN_IF_ERROR(bus_.disable(device.name));
    return std::optional<int64_t>();
  }
  // A manager that is killed in between does not know what was left: then it is kept. Where that cannot be written
  // down the fence goes on: it cannot wait.
  (void)record_.keep(region.serial, {device.ranges, std::nullopt});
  Status disabled;
  const auto count = options_.pins->during(pages_of(device.ranges), *block,
                                           [&] { return disabled = bus_.disable(device.name); });
  if (!disabled.ok() || (count.ok() && count->none())) {  // as it was, gone as a whole, or nobody's
    record_.let_go(region.serial, device.ranges);
    if (!disabled.ok()) return disabled.error();
    return std::optional<int64_t>();
  }
  if (!count.ok() || count->pins <= 0) return std::optional<int64_t>();  // kept: nobody knows what was left
  return std::optional(count->pins);
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

// Errors    busy   somebody holds pages of it, or nobody knows
Status DevdaxBackend::look_at_kept(const KeptMemory& memory, const std::optional<DaxDevice>& keeper,
                                   const std::string& serial) {
  if (memory.pins == 0) return {};
  const bool there = keeper.has_value() && keeper->driver == DaxDriver::device_dax;
  const auto block = there ? block_of(serial, *keeper) : std::nullopt;
  if (!memory.pins.has_value() || !block.has_value()) {
    return still_held(
        "pages of this memory may still be held by who had it before, and nobody counted them to the end (the "
        "manager was killed, or its device was removed from outside): it is kept until the machine is "
        "restarted");
  }
  TERRACE_ASSIGN_OR_RETURN(const PinCount ended, options_.pins->look(pages_of(memory.ranges), *block));
  const int64_t left = *memory.pins + ended.pins;
  if (left == 0) return {};
  return still_held(
      std::to_string(left) + " of " + std::to_string(*memory.pins) +
      " pages of this memory that were pinned at its fence are still held by the process that had it, or "
      "by whom it gave them to: kept until they are let go. `terrace fsck` names who has it; end that "
      "process");
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
  const std::lock_guard lock(kernel_mutex_);
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
