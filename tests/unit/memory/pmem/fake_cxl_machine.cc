// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/memory/pmem/fake_cxl_machine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>

#include "core/base/units.h"

namespace terrace::test {

using namespace daemon;

namespace {

constexpr uint64_t first_address = uint64_t{0x150000000};
constexpr uint64_t page = 4096;
using Page = std::array<unsigned char, page>;

Error refused(int code, const std::string& detail) {
  return os_error(code, "CxlKernel", detail);
}

UniqueFd memory_file(uint64_t bytes) {
  UniqueFd fd(::memfd_create("media", MFD_CLOEXEC));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fd.reset();
  return fd;
}

// Holes stay holes, and zeros become some.
void copy_pages(int from, uint64_t from_offset, int to, uint64_t to_offset, uint64_t bytes) {
  static constexpr Page zeros{};
  for (uint64_t at = 0; at < bytes;) {
    const off_t data = ::lseek(from, static_cast<off_t>(from_offset + at), SEEK_DATA);
    const uint64_t next =
        data < 0 ? bytes : std::min(bytes, (static_cast<uint64_t>(data) - from_offset) / page * page);
    if (next > at)
      ::fallocate(to, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(to_offset + at),
                  static_cast<off_t>(next - at));
    at = next;
    if (at >= bytes) return;
    Page buffer{};
    if (::pread(from, buffer.data(), page, static_cast<off_t>(from_offset + at)) != static_cast<ssize_t>(page))
      return;
    if (buffer == zeros) {
      ::fallocate(to, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(to_offset + at), page);
    } else if (::pwrite(to, buffer.data(), page, static_cast<off_t>(to_offset + at)) !=
               static_cast<ssize_t>(page)) {
      return;
    }
    at += page;
  }
}

}  // namespace

template <typename Change>
Status FakeCxlMachine::step(Change change) {
  ++steps_;
  const StepFault fault = steps_ == fault_step_ ? fault_ : StepFault::none;
  if (fault == StepFault::dies_before) throw Died{};
  if (fault == StepFault::fails) return refused(EIO, "the kernel was told to fail");
  if (fault == StepFault::lies) return {};
  Status status = change();
  if (fault == StepFault::dies_after) throw Died{};
  if (fault == StepFault::fails_late && status.ok()) return refused(EIO, "the kernel was told to fail late");
  return status;
}

// --- what is kept -----------------------------------------------------------------------------------------

std::string FakeCxlMachine::key(const Region& region) const {
  std::string text = std::to_string(region.granularity);
  for (const std::string& memdev : region.memdevs) text += " " + memdev;
  return text + "@" + std::to_string(position(region));
}

uint64_t FakeCxlMachine::position(const Region& region) const {
  for (const Memdev& memdev : memdevs_)
    for (const Memdev::Taken& one : memdev.taken)
      if (!region.memdevs.empty() && memdev.serial == region.memdevs.front() && one.region == region.name)
        return one.begin;
  return 0;
}

void FakeCxlMachine::give_back(const std::string& region) {
  for (Memdev& memdev : memdevs_)
    std::erase_if(memdev.taken, [&](const Memdev::Taken& one) { return one.region == region; });
}

FakeCxlMachine::Media& FakeCxlMachine::media(const Region& region) {
  Media& found = media_[key(region)];
  if (!found.image.valid()) found.image = memory_file(region.bytes);
  return found;
}

FakeCxlMachine::Region* FakeCxlMachine::find_region(const std::string& name) {
  for (Region& region : regions_)
    if (region.name == name) return &region;
  return nullptr;
}

FakeCxlMachine::Region* FakeCxlMachine::region_at(uint64_t start) {
  for (Region& region : regions_)
    if (region.enabled && !region.ram && region.start == start) return &region;
  return nullptr;
}

FakeCxlMachine::Memdev* FakeCxlMachine::find_memdev(const std::string& serial) {
  for (Memdev& memdev : memdevs_)
    if (memdev.serial == serial && !unplugged_.contains(serial)) return &memdev;
  return nullptr;
}

FakeCxlMachine::Space* FakeCxlMachine::find_space(const std::string& uuid, Region** found) {
  for (Region& region : regions_) {
    if (!region.enabled) continue;
    for (Space& space : media(region).spaces) {
      if (space.uuid != uuid) continue;
      if (found != nullptr) *found = &region;
      return &space;
    }
  }
  return nullptr;
}

// Its metadata is in its first 2 MiB, and not zero.
Status FakeCxlMachine::start(Space& space, Media& kept) {
  if (space.enabled) return {};
  space.device = memory_file(space.bytes - pmem_align_bytes);
  copy_pages(kept.image.get(), space.offset + pmem_align_bytes, space.device.get(), 0,
             space.bytes - pmem_align_bytes);
  const Page metadata = [] {
    Page filled;
    filled.fill(0x4d);
    return filled;
  }();
  if (::pwrite(kept.image.get(), metadata.data(), page, static_cast<off_t>(space.offset + page)) < 0)
    return refused(EIO, "metadata");
  space.enabled = true;
  ++space.generation;
  return {};
}

void FakeCxlMachine::stop(Space& space, Media& kept) {
  if (!space.enabled) return;
  copy_pages(space.device.get(), 0, kept.image.get(), space.offset + pmem_align_bytes,
             space.bytes - pmem_align_bytes);
  space.device.reset();
  space.enabled = false;
}

void FakeCxlMachine::reboot() {
  for (Region& region : regions_)
    if (region.enabled && !region.ram)
      for (Space& space : media(region).spaces) stop(space, media(region));
  regions_.clear();
  next_region_ = 0;
  std::reverse(memdevs_.begin(), memdevs_.end());
  for (size_t i = 0; i < memdevs_.size(); ++i) {
    memdevs_[i].name = "mem" + std::to_string(i);
    memdevs_[i].taken.clear();
  }
}

void FakeCxlMachine::unplug(const std::string& serial) {
  unplugged_[serial] = true;
  for (Region& region : regions_)
    if (region.enabled && std::count(region.memdevs.begin(), region.memdevs.end(), serial) != 0)
      for (Space& space : media(region).spaces) stop(space, media(region));
  std::erase_if(regions_, [&](const Region& region) {
    const bool gone = std::count(region.memdevs.begin(), region.memdevs.end(), serial) != 0;
    if (gone) give_back(region.name);
    return gone;
  });
}

PmemNamespace FakeCxlMachine::describe(const Space& space, const Region& region) const {
  PmemNamespace seen;
  seen.name = "namespace1." + space.uuid.substr(space.uuid.size() - 2);
  seen.uuid = space.uuid;
  seen.label = space.label;
  seen.start = region.start + space.offset;
  seen.bytes = space.bytes;
  seen.mode = space.devdax ? "devdax" : "raw";
  seen.enabled = space.enabled;
  if (!space.enabled) return seen;
  seen.device = "/dev/dax1." + std::to_string(space.generation);
  seen.device_bytes = space.bytes - pmem_align_bytes;
  seen.device_start = seen.start + pmem_align_bytes;
  seen.device_align_bytes = pmem_align_bytes;
  return seen;
}

std::vector<PmemNamespace> FakeCxlMachine::namespaces() const {
  std::vector<PmemNamespace> all;
  for (const Region& region : regions_)
    if (region.enabled && media_.contains(key(region)))
      for (const Space& space : media_.at(key(region)).spaces) all.push_back(describe(space, region));
  return all;
}

std::string FakeCxlMachine::add_foreign(uint64_t bytes, const std::string& label) {
  const StepFault fault = std::exchange(fault_, StepFault::none);
  const auto uuid = pmem_->allocate(regions_.front().start, bytes);
  if (uuid.ok()) {
    (void)pmem_->set_label(*uuid, label);
    (void)pmem_->make_device(*uuid);
  }
  fault_ = fault;
  return uuid.ok() ? *uuid : "";
}

void FakeCxlMachine::fill(uint64_t offset, uint64_t bytes, unsigned char value) {
  const std::vector<unsigned char> pattern(bytes, value);
  if (::pwrite(media(regions_.front()).image.get(), pattern.data(), bytes, static_cast<off_t>(offset)) < 0)
    return;
}

unsigned char FakeCxlMachine::byte_at(uint64_t offset) const {
  unsigned char value = 0;
  const Media& kept = media_.at(key(regions_.front()));
  return ::pread(kept.image.get(), &value, 1, static_cast<off_t>(offset)) == 1 ? value : 0xee;
}

// --- persistent memory ------------------------------------------------------------------------------------

std::vector<std::pair<uint64_t, uint64_t>> FakeCxlMachine::gaps(const Region& region) {
  std::vector<std::pair<uint64_t, uint64_t>> taken, free;
  for (const Space& space : media(region).spaces) taken.emplace_back(space.offset, space.offset + space.bytes);
  std::sort(taken.begin(), taken.end());
  uint64_t at = 0;
  for (const auto& [begin, end] : taken) {
    if (begin > at) free.emplace_back(at, begin);
    at = end;
  }
  if (at < region.bytes) free.emplace_back(at, region.bytes);
  return free;
}

class FakePmemKernel final : public PmemKernel {
 public:
  explicit FakePmemKernel(FakeCxlMachine& machine) : machine_(machine) {}

