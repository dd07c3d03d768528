// SPDX-License-Identifier: Apache-2.0
// Cache policies, published ones and the block store's own, for comparison: they see one use after the other, and
// bring a used object in at once. Nothing limits their copying.
//
// Place     simulate() runs them beside the policies. tests/unit/tiering_sim holds them to hand-worked traces,
//           and belady to the true optimum of small ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tiering/sim/trace.h"

namespace terrace::tiering {

class Cache {
 public:
  virtual ~Cache() = default;
  // One use of `object`, in the trace's order; true when it was in the cache.
  virtual bool use(uint32_t object) = 0;
  uint64_t brought_in() const { return brought_in_; }  // objects put into the cache, first uses included
  uint64_t put_out() const { return put_out_; }

 protected:
  uint64_t brought_in_ = 0;
  uint64_t put_out_ = 0;
};

// lru; arc (Megiddo and Modha, FAST 2003); s3-fifo (Yang et al., SOSP 2023); those of rivals.h; prefix-order
// (tiering/eviction, which also knows what follows what in a request); belady (the optimum, which knows the trace:
// it keeps what is used soonest, and what is used later than all that is there is not brought in).
// nullptr: no such name. `objects_max`: room, more than 0.
std::unique_ptr<Cache> make_cache(std::string_view name, const Trace& trace, uint64_t objects_max);
std::vector<std::string_view> cache_names();

}  // namespace terrace::tiering
