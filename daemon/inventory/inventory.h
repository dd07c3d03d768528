// SPDX-License-Identifier: Apache-2.0
// What CXL and DAX hardware the kernel shows. Reads only; dax_mode.h, beside it, is the one that changes something.
// On a machine with none of it the lists are empty and that is no error.
//
// Two sources behind one seam. libcxl, libdaxctl and libndctl (in this process) give memdevs, decoders, dax and
// namespaces. sysfs and procfs give what the libraries do not have, or not yet: regions with their mode (libcxl
// 76.1 knows persistent ones only), the ports above a memdev, where soft-reserved memory begins, who has a dax
// device open, HMAT figures. Those readers take a root directory, so that tests can make up a machine.
//
// Place     daemon/inventory; used by `terrace doctor`, Admin.inventory and the backends.
// Threads   Each call builds its own library contexts; any thread, several at once. Blocks (firmware mailboxes,
//           /proc of every process): not for an event loop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "core/os/node_attributes.h"
#include "daemon/inventory/serials.h"

namespace terrace::inventory {

// A CXL Type 3 device. `memN` names change between boots; the serial does not.
struct Memdev {
  std::string serial;     // as memdev_serial() gives it
  std::string name = {};  // "mem0", for this boot only
  std::string host = {};  // the PCI function, "0000:35:00.0"
  uint64_t ram_bytes = 0;
  uint64_t pmem_bytes = 0;
  int numa_node = -1;  // -1: none
  std::string firmware = {};
  bool enabled = false;                // bound to the cxl_mem driver
  std::string model = {};              // "8086:0d93", PCI vendor and device
  std::string health = {};             // in words
  std::vector<std::string> path = {};  // from the root: "ACPI0017:00 root0", "port1", "0000:0c:00.0", ...
  int ram_qos_class = -1;              // of its CDAT, for each partition; -1: not known
  int pmem_qos_class = -1;
};

// A port of the CXL hierarchy that forwards: a host bridge or a switch.
struct Port {
  std::string name;         // "port1"
  std::string host = {};    // what it is: "ACPI0016:00" or a PCI function
  uint32_t depth = 0;       // 1: a host bridge
  uint32_t downstream = 0;  // ports below it that the kernel found; root ports, for a host bridge
};

struct Decoder {
  std::string name;       // "decoder0.0"
  std::string kind = {};  // "root", "switch", "endpoint"
  std::string port = {};  // it belongs to: "root0", "port1", "endpoint3"
  uint64_t start = 0;     // host physical address; of a root decoder: the window
  uint64_t bytes = 0;
  uint64_t free_bytes = 0;  // of a root decoder: the longest extent a region could still take
  uint32_t ways = 0;
  uint32_t granularity = 0;
  std::vector<std::string> targets = {};  // in order; of an endpoint's: the memdev's serial
  bool pmem = false;
  bool ram = false;
  std::string region = {};  // empty: none
};

// As the kernel works it out from the CDAT of a region's devices and the way to them (Linux 6.9 and later); 0:
// it does not.
struct RegionSpeed {
  uint32_t latency_ns = 0;  // of a read, from the nearest CPU
  uint64_t bandwidth_bytes_per_s = 0;

  bool known() const { return latency_ns != 0 || bandwidth_bytes_per_s != 0; }
};

struct Region {
  std::string name;  // "region0", for this boot only
  RegionKind kind = RegionKind::pmem;
  uint64_t start = 0;
  uint64_t bytes = 0;
  uint32_t ways = 0;
  uint32_t granularity = 0;
  std::vector<std::string> memdevs = {};  // serials, in the order of interleaving
  uint64_t position_bytes = 0;            // where it begins on the first of them; see region_serial()
  bool committed = false;                 // the decoders are programmed
  bool enabled = false;                   // bound to its driver
  std::string decoder = {};               // the root decoder it is in
  RegionSpeed speed = {};

