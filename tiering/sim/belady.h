// SPDX-License-Identifier: Apache-2.0
// Belady's optimum with bypass: of the objects in the cache and the one used now, the object with the farthest
// next use is left out. No other rule has more hits.
#pragma once

#include <set>
#include <utility>

#include "tiering/sim/caches.h"

namespace terrace::tiering {

// For each use of the trace the position of the same object's next use; UINT64_MAX: none.
std::vector<uint64_t> next_uses(const Trace& trace);

class Belady final : public Cache {
 public:
  Belady(const Trace& trace, uint64_t room);
  bool use(uint32_t object) override;

 private:
  std::vector<uint64_t> next_;                     // of each position in the trace
  std::vector<uint64_t> cached_until_;             // of each object: its key in the cache; 0: not there
  std::set<std::pair<uint64_t, uint32_t>> cache_;  // by next use
  uint64_t position_ = 0;
  uint64_t room_;
};

}  // namespace terrace::tiering
