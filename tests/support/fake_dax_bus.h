// SPDX-License-Identifier: Apache-2.0
// A DaxBus that behaves as the kernel was measured to (daemon/memory/devdax/dax_bus.h lists it), over memory of this
// process: regions are memory files, so that bytes stay when devices come and go. Any step can be made to fail
// or to lose the daemon (a throw), and every step is counted.
//
// Threads   One.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/units.h"
#include "daemon/memory/devdax/dax_bus.h"

namespace terrace::test {

// What takes the place of SIGKILL between two steps.
struct FakeCrash {};

class FakeDaxBus final : public daemon::DaxBus {
 public:
  struct Step {
    std::string verb;
    std::string device;
    bool operator==(const Step&) const = default;
  };

  // A region as it is after boot: its first device has all of it and is enabled.
  void add_region(const std::string& serial, uint64_t start, uint64_t bytes, uint64_t align = 2 * mib) {
    Memory memory;
    memory.region.serial = serial;
    memory.region.path = "/fake/" + std::to_string(memories_.size());
    memory.region.name = "hmem." + std::to_string(memories_.size());
    memory.region.start = start;
    memory.region.bytes = bytes;
    memory.region.align_bytes = align;
    memory.number = static_cast<int>(memories_.size());
    memory.fd = UniqueFd(::memfd_create("dax", MFD_CLOEXEC));
    TERRACE_CHECK(::ftruncate(memory.fd.get(), static_cast<off_t>(bytes)) == 0, "memory for a fake region");
    daemon::DaxDevice first;
    first.name = "dax" + std::to_string(memory.number) + ".0";
    first.align_bytes = align;
    first.bytes = bytes;
    first.ranges = {{start, bytes}};
    first.driver = daemon::DaxDriver::device_dax;
    first.number = next_number_++;
    memory.region.devices.push_back(first);
    memories_.push_back(std::move(memory));
  }
  // The same region as another machine sees it, over the same bytes (or, `same` false, over bytes of its own).
  void add_region_of(const FakeDaxBus& other, bool same = true) {
    const Memory& theirs = other.memories_.front();
    add_region(theirs.region.serial, theirs.region.start, theirs.region.bytes, theirs.region.align_bytes);
    if (same) memories_.back().fd = UniqueFd(::fcntl(theirs.fd.get(), F_DUPFD_CLOEXEC, 0));
  }
  void remove_region(const std::string& serial) {
    std::erase_if(memories_, [&](const Memory& one) { return one.region.serial == serial; });
  }

  // The bytes of a region, whatever devices lie on them.
  std::vector<std::byte> read(uint64_t address, uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    Memory& memory = memory_at(address);
    TERRACE_CHECK(::pread(memory.fd.get(), out.data(), bytes,
                          static_cast<off_t>(address - memory.region.start)) == static_cast<ssize_t>(bytes),
                  "read of a fake region");
    return out;
  }
  void fill(uint64_t address, uint64_t bytes, int value) {
    Memory& memory = memory_at(address);
    const std::vector<char> content(bytes, static_cast<char>(value));
    TERRACE_CHECK(::pwrite(memory.fd.get(), content.data(), bytes,
                           static_cast<off_t>(address - memory.region.start)) == static_cast<ssize_t>(bytes),
                  "write of a fake region");
  }

  daemon::DaxDevice* find(const std::string& name) {
    for (Memory& memory : memories_)
      for (daemon::DaxDevice& device : memory.region.devices)
        if (device.name == name) return &device;
    return nullptr;
  }
  size_t devices(const std::string& serial) {
    for (Memory& memory : memories_)
      if (memory.region.serial == serial) return memory.region.devices.size();
    return 0;
  }

  // The n-th step from now (from 1) fails with this errno, or is done and then crashes (errno 0).
  void fail_step(int n, int code) {
    fail_in_ = n;
    fail_errno_ = code;
  }
  int steps() const { return static_cast<int>(done.size()); }

