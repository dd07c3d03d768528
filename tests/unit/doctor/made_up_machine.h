// SPDX-License-Identifier: Apache-2.0
// A machine that was made up, for tests of what is said about machines.
#pragma once

#include "daemon/inventory/inventory.h"

namespace terrace::test {

// Root, kernel 6.1: two memdevs of 512 MiB below host bridges of their own, each with a window, nothing
// composed; 1 GiB of soft-reserved memory as one devdax device. Nothing is wrong with it.
inline inventory::Inventory healthy() {
  using inventory::DaxMode;
  inventory::Inventory all;
  all.cxl_bus = all.dax_bus = all.privileged = true;
  all.kernel_release = "6.1.0-56-amd64";
  all.auto_online_blocks = "offline";
  for (const char* name : {"cxl_acpi", "cxl_pci", "cxl_mem", "cxl_pmem", "device_dax", "dax_hmem", "kmem"})
    all.modules.push_back({.name = name, .loaded = true, .available = true});
  for (int i = 0; i < 2; ++i) {
    const std::string n = std::to_string(i), port = "port" + std::to_string(i + 1);
    all.cxl_pci.push_back("0000:0" + n + ":00.0");
    all.memdevs.push_back({.serial = "0xc" + n,
                           .name = "mem" + n,
                           .pmem_bytes = 512 * mib,
                           .enabled = true,
                           .path = {"ACPI0017:00 root0", port, "0000:0c:00.0"}});
    all.ports.push_back({.name = port, .host = "ACPI0016:0" + n, .depth = 1, .downstream = 2});
    all.decoders.push_back({.name = "decoder0." + n,
                            .kind = "root",
                            .port = "root0",
                            .bytes = 4 * gib,
                            .free_bytes = 4 * gib,
                            .ways = 1,
                            .targets = {"ACPI0016:0" + n}});
    all.decoders.push_back({.name = "decoder" + std::to_string(i + 1) + ".0", .kind = "switch", .port = port});
    all.decoders.push_back({.name = "decoder" + std::to_string(i + 3) + ".0",
                            .kind = "endpoint",
                            .port = "endpoint" + std::to_string(i + 3),
                            .targets = {"0xc" + n}});
  }
  all.soft_reserved.push_back({0x100000000, gib, true});
  all.dax_regions.push_back({.name = "hmem.0",
                             .serial = "dax:hmem@0x100000000",
                             .bytes = gib,
                             .align_bytes = 2 * mib,
                             .target_node = 1});
  all.dax_devices.push_back({.name = "dax0.0",
                             .region = "hmem.0",
                             .mode = DaxMode::devdax,
                             .start = 0x100000000,
                             .bytes = gib,
                             .align_bytes = 2 * mib,
                             .target_node = 1,
                             .dynamic = true});
  return all;
}

}  // namespace terrace::test
