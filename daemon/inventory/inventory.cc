#include "daemon/inventory/inventory.h"

#include <cxl/libcxl.h>
#include <daxctl/libdaxctl.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "core/base/limits.h"
#include "core/base/units.h"

namespace terrace::inventory {
namespace {

namespace fs = std::filesystem;

struct CxlUnref {
  void operator()(cxl_ctx* context) const { cxl_unref(context); }
};
struct DaxctlUnref {
  void operator()(daxctl_ctx* context) const { daxctl_unref(context); }
};

// The libraries print to stderr unless told otherwise; what matters is in our notes.
void silent_cxl(cxl_ctx*, int, const char*, int, const char*, const char*, va_list) {}
void silent_daxctl(daxctl_ctx*, int, const char*, int, const char*, const char*, va_list) {}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string text_or_empty(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Memdev read_memdev(cxl_memdev* device) {
  Memdev memdev;
  memdev.name = text_or_empty(cxl_memdev_get_devname(device));
  memdev.host = text_or_empty(cxl_memdev_get_host(device));
  memdev.ram_bytes = cxl_memdev_get_ram_size(device);
  memdev.pmem_bytes = cxl_memdev_get_pmem_size(device);
  memdev.numa_node = cxl_memdev_get_numa_node(device);
  memdev.firmware = text_or_empty(cxl_memdev_get_firmware_verison(device));  // the library's own spelling
  memdev.enabled = cxl_memdev_is_enabled(device) != 0;
  const uint64_t serial = cxl_memdev_get_serial(device);
  char text[32];
  std::snprintf(text, sizeof(text), "0x%" PRIx64, serial);
  // A device without a serial cannot be told from another by it; its PCI function at least names the slot.
  memdev.serial = serial != 0 && serial != UINT64_MAX ? text : memdev.name + "@" + memdev.host;
  return memdev;
}

void read_memdevs(Inventory& inventory) {
  cxl_ctx* raw = nullptr;
  if (const int failed = cxl_new(&raw); failed != 0) {
    inventory.notes.push_back("libcxl cannot start (error " + std::to_string(-failed) + ")");
    return;
  }
  const std::unique_ptr<cxl_ctx, CxlUnref> context(raw);
  cxl_set_log_fn(context.get(), silent_cxl);
  cxl_memdev* device = nullptr;
  cxl_memdev_foreach(context.get(), device) inventory.memdevs.push_back(read_memdev(device));
}

DaxDevice read_dax_device(daxctl_region* region, daxctl_dev* device) {
  DaxDevice dax;
  dax.name = text_or_empty(daxctl_dev_get_devname(device));
  dax.size_bytes = daxctl_dev_get_size(device);
  dax.align_bytes = daxctl_dev_get_align(device);
  dax.region = daxctl_region_get_id(region);
  dax.target_node = daxctl_dev_get_target_node(device);
  const unsigned long long room = daxctl_region_get_available_size(region);
  dax.region_free_bytes = room == ~0ull ? 0 : room;  // a static region has no such attribute
  if (daxctl_memory* memory = daxctl_dev_get_memory(device); memory != nullptr) {
    dax.mode = DaxMode::system_ram;
    dax.online = daxctl_memory_is_online(memory) > 0;
  } else if (daxctl_dev_is_enabled(device) != 0) {
    dax.mode = DaxMode::devdax;
  }
  return dax;
}

void read_dax_devices(Inventory& inventory) {
  daxctl_ctx* raw = nullptr;
  if (const int failed = daxctl_new(&raw); failed != 0) {
    inventory.notes.push_back("libdaxctl cannot start (error " + std::to_string(-failed) + ")");
    return;
  }
  const std::unique_ptr<daxctl_ctx, DaxctlUnref> context(raw);
  daxctl_set_log_fn(context.get(), silent_daxctl);
  daxctl_region* region = nullptr;
  daxctl_region_foreach(context.get(), region) {
    daxctl_dev* device = nullptr;
    daxctl_dev_foreach(region, device) {
      // A region keeps one empty device as the seed of the next; it holds no memory.
      if (daxctl_dev_get_size(device) == 0) continue;
      inventory.dax_devices.push_back(read_dax_device(region, device));
    }
  }
}

std::string describe_memdev(const Memdev& memdev) {
  std::string text = memdev.name + " at " + (memdev.host.empty() ? "an unknown place" : memdev.host);
  if (memdev.pmem_bytes > 0) text += ", " + format_size(memdev.pmem_bytes) + " of it persistent";
  if (memdev.numa_node >= 0) text += ", node " + std::to_string(memdev.numa_node);
  if (!memdev.enabled)
    return text + "; no driver bound: load cxl_mem and enable it with 'cxl enable-memdev " + memdev.name + "'";
  return text + "; leased through the dax devices of its regions ('cxl create-region' makes one)";
}

SeenHardware describe_dax(const DaxDevice& dax) {
  SeenHardware seen{.serial = "dax:" + dax.name,
                    .backend = "devdax",
                    .capacity_bytes = dax.size_bytes,
                    .granule_bytes = dax.align_bytes};
  switch (dax.mode) {
    case DaxMode::system_ram:
      seen.detail = std::string("is in system-ram mode") + (dax.online ? " and in use by the kernel" : "") +
                    ", so it cannot be leased: 'daxctl reconfigure-device --mode=devdax" +
                    (dax.online ? " --force " : " ") + dax.name +
                    "', and stop udev or memhp_default_state from onlining it at boot";
      return seen;
    case DaxMode::disabled:
      seen.detail = "has no driver bound: 'daxctl enable-device " + dax.name + "'";
      return seen;
    case DaxMode::devdax: break;
  }
  if (dax.align_bytes < limits::granule_bytes) {
    seen.detail = "is aligned to " + format_size(dax.align_bytes) + "; leases need at least " +
                  format_size(limits::granule_bytes) + ": 'daxctl disable-device " + dax.name +
                  "', then 'daxctl reconfigure-device --mode=devdax --align=2M " + dax.name + "'";
    return seen;
  }
  if (dax.align_bytes > limits::granule_bytes_max || !is_power_of_two(dax.align_bytes)) {
    seen.detail =
        "reports an alignment of " + std::to_string(dax.align_bytes) + " bytes, which no kernel should";
    return seen;
  }
  seen.usable = true;
  seen.detail = "/dev/" + dax.name + ", devdax, aligned to " + format_size(dax.align_bytes);
  if (dax.target_node >= 0) seen.detail += ", node " + std::to_string(dax.target_node);
  if (dax.size_bytes % dax.align_bytes != 0) seen.detail += "; its last partial granule is unusable";
  return seen;
}

}  // namespace

const char* dax_mode_name(DaxMode mode) {
  switch (mode) {
    case DaxMode::devdax: return "devdax";
    case DaxMode::system_ram: return "system-ram";
    case DaxMode::disabled: return "disabled";
  }
  return "disabled";
}

std::vector<KernelModule> read_modules(const std::string& root, const std::string& kernel_release) {
  constexpr std::array names{"cxl_core", "cxl_acpi", "cxl_pci",    "cxl_port",
                             "cxl_mem",  "dax_cxl",  "device_dax", "kmem"};
  const std::string directory = root + "/lib/modules/" + kernel_release;
  // File names may use '-' where module names use '_'.
  std::string known = read_text(directory + "/modules.dep") + read_text(directory + "/modules.builtin");
  std::replace(known.begin(), known.end(), '-', '_');
  std::vector<KernelModule> modules;
  for (const char* name : names) {
    KernelModule module{.name = name};
    module.loaded = exists(root + "/sys/module/" + name);
    module.available = module.loaded || known.find("/" + module.name + ".ko") != std::string::npos;
    modules.push_back(module);
  }
  return modules;
}

std::vector<NumaNode> read_numa_nodes(const std::string& root) {
  std::vector<NumaNode> nodes;
  const std::string directory = root + "/sys/devices/system/node";
  std::error_code failed;
  for (fs::directory_iterator at(directory, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename();
    NumaNode node;
    if (std::sscanf(name.c_str(), "node%d", &node.id) != 1) continue;
    const std::string cpus = read_text(directory + "/" + name + "/cpulist");
    node.has_cpus = cpus.find_first_of("0123456789") != std::string::npos;
    std::istringstream lines(read_text(directory + "/" + name + "/meminfo"));
    for (std::string line; std::getline(lines, line);) {
      uint64_t kilobytes = 0;
      if (std::sscanf(line.c_str(), "Node %*d MemTotal: %" SCNu64, &kilobytes) == 1)
        node.total_bytes = kilobytes * kib;
      if (std::sscanf(line.c_str(), "Node %*d MemFree: %" SCNu64, &kilobytes) == 1)
        node.free_bytes = kilobytes * kib;
    }
    nodes.push_back(node);
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return nodes;
}

Inventory take_inventory() {
  Inventory inventory;
  inventory.cxl_bus = exists("/sys/bus/cxl");
  inventory.dax_bus = exists("/sys/bus/dax");
  if (inventory.cxl_bus) read_memdevs(inventory);
  if (inventory.dax_bus) read_dax_devices(inventory);
  utsname name{};
  uname(&name);
  inventory.modules = read_modules("", name.release);
  inventory.numa_nodes = read_numa_nodes("");
  return inventory;
}

std::vector<SeenHardware> describe_hardware(const Inventory& inventory) {
  std::vector<SeenHardware> seen;
  for (const Memdev& memdev : inventory.memdevs) {
    seen.push_back({.serial = memdev.serial,
                    .backend = "memdev",
                    .capacity_bytes = memdev.ram_bytes + memdev.pmem_bytes,
                    .detail = describe_memdev(memdev)});
  }
  for (const DaxDevice& dax : inventory.dax_devices) seen.push_back(describe_dax(dax));
  return seen;
}

}  // namespace terrace::inventory
