// SPDX-License-Identifier: Apache-2.0
// Memory of two tiers behind one fixed range of addresses: local DDR up to a budget, and CXL memory in the
// added leases. An allocation keeps its address; tier_of() says which tier holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "core/base/result.h"
#include "terrace/session.h"

namespace terrace {

// hbm: of tensor pools that have a device only (terrace/tensor_pool.h).
enum class Tier : uint8_t { ddr, cxl, hbm };
std::string_view tier_name(Tier tier);  // "ddr", "cxl", "hbm"

enum class TierPreference : uint8_t {
  ddr_first,  // DDR while its budget lasts, then CXL
  ddr_only,
  cxl_only,
};

struct ArenaOptions {
  // Address space held for DDR and all leases together; costs nothing until used.
  uint64_t range_bytes = 256ull << 30;
  uint64_t ddr_bytes = 0;            // the budget, rounded up to granules; 0: no DDR
  uint64_t granule_bytes = 2 << 20;  // a power of two of at least a page; leases begin on such boundaries
  // DDR in a memory file (shared with children of a fork) instead of private anonymous memory.
  bool ddr_in_memory_file = false;
};

struct TierUse {
  uint64_t capacity_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t largest_free_bytes = 0;  // the largest allocation that would succeed, at page alignment
  uint64_t allocations = 0;
};

// Ownership  Owns its addresses and DDR, and keeps the added Leases. Destroying it unmaps everything; the
//            leases stay granted until they are released or lapse.
// Threads    All methods from any thread; one mutex. The caller orders accesses to the memory itself.
class Arena {
 public:
  // Errors    invalid_argument  a granule that is no power of two of at least a page, or DDR beyond the range
  //           out_of_memory     no such address range is free
  static Result<std::unique_ptr<Arena>> make(const ArenaOptions& options);
  virtual ~Arena() = default;

  // Maps all of `lease` at the next free place of the range; its bytes are allocated from afterwards.
  // Errors    invalid_argument    a read-only lease
  //           already_exists      it was added before
  //           lease_expired, lease_revoked  its memory is gone, or about to go
  //           capacity_exhausted  the range has no room left for it; says how much
  //           others              as Mapping::map
  virtual Status add_lease(std::shared_ptr<Lease> lease) = 0;
  // Unmaps a lease in which nothing is allocated.
  // Errors    not_found  no such lease here;  busy  allocations are left in it; says how many
  virtual Status remove_lease(LeaseId id) = 0;

  // `bytes` (at least 1, rounded up to pages) at a multiple of `alignment_bytes` (a power of two), in one piece
  // within DDR or one lease. The contents are unspecified: they may be an earlier allocation's of this arena.
  // Leases that are being revoked, or lost, are not allocated from.
  // Errors    invalid_argument    no bytes, or an alignment that is no power of two
  //           capacity_exhausted  says for each tier asked how many bytes it is short
  virtual Result<void*> allocate(uint64_t bytes, uint64_t alignment_bytes, TierPreference preference) = 0;
  // Errors    invalid_argument  not an address that allocate() returned and that is still allocated
  virtual Status free(void* address) = 0;

  // The tier of `address`, allocated or not; nullopt outside the mapped parts of the range.
  virtual std::optional<Tier> tier_of(const void* address) const = 0;
  // The lease behind `address`; nullptr for DDR and outside the mapped parts.
  virtual std::shared_ptr<Lease> lease_of(const void* address) const = 0;
  virtual TierUse use(Tier tier) const = 0;
  // The whole range, mapped or not: constant over the arena's life.
  virtual std::span<std::byte> range() const = 0;
};

}  // namespace terrace
