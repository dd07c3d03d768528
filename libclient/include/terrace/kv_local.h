// SPDX-License-Identifier: Apache-2.0
// Copies of a KV space's hot blocks in this process's own memory, which is local DDR: CXL memory answers two to three
// times slower, and a block that is read often is read from its copy (KvAttachOptions::local).
//
//   a copy answers only after a look at its block's directory entry: what was erased, evicted, replaced or has expired is
//   not found, and a lease that ended is lease_expired, with a copy as without
//   a block is copied when it is read for the second time within a while, and goes when others are worth more
//   the owner of a block is told of uses by copies as of all others: what is hot here stays in the space
//   copies are of one process, and end with it; spaces of one process may share one KvLocal, and its budget
//
// Design: docs/design/0050-kv-local.md. Use: docs/kv.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "terrace/kv_space.h"

namespace terrace {

inline constexpr uint64_t kv_local_bytes_min = 1 << 20, kv_local_bytes_limit = 64ull << 40;

struct KvLocalOptions {
  uint64_t bytes = 0;            // of copies, names with them; the memory is touched as copies come
  uint64_t max_block_bytes = 0;  // larger blocks are not copied; 0: an eighth of `bytes`
  // How many bytes the copies of some namespaces may have, as in KvPolicy. At most 256.
  std::vector<KvBudget> budgets = {};
};

// Threads    Any.
class KvLocal {
 public:
  // Errors    invalid_argument  less than kv_local_bytes_min; a budget that makes no sense, says which
  //           out_of_memory     no address space for that many bytes
  static Result<std::shared_ptr<KvLocal>> open(const KvLocalOptions& options);
  virtual ~KvLocal() = default;  // the spaces that were given it hold it, too
};

}  // namespace terrace
