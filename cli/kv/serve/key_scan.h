// SPDX-License-Identifier: Apache-2.0
// SCAN: the keys of a namespace in pieces, while others put and erase blocks.
//
// A cursor is a hash: keys are given out in the order of their hashes, so a key that is there from the first call
// to the last is given out, whatever else comes and goes. The space can only be listed as a whole, so each listing
// remembers the keys of the hashes that come next.
//
// Threads   The server's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "terrace/kv_space.h"

namespace terrace::kv_serve {

// Calls `each` with every key of the namespace that has not expired, until it returns false.
Status list_keys(KvSpace& space, const KvNamespace& name_space,
                 const std::function<bool(const KvBlockInfo&)>& each);

class KeyScan {
 public:
  KeyScan(KvSpace& space, const KvNamespace& name_space) : space_(space), name_space_(name_space) {}

  struct Step {
    uint64_t cursor = 0;  // of the next call; 0: that was all
    std::vector<std::string> keys;
  };
  // The next `count` keys, or some more where hashes are equal. `cursor` 0: the first ones.
  Result<Step> next(uint64_t cursor, uint64_t count, uint64_t now_ns);

 private:
  using Hashed = std::pair<uint64_t, std::string>;
  Status look(uint64_t after, uint64_t now_ns);

  KvSpace& space_;
  const KvNamespace& name_space_;
  std::vector<Hashed> window_;  // ascending: all keys there are with hashes above after_, up to the last one's
  uint64_t after_ = 0;
  bool complete_ = false;  // no key has a greater hash
  uint64_t looked_ns_ = 0;
};

}  // namespace terrace::kv_serve
