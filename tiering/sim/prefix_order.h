// SPDX-License-Identifier: Apache-2.0
// The block store's eviction order (tiering/eviction) as a cache of the simulator: each object of a request follows the
// one before it.
#pragma once

#include <cstdint>
#include <vector>

#include "tiering/eviction/block_order.h"
#include "tiering/sim/caches.h"

namespace terrace::tiering {

class PrefixOrder final : public Cache {
 public:
  PrefixOrder(const Trace& trace, uint64_t room);  // `trace` outlives it
  bool use(uint32_t object) override;

 private:
  uint32_t free_id();
  uint64_t parent_key();

  const Trace& trace_;
  eviction::BlockOrder order_;
  std::vector<uint32_t> id_of_;      // of each object
  std::vector<uint32_t> object_of_;  // of each id
  std::vector<uint32_t> free_;
  size_t position_ = 0;  // in the trace's uses
  size_t request_ = 0;
};

}  // namespace terrace::tiering