  Result<std::string> fingerprint() override {
    if (machine_.blind) return refused(EMFILE, "/sys");
    std::string all;
    for (const auto& region : machine_.regions_) all += region.name + (region.enabled ? "+" : "-");
    for (const auto& memdev : machine_.memdevs_)
      if (!machine_.unplugged_.contains(memdev.serial)) all += memdev.name;
    if (machine_.pmem_driver) all += " nd";
    return all + std::to_string(machine_.steps_);
  }

  Result<std::vector<PmemRegion>> regions() override {
    std::vector<PmemRegion> seen;
    if (machine_.blind) return refused(EMFILE, "/sys");
    for (auto& region : machine_.regions_) {
      if (!region.enabled || region.ram || !machine_.pmem_driver) continue;
      if (&region == &machine_.regions_.back() && machine_.driver_looks > 0 && machine_.driver_looks-- > 0)
        continue;
      PmemRegion one;
      one.name = region.name;
      one.start = region.start;
      one.bytes = region.bytes;
      one.unit_bytes = region.unit;
      one.ways = region.ways;
      for (const auto& [begin, end] : machine_.gaps(region)) {
        one.free_bytes += end - begin;
        one.largest_free_bytes = std::max(one.largest_free_bytes, end - begin);
      }
      for (const auto& space : machine_.media(region).spaces)
        one.namespaces.push_back(machine_.describe(space, region));
      seen.push_back(one);
    }
    return seen;
  }

