// Copies of a tensor space's tensors in this process's own memory (tier ddr), by tensor and version, under a
// budget of bytes: what is used again is there as long as nobody has published a newer version, what has not
// been used for longest makes room, what is needed next can be copied ahead.
//
//   auto replicas = LocalReplicas::make(*space, {.budget_bytes = 1ull << 30});
//   (*replicas)->prefetch(blocks);                     // copied in the background, in this order
//   auto block = (*replicas)->fetch(blocks[0]);        // there, or copied now; the newest version in any case
//   use(block->bytes());                               // stay as they are while `block` lives
//
// A replica is Shared, Modified or Invalid (terrace/replica_state.h), as those on a device are. One that is
// Modified goes back by write_back(), which publishes it: that needs the part that the tensor is in.
//
// Once the space's lease is lost, replicas that are here are still given: of the version that was newest when
// they were last looked at, as nothing says any more whether another one followed. What is not here is
// lease_expired; so are write_back() and whatever else needs the memory. TensorSpace::health() tells.
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
  // What may be copied ahead and not used yet; the rest of the list waits. 0: half the budget.
  uint64_t prefetch_bytes_max = 0;
};

struct LocalReplicaStats {
  uint64_t budget_bytes = 0;
  uint64_t resident_bytes = 0;  // of the budget
  uint64_t pinned_bytes = 0;    // of these: somebody has a LocalReplica
  uint64_t modified_bytes = 0;  // of these: not written back
  uint64_t replicas = 0;
  uint64_t hits = 0;        // what was there and current, or on its way
  uint64_t hits_ahead = 0;  // of these: copied ahead, and used for the first time
  uint64_t misses = 0;      // what fetch() copied
  uint64_t stale = 0;       // copies that were there, of an older version or of a tensor that is gone
  uint64_t failed = 0;      // copies that came to nothing: removed, never published, its writer died
  uint64_t evicted = 0, evicted_bytes = 0;
  uint64_t prefetched = 0;          // copied ahead
  uint64_t prefetch_dropped = 0;    // asked to be, but there was no room or nothing to copy
  uint64_t prefetch_pending = 0;    // of the list: not looked at yet
  uint64_t copied_bytes = 0;        // from the space, for fetch() and ahead
  uint64_t written_back_bytes = 0;  // into it
};

// A replica in use: its bytes stay, as they are, while this lives, also when its tensor goes on to another
// version or is removed.
//
// Ownership  Pins the replica; lets it go when destroyed. May outlive the LocalReplicas and the space.
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

  bool valid() const { return entry_ != nullptr; }  // the others need one that is
  const SharedTensor& tensor() const;
  std::span<const std::byte> bytes() const;  // 64-byte aligned
  // Of which they are a copy, or as which they were written back; 0 for one that was begun by overwrite().
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
  virtual ~LocalReplicas() = default;  // what was not written back is lost

  // The tensor's newest version, as of some moment during this call: a replica that is current, or a new copy.
  // A Modified replica is given as it is: whoever uses it in other threads orders that with who modifies it.
  // Errors    capacity_exhausted  tier ddr: the text names the tensor, how many bytes short, and what is
  //                               pinned, modified and being copied. Nothing was evicted for it
  //           busy                it was modified here, and another version was published since: discard it.
  //                               Or: as TensorSpace::read()
  //           not_found, unavailable, corrupt, lease_expired  as TensorSpace::read()
  //           invalid_argument    a tensor of another space, or without bytes
  //           out_of_memory       within the budget, but this process got no memory
  //           unavailable         in a forked child
  virtual Result<LocalReplica> fetch(const SharedTensor& tensor) = 0;

  // Tensors that are wanted next, in this order, are copied by a thread of this object, as far as
  // prefetch_bytes_max allows until some of them are used. What cannot be copied (no room, not published,
  // removed) is left out; fetch() says why. The list takes the place of what is left of the one before.
  virtual void prefetch(std::span<const SharedTensor> tensors) = 0;

  // A Modified replica whose bytes are the caller's to fill: nothing is copied, whatever the tensor has.
  // Errors    permission_denied  the tensor is in another holder's part
  //           busy               somebody here uses its replica, or has modified it
  //           capacity_exhausted, out_of_memory, invalid_argument  as fetch()
  virtual Result<LocalReplica> overwrite(const SharedTensor& tensor) = 0;
  // The bytes of a replica, to change. It stays, Modified, until write_back() or discard().
  // Errors    permission_denied  the tensor is in another holder's part
  //           busy               others here use it, or it is being written back
  //           cancelled          it is the replica no more: the tensor has a newer version, or was discarded
  virtual Result<std::span<std::byte>> mark_modified(const LocalReplica& replica) = 0;
  // The same of one that is Modified already, as overwrite() gives it.
  virtual Result<std::span<std::byte>> modified_bytes(const LocalReplica& replica) = 0;
  // Publishes a Modified replica; it is Shared, at the version that this returns. Who publishes the same tensor
  // past the replicas meanwhile, from another thread of this holder, is noticed when it has two slots; of a
  // tensor with one slot the caller orders the two.
  // Errors    invalid_argument  it is not Modified
  //           busy              it is being written back; or another version was published since it was copied;
  //                             or as TensorSpace::publish()
  //           not_found, permission_denied  as TensorSpace::publish(). It stays Modified
  virtual Result<uint64_t> write_back(const LocalReplica& replica) = 0;

  // Drops the replica, modified or not. Those who use it keep its bytes.
  virtual void discard(const SharedTensor& tensor) = 0;

  virtual ReplicaState state(const SharedTensor& tensor) = 0;
  // Evicts down to a smaller budget what can be; the rest when it is let go.
  virtual void set_budget(uint64_t bytes) = 0;
  virtual LocalReplicaStats stats() const = 0;
};

}  // namespace terrace
