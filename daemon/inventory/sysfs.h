// SPDX-License-Identifier: Apache-2.0
// Reads sysfs and procfs about CXL and DAX, below a root directory that tests make up ("" is the machine).
//
// Place     daemon/inventory: take_inventory() combines it with the libraries' data; backends use
//           single readers.
// Threads   Plain functions; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/inventory/inventory.h"

namespace terrace::inventory {

// --- small readers ---
std::string read_file(const std::string& path);  // whole; empty when unreadable
std::string read_word(const std::string& path);  // its first line without blanks at the ends
uint64_t read_number(const std::string& path, uint64_t otherwise = 0);  // decimal or 0x
bool exists(const std::string& path);
std::vector<std::string> list_directory(const std::string& path);  // names, numbers in them in numeric order
// Where a link leads, by the names of sysfs: "/devices/platform/hmem.0/dax0.0"; empty: no such link.
std::string device_path(const std::string& root, const std::string& link);

// --- CXL ---
std::vector<Port> read_ports(const std::string& root);
// All regions, whatever their kind, with the serials of their memdevs.
std::vector<Region> read_regions(const std::string& root);
RegionSpeed read_region_speed(const std::string& root, const std::string& region);
// Of a memdev's partition "ram" or "pmem"; -1: the kernel does not say (before Linux 6.8).
int read_qos_class(const std::string& root, const std::string& memdev, const std::string& partition);
// From the root of the hierarchy down to the PCI function.
std::vector<std::string> read_memdev_path(const std::string& root, const std::string& memdev);
std::string read_memdev_model(const std::string& root, const std::string& memdev);
std::string read_memdev_serial(const std::string& root, const std::string& memdev);
// PCI functions of class 0502: CXL memory devices, with or without a driver.
std::vector<std::string> read_cxl_functions(const std::string& root);

// --- memory ---
std::vector<SoftReserved> read_soft_reserved(const std::string& root);
// Where the platform device "hmem.0" begins; 0: not known (only root sees addresses).
uint64_t read_hmem_start(const std::string& root, const std::string& device);
std::vector<KernelModule> read_modules(const std::string& root, const std::string& kernel_release);
// Who has /dev/daxX.Y open or mapped, by device name, as far as this process may look. `skip_pid`: itself.
std::map<std::string, std::vector<Holder>> read_dax_holders(const std::string& root, int skip_pid);

// What a dax device's path says of its region: the last "hmem.0" or "region3" in it.
std::string dax_region_name(const std::string& path);

}  // namespace terrace::inventory
