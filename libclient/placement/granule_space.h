// SPDX-License-Identifier: Apache-2.0
// The granules of a pool's range that belong to tensors, and the small tensors that share some.
//
// Place     TensorPool, under its mutex. Pure.
// Threads   One at a time.
// Invariants
//   P1  No two tensors have a byte in common; a granule is either one big tensor's or a chunk's.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>

#include "libclient/arena/granule_allocator.h"
#include "libclient/placement/cost.h"

namespace terrace::placement {

struct Place {
  uint64_t offset = 0, bytes = 0;  // in the range; bytes as asked
  uint32_t heat_class = 0;
  bool shared = false;
};

class GranuleSpace {
 public:
  GranuleSpace(uint32_t granules, uint64_t granule_bytes);

  // `like` says of a granule whether it is where the tensor should begin; of the places that fit the one with
  // most of those is chosen, the smallest gap of several.
  std::optional<Place> take(uint64_t bytes, uint32_t heat_class, const std::function<bool(uint32_t)>& like);
  void give(const Place& place);

  uint32_t free_granules() const { return free_granules_; }
  uint32_t longest_free_run() const;
  // Free as a granule; what is free in shared ones is not counted.
  bool is_free(uint32_t granule) const;
  // Whether a tensor of so many bytes shares granules with others.
  bool shares(uint64_t bytes) const {
    return bytes <= chunk_granules_ * granule_bytes_ / 2 && bytes < 2 * granule_bytes_;
  }

 private:
  static constexpr uint64_t unit_bytes = 64;
  struct Chunk {
    uint32_t first = 0;
    client::GranuleAllocator units;
  };
  std::optional<uint32_t> take_granules(uint32_t count, const std::function<bool(uint32_t)>& like);
  void give_granules(uint32_t first, uint32_t count);

  uint64_t granule_bytes_;
  uint32_t chunk_granules_;
  uint32_t free_granules_;
  std::map<uint32_t, uint32_t> free_;  // first -> count; no two touch
  std::array<std::list<Chunk>, heat_classes> chunks_;
};

}  // namespace terrace::placement
