// SPDX-License-Identifier: Apache-2.0
// Doctor: CXL and DAX devices, NUMA nodes, processor features, CUDA.
#include <cpuid.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "daemon/doctor/checks.h"

namespace terrace::doctor {
namespace {

// movdir64b: CPUID leaf 7, ECX bit 28 (Intel SDM volume 2).
bool has_movdir64b() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 28)) != 0;
}

// clwb: CPUID leaf 7, EBX bit 24.
bool has_clwb() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & (1u << 24)) != 0;
}

}  // namespace

Check check_cxl(const inventory::Inventory& inventory) {
  Check check{.name = "cxl"};
  if (!inventory.cxl_bus || inventory.memdevs.empty()) {
    check.state = CheckState::missing;
    check.found = inventory.cxl_bus ? "CXL bus without memory devices" : "no CXL bus";
    check.meaning = "no CXL memory here: the emulated pool stands in";
    check.fix = "on a machine with CXL devices: enable CXL in the firmware and load cxl_acpi, cxl_pci, cxl_mem";
    return check;
  }
  std::vector<std::string> parts;
  bool all_enabled = true;
  for (const inventory::Memdev& memdev : inventory.memdevs) {
    parts.push_back(memdev.serial + " (" + memdev.name + ", " +
                    format_size(memdev.ram_bytes + memdev.pmem_bytes) +
                    (memdev.enabled ? ")" : ", no driver)"));
    all_enabled = all_enabled && memdev.enabled;
  }
  check.found = comma_list(parts);
  check.meaning = "memory devices by serial; leases are taken from the dax devices of their regions";
  if (!all_enabled) {
    check.state = CheckState::limited;
    check.fix = "load cxl_mem, then 'cxl enable-memdev' for the devices without a driver";
  }
  return check;
}

Check check_cxl_modules(const inventory::Inventory& inventory) {
  Check check{.name = "cxl_modules"};
  constexpr std::array needed{"cxl_core", "cxl_acpi", "cxl_pci", "cxl_port", "cxl_mem", "device_dax"};
  std::vector<std::string> loaded, loadable, absent;
  bool enough = true;
  for (const inventory::KernelModule& module : inventory.modules) {
    (module.loaded ? loaded : module.available ? loadable : absent).push_back(module.name);
    if (!module.available && std::find(needed.begin(), needed.end(), module.name) != needed.end())
      enough = false;
  }
  check.found = "loaded: " + (loaded.empty() ? "none" : comma_list(loaded));
  if (!loadable.empty()) check.found += "; on disk: " + comma_list(loadable);
  if (!absent.empty()) check.found += "; absent: " + comma_list(absent);
  if (!enough) {
    check.state = CheckState::missing;
    check.meaning = "CXL or dax devices cannot be used with this kernel; the emulated pool can";
    check.fix =
        "install a kernel with CONFIG_CXL_BUS, CONFIG_CXL_REGION, CONFIG_DEV_DAX and CONFIG_DEV_DAX_CXL";
  } else if (absent.size() == 1 && absent.front() == "dax_cxl") {
    check.state = CheckState::limited;
    check.meaning = "volatile CXL regions bring no dax devices; persistent ones and soft-reserved memory do";
    check.fix = "kernel 6.3 or later with CONFIG_DEV_DAX_CXL, where the CXL memory is volatile";
  } else if (!absent.empty()) {
    check.state = CheckState::limited;
    check.meaning = "not every kind of CXL memory can be used with this kernel";
    check.fix = "install a kernel that has them, where such memory is there";
  } else if (!loadable.empty()) {
    check.state = CheckState::limited;
    check.meaning = "drivers are installed; udev loads them when a device appears";
    check.fix = "nothing to do without a device; with one: modprobe " + loadable.front();
  } else {
    check.meaning = "CXL and device-dax drivers are there";
  }
  return check;
}

Check check_dax(const inventory::Inventory& inventory) {
  Check check{.name = "dax"};
  if (inventory.dax_devices.empty() && inventory.dax_regions.empty()) {
    check.state = CheckState::missing;
    check.found = inventory.dax_bus ? "dax bus without devices" : "no dax bus";
    check.meaning = "nothing that the devdax backend could lease";
    check.fix =
        "compose CXL memory devices into a region; for a trial without any, 'memmap=1G%4G-1+0xefffffff' on the "
        "kernel's command line sets 1 GiB of RAM at 4 GiB aside as if it were one";
    return check;
  }
  std::vector<std::string> parts;
  for (const inventory::DaxDevice& dax : inventory.dax_devices) {
    parts.push_back(dax.name + " (" + inventory::dax_mode_name(dax.mode) + ", " + format_size(dax.bytes) +
                    ", aligned to " + format_size(dax.align_bytes) + ")");
  }
  for (const inventory::DaxRegion& region : inventory.dax_regions) {
    const bool cut = std::any_of(inventory.dax_devices.begin(), inventory.dax_devices.end(),
                                 [&region](const auto& dax) { return dax.region == region.name; });
    if (!cut) parts.push_back(region.name + " (" + format_size(region.bytes) + ", all of it free)");
  }
  check.found = comma_list(parts);
  check.meaning = "dax devices in devdax mode can be leased, each lease a device of its own";
  return check;
}

