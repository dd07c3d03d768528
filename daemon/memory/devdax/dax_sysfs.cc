// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/devdax/dax_sysfs.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include "core/base/sync/mutex.h"
#include "core/base/units.h"
#include "daemon/inventory/serials.h"
#include "daemon/memory/proc_files.h"

namespace terrace::daemon {
namespace {

namespace fs = std::filesystem;

constexpr const char* where = "DaxBus";

std::string real_path(const std::string& path) {
  std::error_code failed;
  const fs::path real = fs::canonical(path, failed);
  return failed ? std::string() : real.string();
}

std::string last_part(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

// "dax0.12" -> 12
uint64_t number_within_region(const std::string& name) {
  return std::strtoull(name.c_str() + name.rfind('.') + 1, nullptr, 10);
}

Error kernel_error(int code, const std::string& what) {
  Error error = os_error(code, where, what);
  if (code == EBUSY) error.code = ErrorCode::busy;
  if (code == ENOENT || code == ENODEV || code == ENXIO) error.code = ErrorCode::not_found;
  return error;
}

class MappedDevice final : public DaxMemory {
 public:
  MappedDevice(void* at, size_t bytes) : at_(static_cast<std::byte*>(at)), bytes_(bytes) {}
  ~MappedDevice() override { ::munmap(at_, bytes_); }
  MappedDevice(const MappedDevice&) = delete;
  MappedDevice& operator=(const MappedDevice&) = delete;
  std::span<std::byte> bytes() const override { return {at_, bytes_}; }

 private:
  std::byte* at_;
  size_t bytes_;
};

DaxDriver driver_of(const std::string& name) {
  if (name.empty()) return DaxDriver::none;
  if (name == "device_dax") return DaxDriver::device_dax;
  return name == "kmem" ? DaxDriver::kmem : DaxDriver::other;
}

DaxDriver read_driver(const std::string& device) {
  return driver_of(last_part(real_path(device + "/driver")));
}

}  // namespace

// Reads attributes, and remembers whether one could not be read although it may be there: then what was put
// together of them is not what the kernel has, and less must not pass for gone.
class SysfsDaxBus::Reader {
 public:
  // The first line; empty where there is none.
  std::string line(const std::string& path) {
    auto read = read_attribute_line(path);
    if (read.ok()) return *std::move(read);
    if (status_.ok()) status_ = read.error();
    return {};
  }
  std::optional<uint64_t> number(const std::string& path) {
    const std::string text = line(path);
    if (text.empty()) return std::nullopt;
    char* end = nullptr;
    const uint64_t number = std::strtoull(text.c_str(), &end, 0);
    return end == text.c_str() ? std::nullopt : std::optional<uint64_t>(number);
  }
  std::string content(const std::string& path) {
    auto read = read_content(path);
    if (read.ok()) return *std::move(read);
    if (status_.ok()) status_ = read.error();
    return {};
  }
  // Where a link leads; empty: no such link.
  std::string real_path(const std::string& path) {
    std::error_code failed;
    const fs::path real = fs::canonical(path, failed);
    if (!failed) return real.string();
    if (!gone_or_hidden(failed.value()) && status_.ok())
      status_ = os_error(failed.value(), where, "cannot follow " + path);
    return {};
  }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

namespace {

template <typename Reader>
std::vector<DaxRange> read_ranges(Reader& reader, const std::string& device) {
  std::vector<std::pair<uint64_t, DaxRange>> placed;
  for (int i = 0;; ++i) {
    const std::string mapping = device + "/mapping" + std::to_string(i);
    const auto start = reader.number(mapping + "/start"), end = reader.number(mapping + "/end");
    if (!start.has_value() || !end.has_value() || *end < *start) break;
    const uint64_t page_offset = reader.number(mapping + "/page_offset").value_or(0);
    placed.emplace_back(page_offset, DaxRange{*start, *end - *start + 1});
  }
  std::sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<DaxRange> ranges;
  for (const auto& [offset, range] : placed) ranges.push_back(range);
  return ranges;
}

// Of "/sys/bus/cxl/devices/region0": the memdevs in their order of interleaving.
template <typename Reader>
std::vector<std::string> memdevs_of(Reader& reader, const std::string& devices, const std::string& region) {
  std::vector<std::string> serials;
  const uint64_t ways = reader.number(devices + region + "/interleave_ways").value_or(0);
  for (uint64_t i = 0; i < ways; ++i) {
    const std::string decoder = reader.line(devices + region + "/target" + std::to_string(i));
    const std::string endpoint = reader.real_path(devices + decoder + "/..");
    const std::string memdev = decoder.empty() ? "" : reader.real_path(endpoint + "/uport");
    const auto serial = reader.number(memdev + "/serial");
    if (!serial.has_value()) return {};
    const std::string host = last_part(memdev.substr(0, memdev.rfind('/')));
    serials.push_back(inventory::memdev_serial(*serial, last_part(memdev), host));
  }
  return serials;
}

}  // namespace

bool SysfsDaxBus::present() const {
  std::error_code failed;
  return fs::is_directory(root_ + "/sys/bus/dax/devices", failed);
}

std::string SysfsDaxBus::device_path(const std::string& name) const {
  return root_ + "/sys/bus/dax/devices/" + name;
}

Status SysfsDaxBus::write(const std::string& path, const std::string& text, const std::string& what) const {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid()) return kernel_error(errno, "cannot " + what);
  if (::write(file.get(), text.data(), text.size()) < 0) return kernel_error(errno, "cannot " + what);
  return {};
}

// --- looking --------------------------------------------------------------------------------------------

Result<DaxDevice> SysfsDaxBus::device(const std::string& name) {
  const ReaderLock lock(mappings_);
  Reader reader;
  return read_device(reader, name);
}

Result<DaxDevice> SysfsDaxBus::read_device(Reader& reader, const std::string& name) const {
  const std::string path = device_path(name);
  DaxDevice device;
  device.name = name;
  const auto bytes = reader.number(path + "/size");
  const std::string number = reader.line(path + "/dev");
  unsigned major_number = 0, minor_number = 0;
  const bool here =
      bytes.has_value() && std::sscanf(number.c_str(), "%u:%u", &major_number, &minor_number) == 2;
  if (here) {
    device.bytes = *bytes;
    device.align_bytes = reader.number(path + "/align").value_or(0);
    device.number = makedev(major_number, minor_number);
    device.driver = driver_of(last_part(reader.real_path(path + "/driver")));
    if (device.bytes > 0) device.ranges = read_ranges(reader, path);
  }
  if (!reader.status().ok()) return reader.status().error();
  if (!here) return kernel_error(ENOENT, "there is no dax device " + name);
  return device;
}

// Where the region begins: its first device says so while it is empty. Else it is the range in the kernel's map
// of memory that is as long as the region and has its devices, or where the devices begin when they fill it.
uint64_t SysfsDaxBus::start_of(Reader& reader, const DaxRegion& region, uint64_t available_bytes) const {
  uint64_t lowest = UINT64_MAX;
  for (const DaxDevice& device : region.devices) {
    if (device.bytes == 0) {
      if (const auto start = reader.number(device_path(device.name) + "/resource")) return *start;
    }
    for (const DaxRange& range : device.ranges) lowest = std::min(lowest, range.start);
  }
  if (available_bytes == 0 && lowest != UINT64_MAX) return lowest;
  std::istringstream map(reader.content(root_ + "/proc/iomem"));
  for (std::string line; std::getline(map, line);) {
    uint64_t first = 0, last = 0;
    if (std::sscanf(line.c_str(), " %" SCNx64 "-%" SCNx64, &first, &last) != 2 || last < first) continue;
    if (last - first + 1 == region.bytes && lowest >= first && lowest <= last) return first;
  }
  return UINT64_MAX;
}

std::string SysfsDaxBus::serial_of(Reader& reader, const DaxRegion& region) const {
  const std::string devices = root_ + "/sys/bus/cxl/devices/";
  for (size_t at = region.path.find("/region"); at != std::string::npos;
       at = region.path.find("/region", at + 1)) {
    const std::string name = region.path.substr(at + 1, region.path.find('/', at + 1) - at - 1);
    const std::vector<std::string> memdevs = memdevs_of(reader, devices, name);
    if (memdevs.empty()) continue;
    const std::string first = reader.line(devices + name + "/target0");
    const uint64_t position = reader.number(devices + first + "/dpa_resource").value_or(UINT64_MAX);
    return inventory::region_serial(inventory::RegionKind::ram, memdevs, position == UINT64_MAX ? 0 : position);
  }
  return inventory::hmem_serial(region.start);
}

bool SysfsDaxBus::read_region(Reader& reader, const std::string& path, DaxRegion& region) const {
  const std::string attributes = path + "/dax_region/";
  std::error_code failed;
  if (!fs::exists(attributes + "create", failed)) return false;  // static: one device, of a pmem namespace
  const auto bytes = reader.number(attributes + "size");
  const auto align = reader.number(attributes + "align");
  if (!bytes.has_value() || !align.has_value()) return false;
  region.path = path;
  region.name = last_part(path);
  region.bytes = *bytes;
  region.align_bytes = *align;
  std::sort(region.devices.begin(), region.devices.end(), [](const DaxDevice& a, const DaxDevice& b) {
    return number_within_region(a.name) < number_within_region(b.name);
  });
  const std::string target = reader.line(device_path(region.devices.front().name) + "/target_node");
  region.target_node = target.empty() ? -1 : std::atoi(target.c_str());
  region.start = start_of(reader, region, reader.number(attributes + "available_size").value_or(1));
  if (region.start == UINT64_MAX) return false;
  region.serial = serial_of(reader, region);
  return true;
}

Result<std::vector<DaxRegion>> SysfsDaxBus::regions() {
  const ReaderLock lock(mappings_);
  Reader reader;
  std::vector<DaxRegion> by_path;
  const std::string devices = root_ + "/sys/bus/dax/devices";
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, read_names(devices));
  for (const std::string& name : names) {
    const std::string real = reader.real_path(device_path(name));
    auto found = read_device(reader, name);
    if (!found.ok() && found.error().os_errno != ENOENT) return std::move(found).error();
    if (real.empty() || !found.ok()) continue;  // gone meanwhile
    const std::string path = real.substr(0, real.rfind('/'));
    auto region = std::find_if(by_path.begin(), by_path.end(),
                               [&path](const DaxRegion& one) { return one.path == path; });
    if (region == by_path.end()) {
      region = by_path.insert(by_path.end(), DaxRegion{});
      region->path = path;
    }
    region->devices.push_back(*std::move(found));
  }
  std::vector<DaxRegion> regions;
  for (DaxRegion& region : by_path)
    if (read_region(reader, std::string(region.path), region)) regions.push_back(std::move(region));
  if (!reader.status().ok()) return reader.status().error();
  return regions;
}

// --- changing -------------------------------------------------------------------------------------------

Result<std::string> SysfsDaxBus::create(const DaxRegion& region) {
  const auto names = [&] {
    std::set<std::string> found;
    std::error_code failed;
    for (fs::directory_iterator at(region.path, failed), end; !failed && at != end; at.increment(failed)) {
      const std::string name = at->path().filename().string();
      if (name.starts_with("dax") && name.find('.') != std::string::npos) found.insert(name);
    }
    return found;
  };
  const std::set<std::string> before = names();
  const Status made =
      write(region.path + "/dax_region/create", "1", "make a dax device in region " + region.name);
  if (!made.ok()) {
    Error error = made.error();
    if (error.os_errno == ENOSPC) error.code = ErrorCode::capacity_exhausted;
    return error;
  }
  for (const std::string& name : names())
    if (!before.contains(name)) return name;
  return kernel_error(ENOENT, "the dax device just made in region " + region.name + " is not there");
}

Status SysfsDaxBus::set_align(const std::string& name, uint64_t align_bytes) {
  return write(device_path(name) + "/align", std::to_string(align_bytes),
               "align " + name + " to " + format_size(align_bytes));
}

Status SysfsDaxBus::add_range(const std::string& name, DaxRange range) {
  char text[64];
  std::snprintf(text, sizeof text, "0x%" PRIx64 "-0x%" PRIx64, range.start, range.end() - 1);
  Status added = write(device_path(name) + "/mapping", text, "give " + name + " the memory at " + text);
  if (added.ok() || added.error().os_errno != ENOMEM) return added;
  Error taken = added.error();  // by another device: not a want of memory that passes
  taken.code = ErrorCode::busy;
  taken.os_errno = EBUSY;
  taken.detail += ": another device has it";
  return taken;
}

Status SysfsDaxBus::release_ranges(const std::string& name) {
  const WriterLock lock(mappings_);
  return write(device_path(name) + "/size", "0", "take the memory of " + name);
}

Status SysfsDaxBus::enable(const std::string& name) {
  const std::string driver = root_ + "/sys/bus/dax/drivers/device_dax/";
  std::error_code failed;
  if (!fs::exists(driver, failed)) {
    return Error{.code = ErrorCode::unsupported,
                 .where = where,
                 .detail = "the driver of dax devices is not loaded: modprobe device_dax"};
  }
  const Status bound = write(driver + "bind", name, "enable " + name);
  if (read_driver(device_path(name)) == DaxDriver::device_dax) return {};
  // A kernel that keeps such regions for kmem (6.10 and later) must be told of this device by name.
  if (!bound.ok() && bound.error().os_errno == ENODEV) {
    TERRACE_RETURN_IF_ERROR(write(driver + "new_id", name, "enable " + name));
    if (read_driver(device_path(name)) != DaxDriver::device_dax) (void)write(driver + "bind", name, "");
    (void)write(driver + "remove_id", name, "");
  }
  if (read_driver(device_path(name)) == DaxDriver::device_dax) return {};
  return bound.ok() ? kernel_error(EIO, "the driver did not take " + name) : bound;
}

Status SysfsDaxBus::disable(const std::string& name) {
  const std::string driver = real_path(device_path(name) + "/driver");
  if (driver.empty()) return {};
  const Status unbound = write(driver + "/unbind", name, "disable " + name);
  if (read_driver(device_path(name)) == DaxDriver::none) return {};
  return unbound.ok() ? kernel_error(EBUSY, name + " is still bound to " + last_part(driver)) : unbound;
}

Status SysfsDaxBus::destroy(const DaxRegion& region, const std::string& name) {
  return write(region.path + "/dax_region/delete", name, "destroy " + name);
}

// --- memory ---------------------------------------------------------------------------------------------

Result<UniqueFd> SysfsDaxBus::open(const DaxDevice& device, bool writable) {
  const std::string path = root_ + "/dev/" + device.name;
  UniqueFd fd(::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return kernel_error(errno, "cannot open " + path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return kernel_error(errno, "cannot look at " + path);
  if (!S_ISCHR(status.st_mode) || status.st_rdev != device.number) {
    return Error{.code = ErrorCode::corrupt,
                 .where = where,
                 .detail = path + " is not the device that the kernel calls " + device.name +
                           ": /dev is not kept by the kernel (mount a devtmpfs there)"};
  }
  return fd;
}

Result<std::unique_ptr<DaxMemory>> SysfsDaxBus::map(const DaxDevice& device) {
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd fd, open(device, true));
  void* at = ::mmap(nullptr, device.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return kernel_error(errno, "cannot map " + device.name);
  return std::unique_ptr<DaxMemory>(std::make_unique<MappedDevice>(at, device.bytes));
}

Result<std::vector<DaxHolder>> SysfsDaxBus::holders(const std::vector<DaxDevice>& devices) {
  std::vector<std::string> paths;
  for (const DaxDevice& device : devices) paths.push_back("/dev/" + device.name);
  TERRACE_ASSIGN_OR_RETURN(std::vector<DeviceUser> users, find_device_users(paths, root_));
  std::vector<DaxHolder> found;
  for (DeviceUser& user : users) found.push_back({user.pid, std::move(user.command), user.device.substr(5)});
  return found;
}

}  // namespace terrace::daemon
