// SPDX-License-Identifier: Apache-2.0
// Kinds of memory, by the names that devices (DeviceRow::backend) and objects ("devdax:lease-7") have: the one
// place of the daemon that knows them, but for each kind's own folder in daemon/memory. A new kind is a folder
// there, a line here, and its backend in daemon/memory/machine.
//
// Place     Names and facts; pure.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace terrace::daemon {

namespace kinds {
inline constexpr std::string_view emulated = "emulated", devdax = "devdax", pmem = "pmem", numa = "numa";
}

struct MemoryKind {
  std::string_view name;
  // A lease is one device, namespace or file of the kernel's, which cannot span regions or nodes.
  bool one_device = true;
  // Objects are files of a directory that the daemon was told: another directory has others.
  bool in_named_directory = false;
  // Holders are found by the device nodes that they have mapped or open.
  bool held_by_device_node = false;
};

inline constexpr std::array<MemoryKind, 4> memory_kinds = {{
    {.name = kinds::emulated, .one_device = false, .in_named_directory = true},
    {.name = kinds::devdax, .held_by_device_node = true},
    {.name = kinds::pmem, .held_by_device_node = true},
    {.name = kinds::numa},
}};

// Of a name that no kind has, nothing is known.
constexpr MemoryKind memory_kind(std::string_view name) {
  for (const MemoryKind& kind : memory_kinds)
    if (kind.name == name) return kind;
  return {.name = name, .one_device = false};
}

// Names of objects begin with their kind and a colon; emulated ones have none.
constexpr std::string_view object_kind(std::string_view object) {
  const size_t colon = object.find(':');
  return colon == std::string_view::npos ? kinds::emulated : object.substr(0, colon);
}
inline std::string prefix_of_kind(std::string_view kind) {
  return kind.empty() || kind == kinds::emulated ? std::string() : std::string(kind) + ":";
}

}  // namespace terrace::daemon