Check check_numa(const inventory::Inventory& inventory) {
  Check check{.name = "numa"};
  std::vector<std::string> parts;
  std::vector<std::string> memory_only;
  for (const inventory::NumaNode& node : inventory.numa_nodes) {
    parts.push_back("node " + std::to_string(node.id) + " (" + format_size(node.attributes.total_bytes) +
                    (node.attributes.has_cpus ? ")" : ", no processors)"));
    if (!node.attributes.has_cpus && node.attributes.total_bytes > 0)
      memory_only.push_back(std::to_string(node.id));
  }
  check.found = parts.empty() ? "not shown by this kernel" : comma_list(parts);
  if (memory_only.empty()) {
    check.state = CheckState::limited;
    check.meaning = "no memory-only node, so none is CXL memory in system-ram mode for the numa backend";
    check.fix = "nothing to do unless CXL memory is expected here";
  } else {
    check.meaning =
        "node " + comma_list(memory_only) + " has memory and no processors: CXL memory in system-ram mode";
  }
  return check;
}

Check check_processor() {
  Check check{.name = "processor"};
  struct Feature {
    bool there;
    const char* name;
    const char* without;
  };
  const Feature features[] = {
      {__builtin_cpu_supports("avx512f") != 0, "avx512",
       "copies between tiers use AVX2 or memcpy, up to 1.7x slower"},
      {has_movdir64b(), "movdir64b", "no 64-byte direct stores"},
      {has_clwb(), "clwb", "write-back to CXL also evicts the line"},
      {__builtin_cpu_supports("sse4.2") != 0, "sse4.2", "checksums by table, about 10x slower"}};
  std::vector<std::string> there;
  std::vector<std::string> costs;
  for (const Feature& feature : features) {
    if (feature.there)
      there.push_back(feature.name);
    else
      costs.push_back(std::string(feature.without) + " (no " + feature.name + ")");
  }
  check.found = there.empty() ? "none of avx512, movdir64b, clwb, sse4.2" : comma_list(there);
  check.meaning = costs.empty() ? "the fastest copy and checksum code is used" : comma_list(costs);
  if (!costs.empty()) {
    check.state = CheckState::limited;
    check.fix =
        "nothing to fix: the code that this processor has is chosen; a virtual machine may hide features (cpu "
        "host)";
  }
  return check;
}

Check check_cuda() {
  Check check{.name = "cuda"};
  check.state = CheckState::missing;
  check.meaning = "no HBM tier: an emulated device stands in where one is asked for";
  check.fix = "on a machine with an NVIDIA GPU: install its driver (libcuda.so.1)";
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    check.found = "libcuda.so.1 is not installed";
    return check;
  }
  using InitFunction = int (*)(unsigned);
  using CountFunction = int (*)(int*);
  const auto init = reinterpret_cast<InitFunction>(dlsym(library, "cuInit"));
  const auto count = reinterpret_cast<CountFunction>(dlsym(library, "cuDeviceGetCount"));
  const auto version = reinterpret_cast<CountFunction>(dlsym(library, "cuDriverGetVersion"));
  int devices = 0;
  int number = 0;
  const int failed = init == nullptr || count == nullptr || version == nullptr ? -1 : init(0);
  if (failed != 0 || count(&devices) != 0 || version(&number) != 0 || devices == 0) {
    check.found = "libcuda.so.1 is there, but " + (failed != 0 ? "cuInit fails (" + std::to_string(failed) + ")"
                                                               : std::string("it finds no device"));
    check.fix = "check the driver with nvidia-smi; in a container pass the GPU through";
  } else {
    check.state = CheckState::ok;
    check.found = std::to_string(devices) + (devices == 1 ? " GPU" : " GPUs") + ", driver for CUDA " +
                  std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
    check.meaning = "tensors can have replicas in HBM";
    check.fix.clear();
  }
  // Not closed: the driver does not support being unloaded after cuInit.
  return check;
}

}  // namespace terrace::doctor
