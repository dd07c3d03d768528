// What CXL and DAX hardware the kernel shows, through libcxl and libdaxctl. Reads only: nothing here writes to
// a device or changes a mode. On a machine with none of it the lists are empty and that is no error.
//
// Place     daemon/inventory; used by `terrace doctor` and for `terrace device list` (devices as seen).
// Threads   Each call builds its own library contexts; any thread, several at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::inventory {

// A CXL Type 3 device. `memN` names change between boots; the serial does not.
struct Memdev {
  std::string serial;     // "0x1234abcd", or "mem0@HOST" for a device without one
  std::string name = {};  // "mem0", for this boot only
  std::string host = {};  // the PCI function, "0000:35:00.0"
  uint64_t ram_bytes = 0;
  uint64_t pmem_bytes = 0;
  int numa_node = -1;  // -1: none
  std::string firmware = {};
  bool enabled = false;  // bound to the cxl_mem driver
};

enum class DaxMode : uint8_t {
  devdax,      // a character device that can be mapped: what leases need
  system_ram,  // given to the kernel as ordinary memory: it cannot be leased
  disabled,    // no driver bound
};

struct DaxDevice {
  std::string name;  // "dax0.0"
  DaxMode mode = DaxMode::disabled;
  uint64_t size_bytes = 0;
  uint64_t align_bytes = 0;
  int region = -1;
  int target_node = -1;
  bool online = false;             // system_ram only: its blocks are in use
  uint64_t region_free_bytes = 0;  // room for further devices in the same region
};

struct KernelModule {
  std::string name;
  bool loaded = false;  // loaded, or built in and visible below /sys/module
  bool available = false;
};

struct NumaNode {
  int id = 0;
  bool has_cpus = false;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

struct Inventory {
  bool cxl_bus = false;  // /sys/bus/cxl
  bool dax_bus = false;  // /sys/bus/dax
  std::vector<Memdev> memdevs;
  std::vector<DaxDevice> dax_devices;
  std::vector<KernelModule> modules;
  std::vector<NumaNode> numa_nodes;
  std::vector<std::string> notes;  // what could not be read, in words
};

// Looks at this machine now.
Inventory take_inventory();

// The parts that come from files, below another root (tests use a made-up one; "" is the machine).
std::vector<KernelModule> read_modules(const std::string& root, const std::string& kernel_release);
std::vector<NumaNode> read_numa_nodes(const std::string& root);

const char* dax_mode_name(DaxMode mode);  // "devdax", "system-ram", "disabled"

// A device as an operator's list shows it, before anyone adopted it.
struct SeenHardware {
  std::string serial;   // memdev serial, or "dax:dax0.0" for a dax device
  std::string backend;  // "memdev" or "devdax"
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;  // the alignment a lease would have; 0 for a memdev
  std::string detail = {};     // how it is reached, or what is wrong and how to mend it
  bool usable = false;         // a devdax in the right mode with a usable alignment
};

// Turns an inventory into such lines. Pure.
std::vector<SeenHardware> describe_hardware(const Inventory& inventory);

}  // namespace terrace::inventory
