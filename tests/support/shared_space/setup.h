// SPDX-License-Identifier: Apache-2.0
// What one host of the test is told, and what all its processes agree on.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/base/units.h"

namespace terrace::shared_space {

inline constexpr uint32_t hosts = 2;
inline constexpr uint32_t readers = 3;
inline constexpr uint32_t holders = 1 + readers;         // child 0 writes
inline constexpr uint32_t parts_per_host = 1 + holders;  // the first one is its group's, which is never killed
inline constexpr uint64_t space_bytes = 8 * mib;
inline constexpr std::array<uint64_t, 4> tensor_words{16, 500, 2000, 5000};  // of each host
inline constexpr uint32_t tensors = tensor_words.size();
inline constexpr uint32_t single_slot = 3;  // the one whose content a dying writer may take along

// Defects that a writer has on purpose: the checks of readers must find them.
enum class Fault : uint8_t {
  none,
  in_place,  // stores into the version that is published
  old,       // publishes content that it had published before
  early,     // publishes, and then goes on writing
};

struct Setup {
  std::string file;
  uint32_t host = 0;
  bool coherent = true;
  uint64_t run = 1;  // tells this run's space from what an earlier one left in the memory
  uint64_t kills = 40;
  uint64_t reads = 2000;
  uint64_t news = 40;  // versions of the other host's tensors that were new to this host
  uint64_t steps_per_kill = 200;
  uint64_t limit_s = 240;
  uint64_t seed = 1;
  Fault fault = Fault::none;
};

inline std::string tensor_name(uint32_t host, uint32_t index) {
  return "host-" + std::to_string(host) + "/tensor-" + std::to_string(index);
}
inline std::string group_name(uint32_t host) {
  return "host-" + std::to_string(host);
}

}  // namespace terrace::shared_space