  Status set_unit(uint64_t start, uint64_t bytes) override {
    auto* region = machine_.region_at(start);
    if (region == nullptr) return refused(ENXIO, "no region");
    if (region->unit == bytes) return {};
    if (machine_.unit_fixed) return refused(EINVAL, "the unit is fixed");
    region->unit = bytes;
    return {};
  }

  Result<std::string> allocate(uint64_t start, uint64_t bytes) override {
    auto* region = machine_.region_at(start);
    if (region == nullptr) return refused(ENXIO, "no region");
    char uuid[40];
    std::snprintf(uuid, sizeof uuid, "00000000-0000-4000-8000-%012u", ++machine_.next_uuid_);
    const Status status = machine_.step([&]() -> Status {
      if (bytes % region->unit != 0) return refused(EINVAL, "no multiple of the unit");
      for (const auto& [begin, end] : machine_.gaps(*region)) {
        if (end - begin < bytes) continue;
        FakeCxlMachine::Space space;
        space.uuid = uuid;
        space.offset = begin;
        space.bytes = bytes;
        machine_.media(*region).spaces.push_back(std::move(space));
        return {};
      }
      return refused(ENOSPC, "no room");
    });
    if (!status.ok()) return status.error();
    return std::string(uuid);
  }

  Status set_label(const std::string& uuid, const std::string& label) override {
    return machine_.step([&]() -> Status {
      auto* space = machine_.find_space(uuid);
      if (space == nullptr) return refused(ENXIO, "no namespace");
      if (space->enabled) return refused(EBUSY, "enabled");
      space->label = label;
      return {};
    });
  }

