// A lease's memory in this process, mapped through libpmem2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "terrace/session.h"

namespace terrace {

// Whether the bytes are where they were.
enum class Remapped : uint8_t { in_place, elsewhere };

// Stops all writers, calls `body` exactly once, lets them go on. With a lock that every writer takes:
//   [&](const auto& body) { std::lock_guard lock(mutex); body(); }
using PauseWriters = std::function<void(const std::function<void()>& body)>;

// Ownership  Unmaps when destroyed. Holds its own reference to the Lease.
// Threads    resize() and move() are one thread's at a time, with no other call meanwhile; move() changes
//            neither address nor length, so that readers of the bytes go on. What is mapped is shared memory
//            and the caller's to order.
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

  // Follows the lease to its present size, after Lease::resize(). A shrunk one stays where it is. A grown one
  // does too when the addresses behind it are free; otherwise it is mapped elsewhere, and pointers into the old
  // place are dead. Addresses that a shrink left unused are kept for the next growth.
  // Errors    as map(); the mapping is then what it was
  virtual Result<Remapped> resize() = 0;

  // Moves the lease to other memory, at the same address and with the same bytes:
  //
  //   begin the move; then, with the writers paused: copy the bytes, map the new memory over the old one in one
  //   step, commit; if that fails, map the old memory back
  //
  // Each step leaves the lease whole. The new memory is mapped before the commit since the old one is fenced as
  // soon as that is durable, maybe before we hear of it: readers, who need not pause, find the same bytes at
  // every moment. If the manager dies between the commit and its answer, the writers stay paused until it is
  // back and says which memory is the lease's; at its start it fences the other one, so that a reader that
  // touches the range in that moment can get SIGBUS. Pause readers too where that must not be.
  //
  // Errors    those of Lease::begin_move(); cancelled and others of LeaseMove::commit(): the mapping is on the
  //           old memory, try again
  //           invalid_argument  the lease was resized: resize() first; or `pause` did not call its argument
  //           cancelled with a closed Session: the mapping is on the new memory if the commit was sent
  //           lease_expired, lease_revoked  the lease is lost
  virtual Status move(const PauseWriters& pause) = 0;
};

// The lease behind `memory`, where that begins inside a Mapping of this process, or in what it mapped itself from
// the descriptor of a lease that it has; else nothing. Not found by a descriptor: a lease of which only another
// process has a handle.
//
// Threads   Any.
std::shared_ptr<Lease> lease_of_memory(std::span<const std::byte> memory);

// Whether `memory` begins in a mapping of a file that is named as DAX devices are (daxX.Y): what is not ordinary
// memory of this machine alone, maybe.
bool is_dax_memory(std::span<const std::byte> memory);

}  // namespace terrace
