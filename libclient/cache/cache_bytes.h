// SPDX-License-Identifier: Apache-2.0
// What a cache of replicas says of its bytes, in numbers and in the error of who gets no room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

struct CacheBytes {
  uint64_t budget = 0;
  uint64_t resident = 0;
  uint64_t pinned = 0;    // of these: somebody uses them
  uint64_t modified = 0;  // of these: not written back
  uint64_t moving = 0;    // of these: being copied or written back

  // "of a budget of 8192 bytes 4096 are in use (pinned 4096, modified 0, being copied 0)"
  std::string in_use_text() const;
  // "needs 8256 bytes in tier ddr, 4160 short: of a budget of ...; let replicas go, ..."
  std::string no_room_text(std::string_view tier, uint64_t needed_bytes, uint64_t short_bytes) const;
};

}  // namespace terrace