  Status make_device(const std::string& uuid) override {
    return machine_.step([&]() -> Status {
      FakeCxlMachine::Region* region = nullptr;
      auto* space = machine_.find_space(uuid, &region);
      if (space == nullptr) return refused(ENXIO, "no namespace");
      if (space->bytes < pmem_namespace_bytes_min) return refused(ENXIO, "too small");
      space->devdax = true;
      return machine_.start(*space, machine_.media(*region));
    });
  }

  Status enable(const std::string& uuid) override {
    return machine_.step([&]() -> Status {
      FakeCxlMachine::Region* region = nullptr;
      auto* space = machine_.find_space(uuid, &region);
      if (space == nullptr) return refused(ENXIO, "no namespace");
      if (!space->devdax) return refused(ENXIO, "nothing to enable");
      return machine_.start(*space, machine_.media(*region));
    });
  }

  // As the real one it looks at what came of it.
  Status disable(const std::string& uuid) override {
    FakeCxlMachine::Region* region = nullptr;
    auto* space = machine_.find_space(uuid, &region);
    if (space == nullptr) return refused(ENXIO, "no namespace");
    const Status status = machine_.step([&]() -> Status {
      machine_.stop(*space, machine_.media(*region));
      return {};
    });
    if (!space->enabled) return {};
    return status.ok() ? Status(refused(EIO, "enabled still")) : status;
  }

  Status shrink(const std::string& uuid, uint64_t bytes) override {
    return machine_.step([&]() -> Status {
      FakeCxlMachine::Region* region = nullptr;
      auto* space = machine_.find_space(uuid, &region);
      if (space == nullptr || space->enabled) return refused(EBUSY, "enabled");
      if (bytes % region->unit != 0 || bytes > space->bytes) return refused(EINVAL, "impossible size");
      space->bytes = bytes;
      return {};
    });
  }

  Status remove(const std::string& uuid) override {
    FakeCxlMachine::Region* region = nullptr;
    const auto* space = machine_.find_space(uuid, &region);
    if (space == nullptr) return {};
    if (space->enabled) return refused(EBUSY, "enabled");
    const Status status = machine_.step([&]() -> Status {
      std::erase_if(machine_.media(*region).spaces, [&](const auto& one) { return one.uuid == uuid; });
      return {};
    });
    if (machine_.find_space(uuid) == nullptr) return {};
    return status.ok() ? Status(refused(EIO, "there still")) : status;
  }

  Status disable_region(uint64_t) override { return {}; }

  // All of a volatile region is one device at first; its bytes are made up here.
  Result<PmemNamespace> enable_volatile(uint64_t start) override {
    for (const auto& region : machine_.regions_) {
      if (!region.enabled || !region.ram || region.start != start) continue;
      PmemNamespace one;
      one.name = one.uuid = "dax0.0";
      one.device_bytes = region.bytes;
      volatile_ = memory_file(region.bytes);
      one.device = "/proc/self/fd/" + std::to_string(volatile_.get());
      return one;
    }
    return Error{.code = ErrorCode::not_found, .where = "PmemKernel", .detail = "no dax device"};
  }
  Status disable_volatile(uint64_t) override {
    volatile_.reset();
    return {};
  }

