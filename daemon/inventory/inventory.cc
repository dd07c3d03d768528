// SPDX-License-Identifier: Apache-2.0
#include "daemon/inventory/inventory.h"

#include <sys/utsname.h>
#include <unistd.h>

#include "daemon/inventory/library_view.h"
#include "daemon/inventory/sysfs.h"

namespace terrace::inventory {
namespace {

void add_holders(Inventory& inventory) {
  if (inventory.dax_devices.empty()) return;
  const auto holders = read_dax_holders("", getpid());
  for (DaxDevice& device : inventory.dax_devices) {
    const auto found = holders.find(device.name);
    if (found == holders.end()) continue;
    device.holders = found->second;
    for (const Holder& holder : device.holders)
      device.holder +=
          (device.holder.empty() ? "" : ", ") + holder.command + "[" + std::to_string(holder.pid) + "]";
  }
  if (!inventory.privileged)
    inventory.notes.push_back(
        "only root sees who else has a dax device open, and at which address memory lies");
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

const char* region_kind_name(RegionKind kind) {
  return kind == RegionKind::pmem ? "pmem" : "ram";
}

Inventory take_inventory(const InventoryOptions& options) {
  Inventory inventory;
  inventory.cxl_bus = exists("/sys/bus/cxl");
  inventory.dax_bus = exists("/sys/bus/dax");
  inventory.privileged = geteuid() == 0;
  utsname name{};
  uname(&name);
  inventory.kernel_release = name.release;
  inventory.auto_online_blocks = read_word("/sys/devices/system/memory/auto_online_blocks");
  inventory.modules = read_modules("", name.release);
  inventory.cxl_pci = read_cxl_functions("");
  if (inventory.privileged) inventory.soft_reserved = read_soft_reserved("");
  for (const int node : os::online_nodes()) inventory.numa_nodes.push_back({node, os::node_attributes(node)});
  if (inventory.cxl_bus) {
    read_cxl(inventory, options.health);
    inventory.ports = read_ports("");
    inventory.regions = read_regions("");
  }
  if (inventory.dax_bus) read_dax(inventory);
  if (exists("/sys/bus/nd")) read_namespaces(inventory);
  if (options.holders) add_holders(inventory);
  return inventory;
}

std::string explain_unadoptable(const Inventory& inventory, const std::string& serial) {
  for (const Memdev& memdev : inventory.memdevs) {
    if (memdev.serial != serial) continue;
    std::string text = serial + " is a CXL memory device (" + memdev.name +
                       "): what is adopted is a region made of "
                       "such devices";
    for (const Region& region : inventory.regions)
      for (const std::string& one : region.memdevs)
        if (one == serial && !region.serial().empty()) return text + ", here '" + region.serial() + "'";
    return text + ", and it is in none yet";
  }
  for (const DaxDevice& dax : inventory.dax_devices) {
    if (serial != dax.name && serial != "dax:" + dax.name && serial != "/dev/" + dax.name) continue;
    for (const DaxRegion& region : inventory.dax_regions)
      if (region.name == dax.region && !region.serial.empty())
        return dax.name + " is a dax device, whose name changes: what is adopted is its region, '" +
               region.serial + "'";
    return dax.name + " is a dax device, whose name changes: what is adopted is the region it lies in";
  }
  for (const Region& region : inventory.regions)
    if (serial == region.name || serial == region.serial())
      return "this manager has no backend for " + serial + " (a " + region_kind_name(region.kind) + " region)";
  for (const DaxRegion& region : inventory.dax_regions)
    if (serial == region.name || serial == region.serial)
      return "this manager has no backend for " + serial + " (a dax region)";
  return {};
}

}  // namespace terrace::inventory
