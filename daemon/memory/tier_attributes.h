// SPDX-License-Identifier: Apache-2.0
// Speed, durability and isolation of memory: a backend's figures of one device, and from those the figures of a
// lease or pool on several devices.
//
// Place     daemon/memory; told to tenants and operators by daemon/rpc.
// Threads   Plain data and functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/os/measure_memory.h"

namespace terrace::daemon {

// Where latency and bandwidth come from: the firmware's table (HMAT) as the kernel gives it for a memory node,
// the CXL devices' own (CDAT) as it gives them for a region, or a measurement of ours.
enum class AttributesSource : uint8_t { none, hmat, cdat, measured };

// What a lease's memory is to everybody else, from the most separate to the least. The fence of each is the
// kernel's, and no lease ever sees another's bytes; the difference is who else has a way to the memory.
enum class Isolation : uint8_t {
  none,        // not said
  device,      // a dax device of its own: the kernel uses none of it, only its descriptor maps it
  namespace_,  // a namespace of persistent memory of its own: likewise
  node,  // a private file whose pages are of a memory node that the kernel and other processes may use, too
  file,  // a private file in ordinary memory of this machine
};

// Whether who had the memory may reach it once it is another's, by pages that were pinned before its fence.
enum class Fence : uint8_t {
  verified,  // the kernel keeps such pages from reuse, or the manager counts them and keeps the memory
  trusting,  // nobody sees them here: for tenants who trust each other
};

// 0: not known.
struct TierAttributes {
  uint32_t latency_ns = 0;  // of a load, as seen from the nearest CPU
  uint64_t bandwidth_bytes_per_s = 0;
  int32_t node = -1;      // the NUMA node it belongs to; -1: none, or not of one only
  uint32_t distance = 0;  // of that node from the nearest with CPUs, as in the SLIT (10: local)
  bool persistent = false;
  AttributesSource source = AttributesSource::none;
  Isolation isolation = Isolation::none;
  Fence fence = Fence::verified;

  bool operator==(const TierAttributes&) const = default;
};

const char* source_name(AttributesSource source);  // "hmat", "cdat", "measured"; "" for none
const char* isolation_name(Isolation isolation);   // "device", "namespace", "node", "file"; "" for none

// What the firmware says of memory on `node`, or, where that node is not online yet, the kernel of the CXL
// region it is in (its name of this boot; empty: in none). Reads sysfs below `root`.
TierAttributes firmware_attributes(int node, const std::string& cxl_region = {}, const std::string& root = {});

// The same with what was measured, where the firmware says nothing.
TierAttributes with_measured_speed(TierAttributes told, os::MemorySpeed measured);

// One device's part of a lease or pool.
struct TierPart {
  TierAttributes attributes;
  uint64_t bytes = 0;
};

// Of memory on several devices. Latency and distance are the worst device's. Bandwidth is the slowest device's,
// what is there for whichever part is read; where stripes lie on all of them (`striped`), what all give
// together until the one that takes longest is done: n devices alike are n times as fast. Emulated ones are one
// memory, and as fast as one. A figure that one device lacks is not known of all; persistent are they if all
// are, and separate, and fenced, as the least.
TierAttributes combined(const std::vector<TierPart>& parts, bool striped);

}  // namespace terrace::daemon
