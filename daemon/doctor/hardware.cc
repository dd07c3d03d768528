// SPDX-License-Identifier: Apache-2.0
// Doctor: the recurring pains of CXL and DAX memory, said plainly.
#include <algorithm>
#include <cstdio>

#include "core/base/limits.h"
#include "daemon/doctor/checks.h"

namespace terrace::doctor {
namespace {

using inventory::DaxDevice;
using inventory::DaxMode;
using inventory::Decoder;
using inventory::Inventory;
using inventory::Memdev;
using inventory::Port;
using inventory::Region;

void add(std::string& text, const std::string& part) {
  text += (text.empty() ? "" : "; ") + part;
}

bool loaded(const Inventory& inventory, const std::string& name) {
  return std::any_of(inventory.modules.begin(), inventory.modules.end(),
                     [&name](const auto& module) { return module.name == name && module.loaded; });
}

// "modprobe cxl_pci cxl_mem": those of `names` that are not loaded; empty when all are.
std::string to_load(const Inventory& inventory, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    if (!loaded(inventory, name)) text += " " + name;
  return text.empty() ? text : "modprobe -a" + text;
}

bool older_than(const std::string& release, int major, int minor) {
  int has_major = 0, has_minor = 0;
  if (std::sscanf(release.c_str(), "%d.%d", &has_major, &has_minor) != 2) return false;
  return has_major != major ? has_major < major : has_minor < minor;
}

bool below(const Memdev& memdev, const std::string& port) {
  return std::find(memdev.path.begin(), memdev.path.end(), port) != memdev.path.end();
}

uint64_t bytes_of(const Memdev& memdev) {
  return memdev.ram_bytes + memdev.pmem_bytes;
}

// What of the memdev lies in regions.
uint64_t used_of(const Inventory& inventory, const Memdev& memdev) {
  uint64_t used = 0;
  for (const Region& region : inventory.regions)
    for (const std::string& serial : region.memdevs)
      if (serial == memdev.serial && region.ways != 0) used += region.bytes / region.ways;
  return used;
}

// Capacity that a region which was never finished left taken.
std::string leftover_of(const Decoder& decoder) {
  if (decoder.kind != "endpoint" || decoder.bytes == 0 || !decoder.region.empty() || decoder.targets.empty())
    return {};
  return decoder.targets.front() + " has " + format_size(decoder.bytes) + " taken by " + decoder.name +
         " for a region that was never finished";
}

// A memdev with room that no decoder of its own can map.
std::string shut_out(const Inventory& inventory, const Memdev& memdev) {
  const uint64_t used = used_of(inventory, memdev);
  if (used == 0 || used >= bytes_of(memdev)) return {};
  for (const Decoder& decoder : inventory.decoders) {
    const bool its = !decoder.targets.empty() && decoder.targets.front() == memdev.serial;
    if (decoder.kind == "endpoint" && its && decoder.bytes == 0) return {};
  }
  return memdev.serial + " has " + format_size(bytes_of(memdev) - used) +
         " in no region and no decoder free to map it";
}

// A port above a memdev in no region, all of whose decoders carry other regions. A port with one way down needs
// none.
std::string blocked_by_port(const Inventory& inventory, const Memdev& memdev) {
  if (!memdev.enabled || used_of(inventory, memdev) != 0) return {};
  for (const Port& port : inventory.ports) {
    if (port.downstream < 2 || !below(memdev, port.name)) continue;
    size_t all = 0, taken = 0;
    for (const Decoder& decoder : inventory.decoders) {
      if (decoder.port != port.name) continue;
      ++all;
      if (!decoder.region.empty()) ++taken;
    }
    if (all != 0 && taken == all)
      return memdev.serial + " cannot have a region of its own: all " + std::to_string(all) +
             " of the decoders of " + port.name + " (" + port.host + ") above it are taken";
  }
  return {};
}

std::string shown(const DaxDevice& dax) {
  return dax.name + " (" + format_size(dax.bytes) + (dax.region.empty() ? ")" : " of " + dax.region + ")");
}

}  // namespace

Check check_cxl_driver(const Inventory& inventory) {
  Check check{.name = "cxl_driver"};
  const size_t untaken =
      inventory.cxl_pci.size() - std::min(inventory.cxl_pci.size(), inventory.memdevs.size());
  const auto idle = std::count_if(inventory.memdevs.begin(), inventory.memdevs.end(),
                                  [](const Memdev& memdev) { return !memdev.enabled; });
  const bool windows = std::any_of(inventory.decoders.begin(), inventory.decoders.end(),
                                   [](const Decoder& decoder) { return decoder.kind == "root"; });
  const bool pmem = std::any_of(inventory.memdevs.begin(), inventory.memdevs.end(),
                                [](const Memdev& memdev) { return memdev.pmem_bytes != 0; });
  std::vector<std::string> needed;
  if (untaken != 0) {
    add(check.found, std::to_string(untaken) + " CXL memory device(s) on PCI that no driver took");
    needed.insert(needed.end(), {"cxl_pci", "cxl_acpi"});
  }
  if (idle != 0) {
    add(check.found, std::to_string(idle) + " memdev(s) not enabled");
    needed.insert(needed.end(), {"cxl_acpi", "cxl_mem"});
  }
  if (!inventory.memdevs.empty() && !windows) {
    add(check.found, "no CXL window");
    needed.push_back("cxl_acpi");
  }
  if (pmem && !loaded(inventory, "cxl_pmem")) {
    add(check.found, "persistent CXL memory, and cxl_pmem is not loaded");
    needed.push_back("cxl_pmem");
  }
  if (check.found.empty()) {
    check.found = inventory.memdevs.empty() ? "no CXL memory device" : "every memdev has its driver";
    check.meaning = "regions can be made of all CXL memory that is here";
    return check;
  }
  check.state = CheckState::limited;
  check.meaning = "no region can be made of such devices";
  const std::string load = to_load(inventory, needed);
  check.fix = load.empty()
                  ? "the drivers are loaded: 'dmesg | grep cxl' says what failed; 6.12 in a virtual machine "
                    "of QEMU 7.2 needs pcie_ports=compat; firmware must describe the windows (CEDT)"
                  : load;
  return check;
}

Check check_cxl_ports(const Inventory& inventory) {
  Check check{.name = "cxl_ports", .found = "no host bridge with a single root port"};
  check.meaning = "kernels before 6.3 leave the decoder of one with a single port unprogrammed";
  std::string single;
  for (const Port& port : inventory.ports) {
    const bool used = std::any_of(inventory.memdevs.begin(), inventory.memdevs.end(),
                                  [&port](const Memdev& memdev) { return below(memdev, port.name); });
    if (port.depth == 1 && port.downstream == 1 && used) add(single, port.name + " (" + port.host + ")");
  }
  if (single.empty()) return check;
  check.found = "a host bridge with one root port: " + single;
  if (!older_than(inventory.kernel_release, 6, 3)) {
    check.meaning = "this kernel programs its decoder; older ones than 6.3 did not";
    return check;
  }
  check.state = CheckState::missing;
  check.found += ", on kernel " + inventory.kernel_release;
  check.meaning =
      "this kernel takes such a bridge for a mere wire and leaves its decoder unprogrammed: where the bridge "
      "needs it, all memory below reads as zeros and writes are lost, without any error";
  check.fix =
      "use kernel 6.3 or later, or give the bridge a second root port (QEMU: one more cxl-rp); until then "
      "write to "
      "the memory and read it back before trusting it";
  return check;
}

Check check_cxl_decoders(const Inventory& inventory) {
  Check check{.name = "cxl_decoders"};
  std::string fix;
  for (const Decoder& decoder : inventory.decoders) {
    if (const std::string leftover = leftover_of(decoder); !leftover.empty()) {
      add(check.found, leftover);
      add(fix, "give it back as root: echo 0 > /sys/bus/cxl/devices/" + decoder.name + "/dpa_size");
    }
    if (decoder.kind == "root" && decoder.bytes != 0 && decoder.free_bytes == 0) {
      add(check.found, "window " + decoder.name + " is full");
      add(fix, "destroy a region in the window, or use another window");
    }
  }
  for (const Memdev& memdev : inventory.memdevs) {
    if (const std::string room = shut_out(inventory, memdev); !room.empty()) {
      add(check.found, room);
      add(fix, "destroy its region and make one of all its capacity");
    }
    if (const std::string blocked = blocked_by_port(inventory, memdev); !blocked.empty()) {
      add(check.found, blocked);
      add(fix, "compose it with the memdevs beside it into one region, or plug it below another host bridge");
    }
  }
  if (check.found.empty()) {
    check.found = inventory.decoders.empty() ? "no CXL decoder" : "decoders are free where they are needed";
    check.meaning = "no CXL memory is kept from use by a lack of them";
    return check;
  }
  check.state = CheckState::limited;
  check.meaning =
      "a region takes a decoder of each device and port on its way: what has none left stays unused";
  check.fix = fix;
  return check;
}

Check check_cxl_regions(const Inventory& inventory) {
  Check check{.name = "cxl_regions"};
  for (const Region& region : inventory.regions) {
    if (!region.committed)
      add(check.found, region.name + " is not committed");
    else if (!region.enabled)
      add(check.found, region.name + " has no driver");
  }
  if (check.found.empty()) {
    check.found = inventory.regions.empty() ? "no region" : "every region is committed and enabled";
    check.meaning = "the memory of every region can be reached";
    return check;
  }
  check.state = CheckState::limited;
  check.meaning = "its memory cannot be reached: no dax device or namespace comes of it";
  check.fix =
      "destroy it and make it again. Where committing fails ('failed to commit decode' in dmesg): the order of "
      "the "
      "memdevs must be that of the host bridges in the window; and kernels from 6.2 on refuse in a virtual "
      "machine "
      "whose processor says it is one, because they cannot flush its caches (QEMU: -cpu ...,-hypervisor)";
  return check;
}

Check check_soft_reserved(const Inventory& inventory) {
  Check check{.name = "soft_reserved", .found = "no memory set aside for drivers"};
  check.meaning = "firmware or the command line can set memory aside for dax devices";
  if (!inventory.privileged) {
    check.state = CheckState::limited;
    check.found = "not shown to this user";
    check.meaning = "the physical address names a region of soft-reserved memory";
    check.fix = "run as root";
    return check;
  }
  std::string all, unclaimed;
  for (const inventory::SoftReserved& range : inventory.soft_reserved) {
    char text[64];
    std::snprintf(text, sizeof text, " at 0x%llx", static_cast<unsigned long long>(range.start));
    add(all, format_size(range.bytes) + text);
    if (!range.claimed) add(unclaimed, format_size(range.bytes) + text);
  }
  if (!all.empty()) check.found = all;
  if (unclaimed.empty()) return check;
  check.state = CheckState::limited;
  check.meaning = "no dax region was made of " + unclaimed + ", so that nobody can use it";
  const std::string load = to_load(inventory, {"device_dax", "dax_hmem"});
  check.fix = load.empty()
                  ? "the drivers are loaded: 'dmesg | grep hmem' says why they left it; memory below a CXL "
                    "window is left to the CXL driver"
                  : load;
  return check;
}

Check check_dax_mode(const Inventory& inventory) {
  Check check{.name = "dax_mode"};
  bool unmovable = false, fixable = false, disabled = false;
  for (const DaxDevice& dax : inventory.dax_devices) {
    if (dax.mode == DaxMode::system_ram) {
      add(check.found, shown(dax) + " came up as system-ram" +
                           (dax.target_node < 0 ? "" : ", node " + std::to_string(dax.target_node)) +
                           (dax.unmovable ? ", onlined for good"
                            : dax.online  ? ", in use by the kernel"
                                          : ""));
      (dax.unmovable ? unmovable : fixable) = true;
    } else if (dax.mode == DaxMode::disabled) {
      add(check.found, shown(dax) + " has no driver");
      disabled = true;
    }
  }
  if (check.found.empty()) {
    check.found = inventory.dax_devices.empty() ? "no dax device" : "every dax device is in devdax mode";
    check.meaning = "all of it can be leased as devices";
    return check;
  }
  check.state = CheckState::limited;
  check.meaning =
      "only devdax devices become leases that are devices of their own; memory in system-ram mode can be "
      "leased through its node (backend numa), where nothing else uses it";
  if (fixable) add(check.fix, "'terrace doctor --fix' takes the memory back and makes it devdax again");
  if (unmovable)
    add(check.fix,
        "what was onlined as unmovable (zone Normal) goes only by a reboot: load kmem after the devices are "
        "configured, with 'offline' or 'online_movable' in /sys/devices/system/memory/auto_online_blocks");
  if (disabled)
    add(check.fix,
        "one without a driver may be a lease that was fenced, and must not be enabled then; else "
        "'daxctl enable-device'");
  return check;
}

Check check_dax_alignment(const Inventory& inventory) {
  Check check{.name = "dax_alignment"};
  std::string pmem_fix, fix;
  for (const DaxDevice& dax : inventory.dax_devices) {
    const bool usable = dax.align_bytes >= limits::granule_bytes &&
                        dax.align_bytes <= limits::granule_bytes_max && is_power_of_two(dax.align_bytes);
    if (usable && dax.bytes % dax.align_bytes == 0) continue;
    add(check.found, shown(dax) + (usable ? " is no multiple of its alignment, " : " is aligned to ") +
                         format_size(dax.align_bytes));
    if (dax.dynamic)
      fix = "destroy it and make it again with an alignment of 2 MiB";
    else
      pmem_fix = "make its namespace again with an alignment of 2 MiB ('ndctl create-namespace -f -a 2M')";
  }
  if (check.found.empty()) {
    check.found =
        inventory.dax_devices.empty() ? "no dax device" : "every dax device is aligned as leases need";
    check.meaning = "granules begin where mappings may";
    return check;
  }
  check.state = CheckState::limited;
  check.meaning = "leases are made of granules of " + format_size(limits::granule_bytes) + " to " +
                  format_size(limits::granule_bytes_max) +
                  ", and a mapping of a dax device must begin and end on its alignment";
  if (!fix.empty()) add(check.fix, fix);
  if (!pmem_fix.empty()) add(check.fix, pmem_fix);
  return check;
}

Check check_auto_online(const Inventory& inventory) {
  Check check{.name = "auto_online"};
  check.found = inventory.auto_online_blocks.empty() ? "no memory hotplug"
                                                     : "added memory is set " + inventory.auto_online_blocks;
  const bool udev = std::any_of(inventory.dax_devices.begin(), inventory.dax_devices.end(),
                                [](const DaxDevice& dax) { return dax.auto_online; });
  if (!inventory.auto_online_blocks.starts_with("online") && !udev) {
    check.meaning = "memory that becomes system-ram stays unused until somebody asks for it";
    return check;
  }
  check.state = CheckState::limited;
  check.meaning =
      "what becomes system-ram is put to use at once, and pages of programs settle on it before anybody "
      "decided so";
  check.fix =
      "echo offline > /sys/devices/system/memory/auto_online_blocks, and memhp_default_state=offline on the "
      "kernel's "
      "command line for the next boot; a udev rule may do the same (grep -r 'SUBSYSTEM==\"memory\"' /etc/udev "
      "/usr/lib/udev)";
  return check;
}

Check check_privilege(const Inventory& inventory) {
  Check check{.name = "privilege", .found = "root", .meaning = "nothing is hidden"};
  if (inventory.privileged) return check;
  check.state = CheckState::limited;
  check.found = "not root";
  check.meaning =
      "the kernel hides addresses, mailboxes (health) and who has a device open; only root can change any "
      "of it, so the manager of real devices runs as root";
  check.fix = "sudo terrace doctor";
  return check;
}

std::vector<Check> check_hardware(const Inventory& inventory) {
  const bool any = !inventory.cxl_pci.empty() || !inventory.memdevs.empty() || !inventory.dax_regions.empty() ||
                   !inventory.dax_devices.empty() || !inventory.soft_reserved.empty();
  if (!any) return {};
  return {check_cxl_driver(inventory),    check_cxl_ports(inventory),     check_cxl_decoders(inventory),
          check_cxl_regions(inventory),   check_soft_reserved(inventory), check_dax_mode(inventory),
          check_dax_alignment(inventory), check_auto_online(inventory),   check_privilege(inventory)};
}

}  // namespace terrace::doctor
