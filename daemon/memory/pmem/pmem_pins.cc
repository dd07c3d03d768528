// The pmem backend and pages that somebody holds beyond the fence (daemon/memory/pins): counted when a namespace's
// device goes. Where some are left the namespace is enabled again at once, as a new device that nobody was given: the
// pins end in its pages, and show there. All run with kernel_mutex_ held.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

#include "daemon/memory/pins/paused_holders.h"
#include "daemon/memory/pmem/pmem.h"

namespace terrace::daemon {
namespace {

DaxRange memory_of(const PmemNamespace& space) {
  return {space.start + space.bytes - space.device_bytes, space.device_bytes};
}

std::vector<PageRange> pages_of(const PmemNamespace& space) {
  const DaxRange memory = memory_of(space);
  return {{memory.start, memory.bytes}};
}

Error still_held(std::string detail) {
  return Error{.code = ErrorCode::busy, .where = "PmemBackend::reclaim", .detail = std::move(detail)};
}

}  // namespace

// nullopt: pins cannot be seen here.
std::optional<PageBlock> PmemBackend::block_of(const std::string& serial) {
  if (options_.pins == nullptr || !options_.pins->usable().ok()) return std::nullopt;
  const auto device = find_device(serial);
  if (!device.ok()) return std::nullopt;
  record_.track(serial, {device->region.start, device->region.bytes});
  const auto idle = record_.idle_count(serial);
  return idle.has_value() ? std::optional(PageBlock{pmem_align_bytes, *idle}) : std::nullopt;
}

// `space` is one that nobody was given.
void PmemBackend::learn_pins(const std::string& serial, const PmemNamespace& space) {
  if (options_.pins == nullptr || !options_.pins->usable().ok()) return;
  if (block_of(serial).has_value()) return;
  const auto fd = kernel_.open(space, O_RDWR);
  if (!fd.ok()) return;
  const DaxRange memory = memory_of(space);
  void* mapped = ::mmap(nullptr, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (mapped == MAP_FAILED) return;
  const auto block = options_.pins->learn({static_cast<std::byte*>(mapped), memory.bytes},
                                          {memory.start, memory.bytes}, pmem_align_bytes);
  ::munmap(mapped, memory.bytes);
  if (block.ok()) record_.set_idle_count(serial, block->idle);
}

// Disables the namespace.
Status PmemBackend::take_device(const std::string& serial, const PmemNamespace& space) {
  if (kept_of(serial, space).has_value()) return {};  // it has none but the manager's
  const auto block = space.device_bytes == 0 ? std::nullopt : block_of(serial);
  if (!block.has_value()) return kernel_.disable(space.uuid);
  const std::vector<DaxRange> memory{memory_of(space)};
  (void)record_.keep(serial, {memory, std::nullopt});
  // Holders are not known by number here: what they have under way is only waited for.
  const auto paused = settle(
      *options_.pins, pages_of(space), *block, [] { return std::vector<pid_t>(); }, "");
  Status disabled;
  const auto count =
      options_.pins->during(pages_of(space), *block, [&] { return disabled = kernel_.disable(space.uuid); });
  if (!disabled.ok() || (count.ok() && count->none())) {
    record_.let_go(serial, memory);
    return disabled;
  }
  if (!count.ok()) return {};  // kept: nobody knows what was left
  (void)record_.keep(serial, {memory, count->pins});
  if (!kernel_.enable(space.uuid).ok()) (void)record_.keep(serial, {memory, std::nullopt});
  return {};
}

std::optional<KeptMemory> PmemBackend::kept_of(const std::string& serial, const PmemNamespace& space) const {
  for (const KeptMemory& one : record_.kept(serial))
    for (const DaxRange& range : one.ranges)
      if (range.start < space.start + space.bytes && space.start < range.end()) return one;
  return std::nullopt;
}

Status PmemBackend::reclaim(const std::string& serial, const PmemNamespace& space) {
  const auto block = block_of(serial);
  const auto memory = kept_of(serial, space);
  if (!memory.has_value()) return {};
  if (!memory->pins.has_value() || !block.has_value() || space.device.empty()) {
    return still_held(
        "pages of this memory may still be held by who had it before, and nobody counted them to the end (the "
        "manager "
        "was killed, or its device was disabled from outside): it is kept until the machine is restarted");
  }
  TERRACE_ASSIGN_OR_RETURN(const PinCount ended, options_.pins->look(pages_of(space), *block));
  const int64_t left = *memory->pins + ended.pins;
  if (left != 0) {
    return still_held(
        std::to_string(left) + " of " + std::to_string(*memory->pins) +
        " pages of this memory that were pinned at its fence are still held, by its holder or whom it "
        "gave them to: kept until they are let go; end that process");
  }
  record_.let_go(serial, memory->ranges);
  return {};
}

Kept PmemBackend::kept(const std::string& name, const std::vector<Extent>& extents) {
  (void)extents;
  const std::lock_guard lock(kernel_mutex_);
  const auto object = find(name);
  if (!object.ok() || !object->has_value()) return Kept::no;
  const Object& found = **object;
  (void)block_of(found.serial);  // after a restart: its record is read
  if (!kept_of(found.serial, found.space).has_value()) return Kept::no;
  return reclaim(found.serial, found.space).ok() ? Kept::ended : Kept::yes;
}

}  // namespace terrace::daemon
