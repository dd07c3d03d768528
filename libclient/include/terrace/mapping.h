// A lease's memory in this process, mapped through libpmem2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "terrace/session.h"

namespace terrace {

// Ownership  Unmaps when destroyed. Holds its own reference to the Lease.
// Threads    The object is immutable; what is mapped is shared memory and the caller's to order.
class Mapping {
 public:
  // Maps all of `lease`, writable when its access is read_write.
  // Errors    lease_expired, lease_revoked  the descriptor is dead already
  //           out_of_memory                 no address space
  //           unsupported                   libpmem2 refuses the object; the detail gives its reason
  static Result<std::unique_ptr<Mapping>> map(std::shared_ptr<Lease> lease);
  virtual ~Mapping() = default;

  virtual std::span<std::byte> bytes() = 0;  // empty for a read-only mapping
  virtual std::span<const std::byte> const_bytes() const = 0;
  virtual const std::shared_ptr<Lease>& lease() const = 0;
  // Makes stores to `range` visible beyond this processor's caches, by the flush that the memory's store
  // granularity asks for (nothing on tmpfs, cache-line write-back on dax).
  virtual void persist(std::span<const std::byte> range) = 0;
  // "byte", "cache line" or "page": the store granularity that libpmem2 found.
  virtual const char* store_granularity() const = 0;
};

}  // namespace terrace
