// The devdax backend and pages that somebody holds beyond the fence: counted when a device goes, and kept until they
// end. All run with kernel_mutex_ held.
#include <algorithm>

#include "daemon/memory/devdax/devdax.h"
#include "daemon/memory/pins/paused_holders.h"

namespace terrace::daemon {
namespace {

std::vector<PageRange> pages_of(const std::vector<DaxRange>& ranges) {
  std::vector<PageRange> pages;
  for (const DaxRange& range : ranges) pages.push_back({range.start, range.bytes});
  return pages;
}

std::string in_words(const std::vector<DaxHolder>& holders) {
  std::string text;
  for (const DaxHolder& holder : holders) {
    const std::string one = "process " + std::to_string(holder.pid) + " (" + holder.command + ")";
    if (text.find(one) == std::string::npos) text += (text.empty() ? "" : ", ") + one;
  }
  return text;
}

Error still_held(std::string detail) {
  return Error{.code = ErrorCode::busy, .where = "DevdaxBackend::reclaim", .detail = std::move(detail)};
}

}  // namespace

// nullopt: pins cannot be seen here.
std::optional<PageBlock> DevdaxBackend::block_of(const std::string& serial, const DaxDevice& device) {
  if (options_.pins == nullptr || device.align_bytes == 0 || !options_.pins->usable().ok()) return std::nullopt;
  const auto idle = record_.idle_count(serial);
  return idle.has_value() ? std::optional(PageBlock{device.align_bytes, *idle}) : std::nullopt;
}

// `device` is one that nobody was given.
void DevdaxBackend::learn_pins(const DaxRegion& region, const DaxDevice& device) {
  if (options_.pins == nullptr || device.ranges.empty() || device.align_bytes == 0) return;
  if (record_.idle_count(region.serial).has_value() || !options_.pins->usable().ok()) return;
  const auto memory = bus_.map(device);
  if (!memory.ok()) return;
  const DaxRange& first = device.ranges.front();
  const auto block = options_.pins->learn((*memory)->bytes().subspan(0, first.bytes),
                                          {first.start, first.bytes}, device.align_bytes);
  if (block.ok()) record_.set_idle_count(region.serial, block->idle);
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
  const std::vector<PageRange> pages = pages_of(device.ranges);
  std::string suspects;
  const auto find_holders = [&] {
    std::vector<pid_t> processes;
    const auto holders = bus_.holders({device});
    if (!holders.ok()) return processes;
    suspects = in_words(*holders);
    for (const DaxHolder& holder : *holders)
      if (std::find(processes.begin(), processes.end(), holder.pid) == processes.end())
        processes.push_back(holder.pid);
    return processes;
  };
  const std::string note = options_.record_directory.empty() ? "" : options_.record_directory + "/paused";
  const auto paused = settle(*options_.pins, pages, *block, find_holders, note);
  Status disabled;
  const auto count = options_.pins->during(pages, *block, [&] { return disabled = bus_.disable(device.name); });
  if (!disabled.ok()) {  // as it was, or gone as a whole
    record_.let_go(region.serial, device.ranges);
    return disabled.error();
  }
  if (!count.ok()) return std::optional<int64_t>();  // kept: nobody knows what was left
  if (count->none()) {
    record_.let_go(region.serial, device.ranges);
    return std::optional<int64_t>();
  }
  suspects_[device.ranges.front().start] = suspects;
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

Status DevdaxBackend::reclaim_one(const DaxRegion& region, const KeptMemory& memory) {
  TERRACE_ASSIGN_OR_RETURN(const DaxRegion now, look_at(region.serial));
  const auto keeper = std::find_if(now.devices.begin(), now.devices.end(), [&](const DaxDevice& device) {
    return is_kept(region.serial, device) && device.ranges == memory.ranges &&
           device.driver == DaxDriver::device_dax;
  });
  const auto block = keeper == now.devices.end() ? std::nullopt : block_of(region.serial, *keeper);
  if (!memory.pins.has_value() || !block.has_value()) {
    return still_held(
        "pages of this memory may still be held by who had it before, and nobody counted them to the end (the "
        "manager "
        "was killed, or its device was removed from outside): it is kept until the machine is restarted");
  }
  TERRACE_ASSIGN_OR_RETURN(const PinCount ended, options_.pins->look(pages_of(memory.ranges), *block));
  const int64_t left = *memory.pins + ended.pins;
  if (left != 0) {
    const auto who = suspects_.find(memory.ranges.front().start);
    const bool known = who != suspects_.end() && !who->second.empty();
    return still_held(std::to_string(left) + " of " + std::to_string(*memory.pins) +
                      " pages of this memory that were pinned at its fence are still held" +
                      (known ? ", by " + who->second + " or whom it gave them to" : "") +
                      ": kept until they are let go; end that process");
  }
  record_.let_go(region.serial, memory.ranges);
  suspects_.erase(memory.ranges.front().start);
  return dismantle(now, *keeper, Had::nobody);
}

Kept DevdaxBackend::kept(const std::string& name, const std::vector<Extent>& extents) {
  const auto place = locate(name, extents, "DevdaxBackend::kept");
  const auto region = place.ok() ? region_of(place->serial) : std::nullopt;
  if (!region.has_value()) return Kept::no;
  const std::vector<KeptMemory> all = record_.kept(place->serial);
  const bool any =
      std::any_of(all.begin(), all.end(), [&](const KeptMemory& one) { return one.overlaps(place->ranges); });
  if (!any) return Kept::no;
  const std::lock_guard lock(kernel_mutex_);
  return reclaim(*region, place->ranges).ok() ? Kept::ended : Kept::yes;
}

}  // namespace terrace::daemon