  std::vector<daemon::DaxHolder> held;
  int holder_looks = 0;  // at all processes
  bool blind = false;    // nothing can be looked at
  std::vector<Step> done;
  // Devices whose ranges were released while bound, or that were bound twice: what no kernel would allow, and a
  // fenced device that was bound again, which it would.
  std::vector<std::string> revived;

  Result<std::vector<daemon::DaxRegion>> regions() override {
    std::vector<daemon::DaxRegion> all;
    if (blind) return refuse(EMFILE, "/sys/bus/dax/devices");
    for (const Memory& memory : memories_) all.push_back(memory.region);
    return all;
  }
  Result<daemon::DaxDevice> device(const std::string& name) override {
    const daemon::DaxDevice* found = find(name);
    if (found == nullptr) return refuse(ENOENT, name);
    return *found;
  }
  Result<std::string> create(const daemon::DaxRegion& region) override {
    Memory* memory = memory_of(region.path);
    if (memory == nullptr) return refuse(ENOENT, region.path);
    uint64_t used = 0;
    for (const daemon::DaxDevice& one : memory->region.devices) used += one.bytes;
    if (used == memory->region.bytes) {
      Error error = refuse(ENOSPC, region.path);
      error.code = ErrorCode::capacity_exhausted;
      return error;
    }
    daemon::DaxDevice made;
    for (int id = 1; made.name.empty(); ++id) {
      const std::string name = "dax" + std::to_string(memory->number) + "." + std::to_string(id);
      if (find(name) == nullptr) made.name = name;
    }
    made.align_bytes = memory->region.align_bytes;
    made.number = next_number_++;
    const std::string name = made.name;
    if (Status status = step("create", name, [&] { memory->region.devices.push_back(made); }); !status.ok())
      return status.error();
    return name;
  }
  Status set_align(const std::string& name, uint64_t align_bytes) override {
    return change("align", name, [&](daemon::DaxDevice& one) { one.align_bytes = align_bytes; });
  }
  Status add_range(const std::string& name, daemon::DaxRange range) override {
    Memory& memory = memory_at(range.start);
    const daemon::DaxDevice* own = find(name);
    if (own == nullptr) return refuse(ENOENT, name);
    if (range.bytes % own->align_bytes != 0) return refuse(EINVAL, name);
    for (const daemon::DaxDevice& one : memory.region.devices)
      for (const daemon::DaxRange& taken : one.ranges)
        if (taken.overlaps(range)) return refuse(EBUSY, name);
    return change("range", name, [&](daemon::DaxDevice& one) {
      one.ranges.push_back(range);
      one.bytes += range.bytes;
    });
  }
  Status release_ranges(const std::string& name) override {
    return change("release", name, [](daemon::DaxDevice& one) {
      one.ranges.clear();
      one.bytes = 0;
    });
  }
  Status enable(const std::string& name) override {
    const daemon::DaxDevice* own = find(name);
    if (own == nullptr) return refuse(ENOENT, name);
    if (own->bytes == 0) return refuse(ENXIO, name);
    if (disabled_.contains(own->number)) revived.push_back(name);
    return change("enable", name, [](daemon::DaxDevice& one) { one.driver = daemon::DaxDriver::device_dax; });
  }
  Status disable(const std::string& name) override {
    daemon::DaxDevice* own = find(name);
    if (own == nullptr) return refuse(ENOENT, name);
    return step("disable", name, [&] {
      own->driver = daemon::DaxDriver::none;
      disabled_[own->number] = true;
    });
  }
  Status destroy(const daemon::DaxRegion& region, const std::string& name) override {
    Memory* memory = memory_of(region.path);
    const daemon::DaxDevice* own = find(name);
    if (memory == nullptr || own == nullptr) return refuse(ENOENT, name);
    if (own->is_first() || own->bytes > 0 || own->driver != daemon::DaxDriver::none) return refuse(EBUSY, name);
    return step("destroy", name, [&] {
      std::erase_if(memory->region.devices, [&](const daemon::DaxDevice& one) { return one.name == name; });
    });
  }
  Result<UniqueFd> open(const daemon::DaxDevice& device, bool writable) override {
    if (find(device.name) == nullptr) return refuse(ENOENT, device.name);
    const std::string path = "/proc/self/fd/" + std::to_string(memory_at(device.ranges.front().start).fd.get());
    return UniqueFd(::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  }
  Result<std::unique_ptr<daemon::DaxMemory>> map(const daemon::DaxDevice& device) override {
    const daemon::DaxDevice* own = find(device.name);
    if (own == nullptr || own->driver != daemon::DaxDriver::device_dax) return refuse(ENXIO, device.name);
    return std::unique_ptr<daemon::DaxMemory>(
        std::make_unique<Mapped>(*own, memory_at(own->ranges.front().start)));
  }
  Result<std::vector<daemon::DaxHolder>> holders(const std::vector<daemon::DaxDevice>& devices) override {
    ++holder_looks;
    if (blind) return refuse(EMFILE, "/proc");
    std::vector<daemon::DaxHolder> found;
    for (const daemon::DaxHolder& holder : held)
      for (const daemon::DaxDevice& device : devices)
        if (holder.device == device.name) found.push_back(holder);
    return found;
  }

 private:
  struct Memory {
    daemon::DaxRegion region;
    int number = 0;
    UniqueFd fd;
  };

  class Mapped final : public daemon::DaxMemory {
   public:
    Mapped(const daemon::DaxDevice& device, Memory& memory) : bytes_(device.bytes) {
      at_ = static_cast<std::byte*>(
          ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
      uint64_t offset = 0;
      for (const daemon::DaxRange& range : device.ranges) {
        void* part = ::mmap(at_ + offset, range.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                            memory.fd.get(), static_cast<off_t>(range.start - memory.region.start));
        TERRACE_CHECK(part != MAP_FAILED, "a fake device is mapped");
        offset += range.bytes;
      }
    }
    ~Mapped() override { ::munmap(at_, bytes_); }
    Mapped(const Mapped&) = delete;
    Mapped& operator=(const Mapped&) = delete;
    std::span<std::byte> bytes() const override { return {at_, bytes_}; }

   private:
    std::byte* at_;
    size_t bytes_;
  };

  static Error refuse(int code, const std::string& what) {
    Error error = os_error(code, "FakeDaxBus", what);
    if (code == EBUSY) error.code = ErrorCode::busy;
    if (code == ENOENT || code == ENXIO) error.code = ErrorCode::not_found;
    return error;
  }
  Memory* memory_of(const std::string& path) {
    for (Memory& memory : memories_)
      if (memory.region.path == path) return &memory;
    return nullptr;
  }
  Memory& memory_at(uint64_t address) {
    for (Memory& memory : memories_)
      if (address >= memory.region.start && address < memory.region.start + memory.region.bytes) return memory;
    TERRACE_CHECK(false, "an address outside of every fake region");
    return memories_.front();
  }

  template <typename Change>
  Status change(const char* verb, const std::string& name, Change apply) {
    daemon::DaxDevice* own = find(name);
    if (own == nullptr) return refuse(ENOENT, name);
    if (own->driver != daemon::DaxDriver::none) return refuse(EBUSY, name);
    return step(verb, name, [&] { apply(*own); });
  }
  template <typename Apply>
  Status step(const char* verb, const std::string& name, Apply apply) {
    const bool now = fail_in_ > 0 && --fail_in_ == 0;
    if (now && fail_errno_ != 0) return refuse(fail_errno_, name);
    apply();
    done.push_back({verb, name});
    if (now) throw FakeCrash{};
    return {};
  }

  std::vector<Memory> memories_;
  std::map<dev_t, bool> disabled_;
  dev_t next_number_ = 0xfc00;
  int fail_in_ = 0;
  int fail_errno_ = 0;
};

}  // namespace terrace::test
