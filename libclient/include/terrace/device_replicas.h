// Copies of host tensors in a device's memory, by tensor and version, under a budget of bytes: what is used
// again is there, what has not been used for longest makes room, what the host has changed is copied again.
//
//   auto replicas = DeviceReplicas::make(device, {.budget_bytes = 40ull << 30});
//   auto replica = (*replicas)->fetch({.id = record.id, .name = "h.0.mlp", .bytes = bytes}, record.version);
//   (*replicas)->fetch(next_layer, next_version);    // copied while the first one is used
//   replica->ready().wait();
//   launch_kernel(replica->address());               // stays there while `replica` lives
//
// A replica is Shared (what the host has at that version), Modified (the device has changed it; the host has an
// older one) or Invalid (the host has a newer one, or there is none): found by comparing versions, as readers
// of shared tensors do. Whoever modifies one needs the tensor's write ownership on the host, too: this is a
// cache, not an arbiter.
//
// Threads     Any. A hit takes a mutex and allocates nothing. Copies run on two streams of the device, up and
// down.
// Invariants  (in libclient/device/replica_table.h)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "core/base/result.h"
#include "terrace/device_memory.h"
#include "terrace/dlpack.h"
#include "terrace/replica_state.h"

namespace terrace {

// A host tensor to copy.
//
// Ownership  Nothing: `bytes` must stay mapped until the replica's ready() is done.
struct ReplicaSource {
  uint64_t id = 0;             // the tensor's: one id is one tensor
  std::string_view name = {};  // for errors
  std::span<const std::byte> bytes = {};
  // Asked on the stream's thread after the copy: when it is no longer the version that was fetched, a writer
  // was at the bytes meanwhile, and the replica is refused (ready() fails with `busy`). Leave it out where
  // nobody can write: for a version that is double-buffered, or held.
  std::function<uint64_t()> version_now = {};
};

struct DeviceReplicasOptions {
  uint64_t budget_bytes = 0;  // 0: nine tenths of the device
};

struct ReplicaStats {
  uint64_t budget_bytes = 0;
  uint64_t resident_bytes = 0;  // of the budget
  uint64_t pinned_bytes = 0;    // of these: somebody has a Replica
  uint64_t modified_bytes = 0;  // of these: not written back
  uint64_t replicas = 0;
  uint64_t hits = 0;     // what was there, or on its way
  uint64_t misses = 0;   // what was copied
  uint64_t stale = 0;    // of the misses: there was one of an older version
  uint64_t refused = 0;  // copies that a writer was faster than
  uint64_t failed = 0;   // copies that failed otherwise
  uint64_t evicted = 0, evicted_bytes = 0;
  uint64_t uploaded_bytes = 0, written_back_bytes = 0;
};

// A replica in use: stays in the device's memory, at its address, while this lives, also when the tensor's
// version moves on.
//
// Ownership  Pins the replica; lets it go when destroyed. May outlive the DeviceReplicas.
// Threads    One at a time.
class Replica {
 public:
  class Table;
  struct Entry;

  Replica() = default;
  Replica(std::shared_ptr<Table> table, std::shared_ptr<Entry> entry);  // pinned already
  Replica(Replica&&) noexcept = default;
  Replica& operator=(Replica&& other) noexcept;
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;
  ~Replica() { release(); }
  void release();

  bool valid() const { return entry_ != nullptr; }  // the others need one that is
  uint64_t id() const;
  uint64_t version() const;  // of the host bytes that it was copied from, or was written back as
  uint64_t address() const;
  uint64_t bytes() const;
  const std::shared_ptr<DeviceBuffer>& buffer() const;
  // When the bytes are there.
  // Errors    those of DeviceEvent::wait();  busy  a writer was at the host's bytes during the copy: fetch
  // again
  const DeviceEvent& ready() const;

  // For DLPack, as a dense `shape` of `dtype`, which must need no more than these bytes; pins the replica as
  // long as it lives. The consumer may write to it only after mark_modified().
  // Errors    busy              not ready() yet
  //           invalid_argument  says how many bytes it is short;  others as tensor_bytes()
  Result<dlpack::Memory> dlpack_memory(DType dtype, const Shape& shape) const;

 private:
  friend class Table;
  std::shared_ptr<Table> table_;
  std::shared_ptr<Entry> entry_;
};

class DeviceReplicas {
 public:
  // Errors    as DeviceMemory::make_stream and use()
  static Result<std::unique_ptr<DeviceReplicas>> make(std::shared_ptr<DeviceMemory> device,
                                                      const DeviceReplicasOptions& options);
  virtual ~DeviceReplicas() = default;  // waits for the copies under way; what was not written back is lost

  // The replica of the tensor at this version: one that is there, or a new one, whose copy has begun.
  // Errors    capacity_exhausted  tier hbm: the text names the tensor, how many bytes short, and what is
  //                               pinned, modified and on its way. Nothing was evicted for it, unless the
  //                               device was short although the budget was not.
  //           busy                modified on the device since an older version: write it back, or discard it
  //           invalid_argument    an older version than the one here (acquire the tensor again), or no bytes,
  //                               or another size under the same id and version
  //           others              as DeviceStream::upload
  virtual Result<Replica> fetch(const ReplicaSource& source, uint64_t version) = 0;

  // The device is about to change the replica's bytes. Whoever fetches this version gets what it makes of it.
  // Errors    busy  not ready(), or being written back;  cancelled  the host has a newer version, or it was
  // discarded
  virtual Status mark_modified(const Replica& replica) = 0;

  // Copies a modified replica to the host's bytes, of which the caller is the writer (the device must be done
  // with it). When the event is done well, it is Shared as `new_version`, which the caller then publishes.
  // Errors    invalid_argument  not modified, other bytes than its own, a version that is not newer
  //           busy              being written back;  others as DeviceStream::download
  virtual Result<DeviceEvent> write_back(const Replica& replica, std::span<std::byte> to,
                                         uint64_t new_version) = 0;

  // The host's version is now this: an older Shared replica is Invalid, and dropped when nobody has it pinned.
  // Errors    busy  modified here since an older version: both sides have changed it; write_back or discard
  // decides
  virtual Status invalidate(uint64_t id, uint64_t version_now) = 0;
  // Drops the replica, modified or not. Those who have it pinned keep its bytes.
  virtual void discard(uint64_t id) = 0;

  virtual ReplicaState state(uint64_t id, uint64_t version) const = 0;
  // Evicts down to a smaller budget what can be; the rest when it is let go.
  virtual void set_budget(uint64_t bytes) = 0;
  virtual ReplicaStats stats() const = 0;
};

}  // namespace terrace
