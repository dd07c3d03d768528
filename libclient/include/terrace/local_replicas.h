// SPDX-License-Identifier: Apache-2.0
// A cache of a tensor space's tensors in this process's own memory (tier ddr), by tensor and version, under a
// budget of bytes. A copy is used until a newer version is published; the least recently used one makes room.
// Tensors that are needed next can be copied ahead.
//
//   auto replicas = LocalReplicas::make(*space, {.budget_bytes = 1ull << 30});
//   (*replicas)->prefetch(blocks);                     // copied in the background, in this order
//   auto block = (*replicas)->fetch(blocks[0]);        // there, or copied now; the newest version in any case
//   use(block->bytes());                               // stay as they are while `block` lives
//
// A replica is Shared, Modified or Invalid (terrace/replica_state.h), as on a device. write_back() publishes a
// Modified replica; for that this holder must own the tensor's part.
//
// After the loss of the space's lease fetch() still returns present replicas. Their version was the newest when
// it was last checked; a newer one can exist. Other tensors, write_back() and all other calls that need the
// memory fail with lease_expired. TensorSpace::health() reports the loss.
//
// Threads     Any. A hit takes a mutex, one look at the tensor's word, and allocates nothing. One thread of its
//             own copies ahead.
// Invariants  (in libclient/replicas/table.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/result.h"
#include "terrace/replica_state.h"
#include "terrace/tensor_space.h"

namespace terrace {

struct LocalReplicasOptions {
  uint64_t budget_bytes = 256ull << 20;
  uint64_t wait_ns = 1'000'000'000;  // for a tensor that is being written, as TensorSpace::read()
  // At most so much is copied ahead and not used yet; the rest of the list waits. 0: half the budget.
  uint64_t prefetch_bytes_max = 0;
};

struct LocalReplicaStats {
  uint64_t budget_bytes = 0;
  uint64_t resident_bytes = 0;  // of the budget
  uint64_t pinned_bytes = 0;    // of these: somebody has a LocalReplica
  uint64_t modified_bytes = 0;  // of these: not written back
  uint64_t replicas = 0;
  uint64_t hits = 0;        // a current replica was there, or its copy was under way
  uint64_t hits_ahead = 0;  // of these: copied ahead, and used for the first time
  uint64_t misses = 0;      // copies by fetch()
  uint64_t stale = 0;       // replicas found of an older version, or of a removed tensor
  uint64_t failed = 0;      // copies that failed: tensor removed or never published, or its writer died
  uint64_t evicted = 0, evicted_bytes = 0;
  uint64_t prefetched = 0;          // copied ahead
  uint64_t prefetch_dropped = 0;    // on a list, but there was no room or nothing to copy
  uint64_t prefetch_pending = 0;    // of the list: not looked at yet
  uint64_t copied_bytes = 0;        // from the space, for fetch() and ahead
  uint64_t written_back_bytes = 0;  // into it
};

// A replica in use: its bytes stay unchanged while this object lives. So they do when the tensor gets another
// version or is removed.
//
// Ownership  Pins the replica until destroyed. May outlive the LocalReplicas and the space.
// Threads    One at a time.
class LocalReplica {
 public:
  class Table;
  struct Entry;

  LocalReplica() = default;
  LocalReplica(std::shared_ptr<Table> table, std::shared_ptr<Entry> entry);  // pinned already
  LocalReplica(LocalReplica&&) noexcept = default;
  LocalReplica& operator=(LocalReplica&& other) noexcept;
  LocalReplica(const LocalReplica&) = delete;
  LocalReplica& operator=(const LocalReplica&) = delete;
  ~LocalReplica() { release(); }
  void release();

  bool valid() const { return entry_ != nullptr; }  // required by the calls below
  const SharedTensor& tensor() const;
  std::span<const std::byte> bytes() const;  // 64-byte aligned
  // The version that was copied, or as which the bytes were written back; 0 for a replica of overwrite().
  uint64_t version() const;

 private:
  friend class Table;
  std::shared_ptr<Table> table_;
  std::shared_ptr<Entry> entry_;
};

// Ownership  Uses the space, which must outlive it.
class LocalReplicas {
 public:
  // Errors    invalid_argument  no budget;  out_of_memory  no thread
  static Result<std::unique_ptr<LocalReplicas>> make(TensorSpace& space, const LocalReplicasOptions& options);
  virtual ~LocalReplicas() = default;  // modified bytes are lost

  // The tensor's newest version, as of some moment during this call: a current replica, or a new copy. A
  // Modified replica is returned as it is: the program must order its use in other threads with the changes.
  // Errors    capacity_exhausted  tier ddr: the text names the tensor, how many bytes short, and the bytes
  //                               pinned, modified and being copied. Nothing was evicted for it
  //           busy                it was modified here, and another version was published since: discard it.
  //                               Or: as TensorSpace::read()
  //           not_found, unavailable, corrupt, lease_expired  as TensorSpace::read()
  //           invalid_argument    a tensor of another space, or without bytes
  //           out_of_memory       within the budget, but this process got no memory
  //           unavailable         in a forked child
  virtual Result<LocalReplica> fetch(const SharedTensor& tensor) = 0;

  // A thread of this object copies these tensors ahead, in this order, within prefetch_bytes_max; used ones do
  // not count any more. A tensor that cannot be copied (no room, not published, removed) is left out; fetch()
  // says why. The list replaces the rest of the list before.
  virtual void prefetch(std::span<const SharedTensor> tensors) = 0;

  // A Modified replica; the caller fills its bytes. Nothing is copied from the tensor.
  // Errors    permission_denied  the tensor is in another holder's part
  //           busy               somebody here uses its replica, or has modified it
  //           capacity_exhausted, out_of_memory, invalid_argument  as fetch()
  virtual Result<LocalReplica> overwrite(const SharedTensor& tensor) = 0;
  // The bytes of a replica, to change. It stays, Modified, until write_back() or discard().
  // Errors    permission_denied  the tensor is in another holder's part
  //           busy               others here use it, or it is being written back
  //           cancelled          the replica is out of date (the tensor has a newer version), or was discarded
  virtual Result<std::span<std::byte>> mark_modified(const LocalReplica& replica) = 0;
  // The same of one that is Modified already, as overwrite() gives it.
  virtual Result<std::span<std::byte>> modified_bytes(const LocalReplica& replica) = 0;
  // Publishes a Modified replica; it is Shared then, at the returned version. If another thread of this holder
  // publishes the tensor directly at the same time, write_back() notices it for a tensor with two slots. For a
  // tensor with one slot the caller must order the two.
  // Errors    invalid_argument  it is not Modified
  //           busy              it is being written back; or another version was published since it was copied;
  //                             or as TensorSpace::publish()
  //           not_found, permission_denied  as TensorSpace::publish(). It stays Modified
  virtual Result<uint64_t> write_back(const LocalReplica& replica) = 0;

  // Drops the replica, modified or not. A LocalReplica object that pins it keeps its bytes.
  virtual void discard(const SharedTensor& tensor) = 0;

  virtual ReplicaState state(const SharedTensor& tensor) = 0;
  // Evicts unpinned replicas down to a smaller budget; pinned ones once they are unpinned.
  virtual void set_budget(uint64_t bytes) = 0;
  virtual LocalReplicaStats stats() const = 0;
};

}  // namespace terrace