  Result<UniqueFd> open(const PmemNamespace& one, int flags) override {
    if (volatile_.valid() && one.name == "dax0.0") {
      if (machine_.silent_zeros && (flags & O_ACCMODE) == O_RDONLY) return memory_file(one.device_bytes);
      return UniqueFd(::open(one.device.c_str(), flags | O_CLOEXEC));
    }
    const auto* space = machine_.find_space(one.uuid);
    if (space == nullptr || !space->enabled || one.device != "/dev/dax1." + std::to_string(space->generation)) {
      return Error{.code = ErrorCode::not_found, .where = "PmemKernel", .detail = "no device"};
    }
    if (machine_.silent_zeros && (flags & O_ACCMODE) == O_RDONLY) return memory_file(space->bytes);
    const std::string path = "/proc/self/fd/" + std::to_string(space->device.get());
    UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC));
    if (!fd.valid()) return os_error(errno, "PmemKernel", path);
    return fd;
  }
  Result<std::string> users(const PmemNamespace&) override {
    ++machine_.user_looks;
    if (machine_.blind) return refused(EMFILE, "/proc");
    return machine_.user;
  }
  Result<std::string> volatile_users(uint64_t start, uint64_t bytes) override {
    for (const auto& region : machine_.regions_)
      if (region.ram && region.start >= start && region.start < start + bytes && !machine_.user.empty())
        return "dax0.0: " + machine_.user;
    return std::string();
  }

 private:
  FakeCxlMachine& machine_;
  UniqueFd volatile_;
};

// --- CXL --------------------------------------------------------------------------------------------------

Status FakeCxlMachine::check_position(const Region& region, unsigned position,
                                      const std::string& serial) const {
  for (const Window& window : windows_) {
    if (window.name != region.window) continue;
    const auto& bridge = window.bridges[position % window.bridges.size()];
    if (std::count(bridge.begin(), bridge.end(), serial) == 0)
      return refused(ENXIO, "that position is another's");
    if (!one_region_per_bridge) return {};
    for (const Memdev& other : memdevs_)
      if (std::count(bridge.begin(), bridge.end(), other.serial) != 0 &&
          std::any_of(other.taken.begin(), other.taken.end(),
                      [&](const Memdev::Taken& one) { return one.region != region.name; }))
        return refused(ENXIO, "the host bridge has no decoder left");
  }
  return {};
}

class FakeCxlKernel final : public CxlKernel {
 public:
  explicit FakeCxlKernel(FakeCxlMachine& machine) : machine_(machine) {}

  Result<CxlView> look() override {
    CxlView view;
    if (machine_.blind) return refused(EMFILE, "/sys");
    for (const auto& memdev : machine_.memdevs_) {
      if (machine_.unplugged_.contains(memdev.serial)) continue;
      CxlMemdev one;
      one.serial = memdev.serial;
      one.name = memdev.name;
      (memdev.ram ? one.ram_bytes : one.pmem_bytes) = machine_.memdev_bytes_;
      (memdev.ram ? one.ram_free_bytes : one.pmem_free_bytes) = machine_.memdev_bytes_ - memdev.taken_bytes();
      one.free_decoders = machine_.decoders - static_cast<unsigned>(memdev.taken.size());
      view.memdevs.push_back(one);
    }
    for (const auto& window : machine_.windows_) {
      CxlRoot root{window.name, true, true, 4 * gib, 256, {}};
      for (const auto& bridge : window.bridges) {
        root.targets.emplace_back();
        for (const std::string& serial : bridge)
          if (!machine_.unplugged_.contains(serial)) root.targets.back().push_back(serial);
      }
      view.roots.push_back(root);
    }
    for (const auto& region : machine_.regions_) {
      if (region.committed && machine_.half_blind) view.unseen = region.name;
      if (region.committed && machine_.half_blind) continue;
      view.regions.push_back({region.name, region.window, region.ram, region.uuid, region.start, region.bytes,
                              region.granularity, region.ways, region.committed, region.enabled, region.memdevs,
                              machine_.position(region)});
    }
    return view;
  }

