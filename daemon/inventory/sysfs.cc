// SPDX-License-Identifier: Apache-2.0
#include "daemon/inventory/sysfs.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace terrace::inventory {
namespace {

namespace fs = std::filesystem;

// "mem10" after "mem9": the text before the last number, then the number.
std::pair<std::string, uint64_t> natural(const std::string& name) {
  const size_t at = name.find_last_not_of("0123456789");
  const size_t digits = at == std::string::npos ? 0 : at + 1;
  return {name.substr(0, digits), std::strtoull(name.c_str() + digits, nullptr, 10)};
}

bool natural_less(const std::string& a, const std::string& b) {
  return natural(a) < natural(b);
}

bool numbered(const std::string& name, const std::string& prefix) {
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
}

std::string leaf_of(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  std::istringstream text(path);
  for (std::string part; std::getline(text, part, '/');)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

bool is_pci_function(const std::string& name) {
  return name.size() == 12 && name[4] == ':' && name[7] == ':' && name[10] == '.';
}

std::string link_target(const std::string& path) {
  std::error_code failed;
  const fs::path target = fs::canonical(path, failed);
  return failed ? std::string() : target.string();
}

std::string cxl_device(const std::string& root, const std::string& name) {
  return root + "/sys/bus/cxl/devices/" + name;
}

// The serial of the memdev that an endpoint decoder ("decoder3.0") belongs to.
std::string serial_behind(const std::string& root, const std::string& decoder) {
  const std::string path = device_path(root, cxl_device(root, decoder));  // .../endpoint3/decoder3.0
  const std::vector<std::string> parts = parts_of(path);
  if (parts.size() < 2) return {};
  const std::string memdev = leaf_of(link_target(cxl_device(root, parts[parts.size() - 2]) + "/uport"));
  return memdev.empty() ? std::string() : read_memdev_serial(root, memdev);
}

// Where the memory of an endpoint decoder begins on its memdev. Persistent memory follows the volatile there.
uint64_t position_behind(const std::string& root, const std::string& decoder, RegionKind kind) {
  const std::string folder = cxl_device(root, decoder);
  const uint64_t begin = read_number(folder + "/dpa_resource", UINT64_MAX);
  if (begin == UINT64_MAX) return 0;
  const uint64_t partition = kind == RegionKind::pmem ? read_number(folder + "/../uport/ram/size") : 0;
  return begin - std::min(begin, partition);
}

Region read_region(const std::string& root, const std::string& name) {
  const std::string folder = cxl_device(root, name);
  Region region{.name = name};
  // Kernels before 6.3 have no `mode` and no volatile regions.
  region.kind = read_word(folder + "/mode") == "ram" ? RegionKind::ram : RegionKind::pmem;
  region.start = read_number(folder + "/resource");
  if (region.start == UINT64_MAX) region.start = 0;  // none yet
  region.bytes = read_number(folder + "/size");
  region.ways = static_cast<uint32_t>(read_number(folder + "/interleave_ways"));
  region.granularity = static_cast<uint32_t>(read_number(folder + "/interleave_granularity"));
  region.committed = read_number(folder + "/commit") == 1;
  region.enabled = exists(folder + "/driver");
  const std::vector<std::string> parts = parts_of(device_path(root, folder));
  if (parts.size() >= 2) region.decoder = parts[parts.size() - 2];
  for (uint32_t i = 0; i < region.ways; ++i) {
    const std::string target = read_word(folder + "/target" + std::to_string(i));
    const std::string serial = target.empty() ? std::string() : serial_behind(root, target);
    if (!serial.empty()) region.memdevs.push_back(serial);
    if (i == 0 && !target.empty()) region.position_bytes = position_behind(root, target, region.kind);
  }
  if (region.memdevs.size() != region.ways) region.memdevs.clear();  // half-made: it is no device yet
  region.speed = read_region_speed(root, name);
  return region;
}

struct IoRange {
  uint64_t start = 0, end = 0;
  std::string name;
};

std::vector<IoRange> read_iomem(const std::string& root) {
  std::vector<IoRange> ranges;
  std::istringstream lines(read_file(root + "/proc/iomem"));
  for (std::string line; std::getline(lines, line);) {
    IoRange range;
    const size_t name = line.find(" : ");
    if (name == std::string::npos) continue;
    if (std::sscanf(line.c_str(), " %" SCNx64 "-%" SCNx64, &range.start, &range.end) != 2) continue;
    range.name = line.substr(name + 3);
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string read_word(const std::string& path) {
  std::string text = read_file(path);
  text = text.substr(0, text.find('\n'));
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

uint64_t read_number(const std::string& path, uint64_t otherwise) {
  const std::string word = read_word(path);
  if (word.empty() || std::isdigit(static_cast<unsigned char>(word[0])) == 0) return otherwise;
  return std::strtoull(word.c_str(), nullptr, 0);
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed))
    names.push_back(at->path().filename());
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

std::string device_path(const std::string& root, const std::string& link) {
  const std::string target = link_target(link);
  const std::string prefix = link_target(root + "/sys");
  return !prefix.empty() && target.starts_with(prefix + "/") ? target.substr(prefix.size()) : std::string();
}

std::vector<Port> read_ports(const std::string& root) {
  std::vector<Port> ports;
  for (const std::string& name : list_directory(root + "/sys/bus/cxl/devices")) {
    if (!numbered(name, "port")) continue;
    Port port{.name = name, .host = leaf_of(link_target(cxl_device(root, name) + "/uport"))};
    const std::vector<std::string> parts = parts_of(device_path(root, cxl_device(root, name)));
    port.depth = static_cast<uint32_t>(std::count_if(
        parts.begin(), parts.end(), [](const std::string& part) { return numbered(part, "port"); }));
    for (const std::string& entry : list_directory(cxl_device(root, name)))
      if (numbered(entry, "dport")) ++port.downstream;
    ports.push_back(port);
  }
  return ports;
}

std::vector<Region> read_regions(const std::string& root) {
  std::vector<Region> regions;
  for (const std::string& name : list_directory(root + "/sys/bus/cxl/devices"))
    if (numbered(name, "region")) regions.push_back(read_region(root, name));
  return regions;
}

// access1 is as seen from the nearest CPUs, access0 from the nearest initiator of any kind; units as in a
// node's.
RegionSpeed read_region_speed(const std::string& root, const std::string& region) {
  for (const char* access : {"/access1", "/access0"}) {
    const std::string folder = cxl_device(root, region) + access;
    const uint64_t latency_ns = read_number(folder + "/read_latency");
    const uint64_t mib_per_s = read_number(folder + "/read_bandwidth");
    if (latency_ns == 0 && mib_per_s == 0) continue;
    return {.latency_ns = static_cast<uint32_t>(std::min<uint64_t>(latency_ns, UINT32_MAX)),
            .bandwidth_bytes_per_s = std::min(mib_per_s, UINT64_MAX / mib) * mib};
  }
  return {};
}

int read_qos_class(const std::string& root, const std::string& memdev, const std::string& partition) {
  const uint64_t number = read_number(cxl_device(root, memdev) + "/" + partition + "/qos_class", UINT64_MAX);
  return number > INT32_MAX ? -1 : static_cast<int>(number);
}

std::string read_memdev_serial(const std::string& root, const std::string& memdev) {
  const std::vector<std::string> parts = parts_of(device_path(root, cxl_device(root, memdev)));
  const std::string host = parts.size() < 2 ? std::string() : parts[parts.size() - 2];
  return memdev_serial(read_number(cxl_device(root, memdev) + "/serial"), memdev, host);
}

std::string read_memdev_model(const std::string& root, const std::string& memdev) {
  const std::string function = link_target(cxl_device(root, memdev) + "/..");
  const std::string vendor = read_word(function + "/vendor"), device = read_word(function + "/device");
  if (!vendor.starts_with("0x") || !device.starts_with("0x")) return {};
  return vendor.substr(2) + ":" + device.substr(2);
}

std::vector<std::string> read_memdev_path(const std::string& root, const std::string& memdev) {
  std::vector<std::string> path;
  for (const std::string& name : list_directory(root + "/sys/bus/cxl/devices")) {
    if (!numbered(name, "endpoint") || leaf_of(link_target(cxl_device(root, name) + "/uport")) != memdev)
      continue;
    std::string above;  // the platform device that the root belongs to
    for (const std::string& part : parts_of(device_path(root, cxl_device(root, name)))) {
      if (numbered(part, "root")) path.push_back(above.empty() ? part : above + " " + part);
      if (numbered(part, "port")) path.push_back(part);
      above = part;
    }
  }
  for (const std::string& part : parts_of(device_path(root, cxl_device(root, memdev))))
    if (is_pci_function(part)) path.push_back(part);
  return path;
}

std::vector<std::string> read_cxl_functions(const std::string& root) {
  std::vector<std::string> found;
  const std::string devices = root + "/sys/bus/pci/devices";
  for (const std::string& name : list_directory(devices))
    if (read_word(devices + "/" + name + "/class").starts_with("0x0502")) found.push_back(name);
  std::sort(found.begin(), found.end());
  return found;
}

// The kernel nests a range below what covers it: "hmem.0" is above or below "Soft Reserved" of the same
// addresses.
std::vector<SoftReserved> read_soft_reserved(const std::string& root) {
  const std::vector<IoRange> ranges = read_iomem(root);
  std::vector<SoftReserved> found;
  for (const IoRange& range : ranges) {
    if (range.name != "Soft Reserved" || range.end <= range.start) continue;
    const bool claimed = std::any_of(ranges.begin(), ranges.end(), [&range](const IoRange& other) {
      return (other.name.starts_with("hmem.") || other.name.starts_with("dax")) && other.start <= range.end &&
             other.end >= range.start;
    });
    found.push_back({range.start, range.end - range.start + 1, claimed});
  }
  return found;
}

uint64_t read_hmem_start(const std::string& root, const std::string& device) {
  for (const IoRange& range : read_iomem(root))
    if (range.name == device) return range.start;
  return 0;
}

std::vector<KernelModule> read_modules(const std::string& root, const std::string& kernel_release) {
  constexpr std::array names{"cxl_core", "cxl_acpi",   "cxl_pci",  "cxl_port", "cxl_mem", "cxl_pmem",
                             "dax_cxl",  "device_dax", "dax_hmem", "dax_pmem", "kmem"};
  const std::string directory = root + "/lib/modules/" + kernel_release;
  // File names may use '-' where module names use '_'.
  std::string known = read_file(directory + "/modules.dep");
  std::string builtin = read_file(directory + "/modules.builtin");
  std::replace(known.begin(), known.end(), '-', '_');
  std::replace(builtin.begin(), builtin.end(), '-', '_');
  std::vector<KernelModule> modules;
  for (const char* name : names) {
    KernelModule module{.name = name};
    const std::string file = "/" + module.name + ".ko";
    // One that is built in and has no parameters is not to be seen below /sys/module.
    module.loaded = exists(root + "/sys/module/" + name) || builtin.find(file) != std::string::npos;
    module.available = module.loaded || known.find(file) != std::string::npos;
    modules.push_back(module);
  }
  return modules;
}

std::map<std::string, std::vector<Holder>> read_dax_holders(const std::string& root, int skip_pid) {
  std::map<std::string, std::vector<Holder>> holders;
  const std::string proc = root + "/proc/";
  for (const std::string& entry : list_directory(proc)) {
    if (!numbered("p" + entry, "p") || entry == std::to_string(skip_pid)) continue;
    const auto hold = [&](const std::string& path) {
      if (!path.starts_with("/dev/dax")) return;
      std::vector<Holder>& all =
          holders[path.substr(5, path.find(' ') == std::string::npos ? path.npos : path.find(' ') - 5)];
      const Holder holder{std::atoi(entry.c_str()), read_word(proc + entry + "/comm")};
      if (all.empty() || all.back() != holder) all.push_back(holder);
    };
    std::error_code failed;
    for (const std::string& fd : list_directory(proc + entry + "/fd")) {
      const fs::path target = fs::read_symlink(proc + entry + "/fd/" + fd, failed);
      if (!failed) hold(target.string());
    }
    std::istringstream maps(read_file(proc + entry + "/maps"));
    for (std::string line; std::getline(maps, line);)
      if (const size_t at = line.find("/dev/dax"); at != std::string::npos) hold(line.substr(at));
  }
  return holders;
}

std::string dax_region_name(const std::string& path) {
  const std::vector<std::string> parts = parts_of(path);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part)
    if (numbered(*part, "region") || numbered(*part, "hmem.")) return *part;
  return parts.empty() ? std::string() : parts.back();
}

}  // namespace terrace::inventory
