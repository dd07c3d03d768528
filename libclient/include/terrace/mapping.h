// SPDX-License-Identifier: Apache-2.0
// A lease's memory in this process, mapped through libpmem2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "terrace/session.h"

namespace terrace {

// The result of a resize: the mapping kept its address, or has a new one.
enum class Remapped : uint8_t { in_place, elsewhere };

// Stops all writers, calls `body` exactly once, lets them go on. With a lock that every writer takes:
//   [&](const auto& body) { std::lock_guard lock(mutex); body(); }
using PauseWriters = std::function<void(const std::function<void()>& body)>;

// Ownership  Unmaps when destroyed. Holds its own reference to the Lease.
// Threads    resize() and move() need one thread, and no other call at the same time. move() changes neither
//            address nor length, so readers of the bytes go on. The mapped bytes are shared memory: the caller
//            orders accesses to them.
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
  // After each step the lease is complete. The new memory is mapped before the commit, because the old memory
  // is fenced once the commit is durable, maybe before the answer arrives. So readers need not pause: they find
  // the same bytes at every moment. If the manager dies between the commit and its answer, the writers stay
  // paused until it is back and says which memory is the lease's. At its start it fences the other memory, and
  // a reader of the range at that moment can get SIGBUS. If that is not acceptable, pause readers too.
  //
  // Errors    those of Lease::begin_move(); cancelled and others of LeaseMove::commit(): the mapping is on the
  //           old memory, try again
  //           invalid_argument  the lease was resized: resize() first; or `pause` did not call its argument
  //           cancelled with a closed Session: the mapping has the new memory if the commit was sent
  //           lease_expired, lease_revoked  the lease is lost
  virtual Status move(const PauseWriters& pause) = 0;
};

// The lease behind `memory`, if that begins in a Mapping of this process, or in the program's own mapping of a
// lease's descriptor; else nullptr. The second way needs a Lease object in this process: a handle in another
// process is not enough.
//
// Threads   Any.
std::shared_ptr<Lease> lease_of_memory(std::span<const std::byte> memory);

// true: `memory` begins in a mapping of a file with a name of DAX devices (daxX.Y). Other machines may have a
// way to such memory.
bool is_dax_memory(std::span<const std::byte> memory);

}  // namespace terrace