  std::string serial() const {
    return memdevs.empty() ? std::string() : region_serial(kind, memdevs, position_bytes);
  }
};

struct DaxRegion {
  std::string name;         // "hmem.0", "region0"
  std::string serial = {};  // as a device of a pool; empty: it cannot be one
  uint64_t start = 0;       // 0: not known (only root may read it)
  uint64_t bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t align_bytes = 0;
  int target_node = -1;
};

enum class DaxMode : uint8_t {
  devdax,      // a character device that can be mapped: what leases need
  system_ram,  // given to the kernel as ordinary memory: it cannot be leased
  disabled,    // no driver bound
};

// A process that has a dax device open or mapped.
struct Holder {
  int pid = 0;
  std::string command = {};

  bool operator==(const Holder&) const = default;
};

struct DaxDevice {
  std::string name;         // "dax0.0"
  std::string region = {};  // a DaxRegion, or the persistent region below it
  DaxMode mode = DaxMode::disabled;
  uint64_t start = 0;  // physical; 0: not known
  uint64_t bytes = 0;
  uint64_t align_bytes = 0;
  int target_node = -1;
  bool dynamic = false;      // of a region that can be cut into devices
  bool online = false;       // system_ram only: some of its memory is in use
  bool unmovable = false;    // system_ram only: some was onlined so that it cannot be taken back
  bool auto_online = false;  // memory that comes this way is put to use by itself
  std::vector<Holder> holders = {};
  std::string holder =
      {};  // in words: "lease 7" where a manager knows it, or the processes; empty: nobody seen
};

struct Namespace {
  std::string name;         // "namespace0.1"
  std::string region = {};  // of libnvdimm, which has the name of the CXL region it came from
  std::string mode = {};    // "devdax", "fsdax", "raw", "sector"
  uint64_t bytes = 0;
  std::string uuid = {};
  std::string label = {};   // its alternative name
  std::string device = {};  // "dax0.1", "pmem0"; empty: disabled
};

struct KernelModule {
  std::string name;
  bool loaded = false;  // or built in
  bool available = false;
};

struct NumaNode {
  int id = 0;
  os::NodeAttributes attributes = {};
};

// A range of /proc/iomem that the firmware or the command line set aside for drivers ("Soft Reserved").
struct SoftReserved {
  uint64_t start = 0;
  uint64_t bytes = 0;
  bool claimed = false;  // an hmem device is made of it

  bool operator==(const SoftReserved&) const = default;
};

struct Inventory {
  bool cxl_bus = false;  // /sys/bus/cxl
  bool dax_bus = false;  // /sys/bus/dax
  bool privileged = false;
  std::string kernel_release;
  std::string auto_online_blocks;    // "online", "online_movable", "offline"; empty: no memory hotplug
  std::vector<std::string> cxl_pci;  // PCI functions of CXL memory devices, whether a driver took them or not
  std::vector<SoftReserved> soft_reserved;  // as root only
  std::vector<Memdev> memdevs;
  std::vector<Port> ports;
  std::vector<Decoder> decoders;
  std::vector<Region> regions;
  std::vector<DaxRegion> dax_regions;
  std::vector<DaxDevice> dax_devices;  // with size: a region's empty seed is left out
  std::vector<Namespace> namespaces;
  std::vector<KernelModule> modules;
  std::vector<NumaNode> numa_nodes;
  std::vector<std::string> notes;  // what could not be read, in words
};

struct InventoryOptions {
  bool health = true;   // ask each memdev's mailbox
  bool holders = true;  // look through /proc for who has dax devices open
};

// Looks at this machine now.
Inventory take_inventory(const InventoryOptions& options = {});

const char* dax_mode_name(DaxMode mode);        // "devdax", "system-ram", "disabled"
const char* region_kind_name(RegionKind kind);  // "ram", "pmem"

// Why `serial` is no device that can be adopted, for one who tried: in words, with the way to get there. Empty:
// nothing by that name is here. Pure.
std::string explain_unadoptable(const Inventory& inventory, const std::string& serial);

}  // namespace terrace::inventory
