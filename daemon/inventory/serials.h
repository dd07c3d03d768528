// SPDX-License-Identifier: Apache-2.0
// What CXL and DAX hardware is called as a device of a pool: names that mean the same memory after a reboot,
// when `memN`, `regionN` and `daxX.Y` may have been dealt out anew. Inventory and the backends all name by
// these.
//
// Place     daemon/inventory; pure, also used by daemon/memory.
// Threads   Plain functions.
// Invariant What they return is a valid name of a device: letters, digits and -_.:@, at most
//           limits::name_bytes_max bytes, if host and name of a memdev without a serial are of those too.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace terrace::inventory {

// Of a CXL memory device: "0x1234abcd". One that reports none (0 or all ones) cannot be told from another by
// it; "mem0@0000:35:00.0", its name of this boot and its PCI function, at least says where it sits.
std::string memdev_serial(uint64_t serial, const std::string& name, const std::string& host);

// Of a dax region of soft-reserved memory, by the physical address it begins at: "dax:hmem@0x100000000".
std::string hmem_serial(uint64_t start);

// Of a region composed of memdevs, in their order of interleaving: "dax:0xc0.0xc1" for a volatile one,
// "pmem:0xc0.0xc1" for a persistent one. Where that is too long for a name: the first, how many there are, and
// 64 bits of a hash over all: "pmem:0xc0.8-way.0123456789abcdef".
//
// Several regions can lie over the same memdevs, one behind the other. `position_bytes` is where the region
// begins on its first memdev, counted from where memory of that kind begins there: what stays, and what no two
// can have in common. All but the first have it in their name: "pmem:0xc0@0x10000000".
enum class RegionKind : uint8_t { ram, pmem };
std::string region_serial(RegionKind kind, std::span<const std::string> memdevs, uint64_t position_bytes = 0);

}  // namespace terrace::inventory