  Result<std::string> create(const std::string& root, bool ram) override {
    const std::string name = "region" + std::to_string(machine_.next_region_);
    const Status status = machine_.step([&]() -> Status {
      FakeCxlMachine::Region region;
      region.name = name;
      region.window = root;
      region.ram = ram;
      region.start = first_address;  // the lowest one that is free
      const auto taken = [&](const FakeCxlMachine::Region& one) { return one.start == region.start; };
      while (std::any_of(machine_.regions_.begin(), machine_.regions_.end(), taken)) region.start += 4 * gib;
      ++machine_.next_region_;
      machine_.regions_.push_back(region);
      return {};
    });
    if (!status.ok()) return status.error();
    return name;
  }

  Status shape(const std::string& name, const RegionShape& shape) override {
    return machine_.step([&]() -> Status {
      auto* region = machine_.find_region(name);
      if (region == nullptr) return refused(ENXIO, "no region");
      if (shape.granularity > machine_.granularity_max) return refused(EINVAL, "granularity");
      region->uuid = shape.uuid;
      region->ways = shape.ways;
      region->granularity = shape.granularity;
      region->bytes = shape.bytes;
      region->memdevs.assign(shape.ways, "");
      return {};
    });
  }

  Status attach(const std::string& name, unsigned position, const std::string& serial,
                uint64_t bytes) override {
    return machine_.step([&]() -> Status {
      auto* region = machine_.find_region(name);
      auto* memdev = machine_.find_memdev(serial);
      if (region == nullptr || memdev == nullptr || position >= region->ways)
        return refused(ENXIO, "not there");
      if (memdev->taken.size() >= machine_.decoders) return refused(EBUSY, "no free decoder");
      if (Status status = machine_.check_position(*region, position, serial); !status.ok()) return status;
      // Behind what is taken, as the kernel does.
      const uint64_t begin =
          memdev->taken.empty() ? 0 : memdev->taken.back().begin + memdev->taken.back().bytes;
      if (begin + bytes > machine_.memdev_bytes_) return refused(ENOSPC, "no room");
      memdev->taken.push_back({name, begin, bytes});
      region->memdevs[position] = serial;
      return {};
    });
  }

  Status commit(const std::string& name) override {
    return machine_.step([&]() -> Status {
      auto* region = machine_.find_region(name);
      if (region == nullptr || region->memdevs.empty() ||
          std::count(region->memdevs.begin(), region->memdevs.end(), "") != 0)
        return refused(ENXIO, "incomplete");
      region->committed = true;
      return {};
    });
  }

  // Namespaces that were made devices come up by themselves, from their labels.
  Status enable(const std::string& name) override {
    return machine_.step([&]() -> Status {
      auto* region = machine_.find_region(name);
      if (region == nullptr || !region->committed) return refused(ENXIO, "not committed");
      region->enabled = true;
      if (region->ram) return {};
      for (auto& space : machine_.media(*region).spaces)
        if (space.devdax) TERRACE_RETURN_IF_ERROR(machine_.start(space, machine_.media(*region)));
      return {};
    });
  }

  Status remove(const std::string& name) override {
    if (machine_.find_region(name) == nullptr) return {};
    const Status status = machine_.step([&]() -> Status {
      auto* region = machine_.find_region(name);
      if (region->enabled && !region->ram)
        for (auto& space : machine_.media(*region).spaces) machine_.stop(space, machine_.media(*region));
      machine_.give_back(name);
      std::erase_if(machine_.regions_, [&](const auto& one) { return one.name == name; });
      return {};
    });
    if (machine_.find_region(name) == nullptr) return {};
    return status.ok() ? Status(refused(EIO, "there still")) : status;
  }

 private:
  FakeCxlMachine& machine_;
};

std::unique_ptr<PmemKernel> FakeCxlMachine::make_pmem() {
  return std::make_unique<FakePmemKernel>(*this);
}

std::unique_ptr<CxlKernel> FakeCxlMachine::make_cxl() {
  return std::make_unique<FakeCxlKernel>(*this);
}

}  // namespace terrace::test
