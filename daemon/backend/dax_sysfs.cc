#include "daemon/backend/dax_sysfs.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "core/base/units.h"
#include "daemon/inventory/serials.h"

namespace terrace::daemon {
namespace {

namespace fs = std::filesystem;

constexpr const char* where = "DaxBus";

// The first line; empty when it cannot be read.
std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<uint64_t> read_number(const std::string& path) {
  const std::string line = read_line(path);
  if (line.empty()) return std::nullopt;
  char* end = nullptr;
  const uint64_t number = std::strtoull(line.c_str(), &end, 0);
  return end == line.c_str() ? std::nullopt : std::optional<uint64_t>(number);
}

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

bool can_open(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)).valid();
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

std::vector<DaxRange> read_ranges(const std::string& device) {
  std::vector<std::pair<uint64_t, DaxRange>> placed;
  for (int i = 0;; ++i) {
    const std::string mapping = device + "/mapping" + std::to_string(i);
    const auto start = read_number(mapping + "/start"), end = read_number(mapping + "/end");
    if (!start.has_value() || !end.has_value() || *end < *start) break;
    const uint64_t page_offset = read_number(mapping + "/page_offset").value_or(0);
    placed.emplace_back(page_offset, DaxRange{*start, *end - *start + 1});
  }
  std::sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<DaxRange> ranges;
  for (const auto& [offset, range] : placed) ranges.push_back(range);
  return ranges;
}

DaxDriver read_driver(const std::string& device) {
  const std::string driver = real_path(device + "/driver");
  if (driver.empty()) return DaxDriver::none;
  const std::string name = last_part(driver);
  if (name == "device_dax") return DaxDriver::device_dax;
  return name == "kmem" ? DaxDriver::kmem : DaxDriver::other;
}

// Of "/sys/bus/cxl/devices/region0": the memdevs in their order of interleaving.
std::vector<std::string> memdevs_of(const std::string& devices, const std::string& region) {
  std::vector<std::string> serials;
  const uint64_t ways = read_number(devices + region + "/interleave_ways").value_or(0);
  for (uint64_t i = 0; i < ways; ++i) {
    const std::string decoder = read_line(devices + region + "/target" + std::to_string(i));
    const std::string endpoint = real_path(devices + decoder + "/..");
    const std::string memdev = decoder.empty() ? "" : real_path(endpoint + "/uport");
    const auto serial = read_number(memdev + "/serial");
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
  const std::string path = device_path(name);
  DaxDevice device;
  device.name = name;
  if (::access((path + "/size").c_str(), F_OK) == 0 && !can_open(path + "/size"))
    return kernel_error(errno, "cannot read " + path + "/size");  // not absent: no descriptors, say
  const auto bytes = read_number(path + "/size");
  const std::string number = read_line(path + "/dev");
  unsigned major_number = 0, minor_number = 0;
  if (!bytes.has_value() || std::sscanf(number.c_str(), "%u:%u", &major_number, &minor_number) != 2)
    return kernel_error(ENOENT, "there is no dax device " + name);
  device.bytes = *bytes;
  device.align_bytes = read_number(path + "/align").value_or(0);
  device.number = makedev(major_number, minor_number);
  device.driver = read_driver(path);
  if (device.bytes > 0) device.ranges = read_ranges(path);
  return device;
}

// Where the region begins: its first device says so while it is empty. Else it is the range in the kernel's map
// of memory that is as long as the region and has its devices, or where the devices begin when they fill it.
uint64_t SysfsDaxBus::start_of(const DaxRegion& region, uint64_t available_bytes) const {
  uint64_t lowest = UINT64_MAX;
  for (const DaxDevice& device : region.devices) {
    if (device.bytes == 0) {
      if (const auto start = read_number(device_path(device.name) + "/resource")) return *start;
    }
    for (const DaxRange& range : device.ranges) lowest = std::min(lowest, range.start);
  }
  if (available_bytes == 0 && lowest != UINT64_MAX) return lowest;
  std::ifstream map(root_ + "/proc/iomem");
  for (std::string line; std::getline(map, line);) {
    uint64_t first = 0, last = 0;
    if (std::sscanf(line.c_str(), " %" SCNx64 "-%" SCNx64, &first, &last) != 2 || last < first) continue;
    if (last - first + 1 == region.bytes && lowest >= first && lowest <= last) return first;
  }
  return UINT64_MAX;
}

std::string SysfsDaxBus::serial_of(const DaxRegion& region) const {
  const std::string devices = root_ + "/sys/bus/cxl/devices/";
  for (size_t at = region.path.find("/region"); at != std::string::npos;
       at = region.path.find("/region", at + 1)) {
    const std::string name = region.path.substr(at + 1, region.path.find('/', at + 1) - at - 1);
    const std::vector<std::string> memdevs = memdevs_of(devices, name);
    if (memdevs.empty()) continue;
    const std::string first = read_line(devices + name + "/target0");
    const uint64_t position = read_number(devices + first + "/dpa_resource").value_or(UINT64_MAX);
    return inventory::region_serial(inventory::RegionKind::ram, memdevs, position == UINT64_MAX ? 0 : position);
  }
  return inventory::hmem_serial(region.start);
}

bool SysfsDaxBus::read_region(const std::string& path, DaxRegion& region) {
  const std::string attributes = path + "/dax_region/";
  std::error_code failed;
  if (!fs::exists(attributes + "create", failed)) return false;  // static: one device, of a pmem namespace
  const auto bytes = read_number(attributes + "size");
  const auto align = read_number(attributes + "align");
  if (!bytes.has_value() || !align.has_value()) return false;
  region.path = path;
  region.name = last_part(path);
  region.bytes = *bytes;
  region.align_bytes = *align;
  std::sort(region.devices.begin(), region.devices.end(), [](const DaxDevice& a, const DaxDevice& b) {
    return number_within_region(a.name) < number_within_region(b.name);
  });
  const std::string target = read_line(device_path(region.devices.front().name) + "/target_node");
  region.target_node = target.empty() ? -1 : std::atoi(target.c_str());
  region.start = start_of(region, read_number(attributes + "available_size").value_or(1));
  if (region.start == UINT64_MAX) return false;
  region.serial = serial_of(region);
  return true;
}

Result<std::vector<DaxRegion>> SysfsDaxBus::regions() {
  std::vector<DaxRegion> by_path;
  std::error_code failed;
  for (fs::directory_iterator at(root_ + "/sys/bus/dax/devices", failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string real = real_path(at->path().string());
    auto found = device(at->path().filename().string());
    if (!found.ok() && found.error().os_errno != ENOENT) return std::move(found).error();
    if (real.empty() || !found.ok()) continue;  // gone meanwhile
    const std::string path = real.substr(0, real.rfind('/'));
    auto region = std::find_if(by_path.begin(), by_path.end(),
                               [&path](const DaxRegion& one) { return one.path == path; });
    if (region == by_path.end()) {
      region = by_path.insert(by_path.end(), DaxRegion{});
      region->path = path;
    }
    region->devices.push_back(std::move(*found));
  }
  if (failed && failed.value() != ENOENT)
    return kernel_error(failed.value(), "cannot list /sys/bus/dax/devices");
  std::vector<DaxRegion> regions;
  for (DaxRegion& region : by_path)
    if (read_region(std::string(region.path), region)) regions.push_back(std::move(region));
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

std::vector<DaxHolder> SysfsDaxBus::holders(const std::vector<DaxDevice>& devices) {
  std::set<std::string> wanted;
  for (const DaxDevice& device : devices) wanted.insert("/dev/" + device.name);
  std::vector<DaxHolder> found;
  std::error_code failed;
  for (fs::directory_iterator at(root_ + "/proc", failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    pid_t pid = 0;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || *rest != '\0' || pid == ::getpid()) continue;
    const std::string process = at->path().string();
    std::set<std::string> held;
    std::ifstream maps(process + "/maps");
    for (std::string line; std::getline(maps, line);) {
      const size_t slash = line.find("/dev/dax");
      if (slash != std::string::npos && wanted.contains(line.substr(slash)))
        held.insert(line.substr(slash + 5));
    }
    std::error_code gone;
    for (fs::directory_iterator fd(process + "/fd", gone), last; !gone && fd != last; fd.increment(gone)) {
      std::error_code closed;
      const std::string target = fs::read_symlink(fd->path(), closed).string();
      if (wanted.contains(target)) held.insert(target.substr(5));
    }
    if (held.empty()) continue;
    std::string command = read_line(process + "/comm");
    for (char& c : command)
      if (c < ' ' || c > '~') c = '?';  // another user chose it
    for (const std::string& device : held) found.push_back({pid, command, device});
  }
  return found;
}

}  // namespace terrace::daemon
