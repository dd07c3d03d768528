// SPDX-License-Identifier: Apache-2.0
// A cache of host tensors in a device's memory, by tensor and version, under a budget of bytes. The least
// recently used replica makes room; a tensor that the host has changed is copied again.
//
//   auto replicas = DeviceReplicas::make(device, {.budget_bytes = 40ull << 30});
//   auto replica = (*replicas)->fetch({.id = record.id, .name = "h.0.mlp", .bytes = bytes}, record.version);
//   (*replicas)->fetch(next_layer, next_version);    // copied while the first one is used
//   replica->ready().wait();
//   launch_kernel(replica->address());               // stays there while `replica` lives
//
// A replica is Shared (equal to the host's bytes at that version), Modified (the device has changed it; the
// host has an older version) or Invalid (the host has a newer version, or there is no replica). The state comes
// from comparing versions. To modify a replica a program needs the tensor's write ownership on the host, too:
// this cache does not arbitrate between writers.
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
  // Called on the stream's thread after the copy. If it does not return the fetched version, a writer stored to
  // the bytes during the copy, and ready() fails with `busy`. Leave it out for a version that no writer can
  // change: a double-buffered or a held one.
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
  uint64_t hits = 0;     // the replica was there, or its copy was under way
  uint64_t misses = 0;   // a copy was begun
  uint64_t stale = 0;    // of the misses: there was a replica of an older version
  uint64_t refused = 0;  // copies that a writer was faster than
  uint64_t failed = 0;   // copies that failed otherwise
  uint64_t evicted = 0, evicted_bytes = 0;
  uint64_t uploaded_bytes = 0, written_back_bytes = 0;
};

// A replica in use: it stays in the device's memory, at its address, while this object lives. So it does when
// the tensor gets a newer version.
//
// Ownership  Pins the replica until destroyed. May outlive the DeviceReplicas.
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

  bool valid() const { return entry_ != nullptr; }  // required by the calls below
  uint64_t id() const;
  uint64_t version() const;  // of the host bytes that it was copied from, or was written back as
  uint64_t address() const;
  uint64_t bytes() const;
  const std::shared_ptr<DeviceBuffer>& buffer() const;
  // Done when the bytes are in the device's memory.
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
  virtual ~DeviceReplicas() = default;  // waits for the copies under way; modified bytes are lost

  // The replica of the tensor at this version: a present one, or a new one whose copy has begun.
  // Errors    capacity_exhausted  tier hbm: the text names the tensor, how many bytes short, and the bytes
  //                               pinned, modified and being copied. Nothing was evicted, unless the device
  //                               was full within the budget.
  //           busy                modified on the device since an older version: write it back, or discard it
  //           invalid_argument    an older version than the one here (acquire the tensor again), or no bytes,
  //                               or another size under the same id and version
  //           others              as DeviceStream::upload
  virtual Result<Replica> fetch(const ReplicaSource& source, uint64_t version) = 0;

  // The device is about to change the replica's bytes. A fetch() of this version then returns these bytes.
  // Errors    busy  not ready(), or being written back;  cancelled  the host has a newer version, or it was
  // discarded
  virtual Status mark_modified(const Replica& replica) = 0;

  // Copies a modified replica to the host's bytes; the caller is their writer, and the device has finished with
  // the replica. After success of the event it is Shared as `new_version`; the caller then publishes that.
  // Errors    invalid_argument  not modified, other bytes than its own, a version that is not newer
  //           busy              being written back;  others as DeviceStream::download
  virtual Result<DeviceEvent> write_back(const Replica& replica, std::span<std::byte> to,
                                         uint64_t new_version) = 0;

  // The host's version is now this: an older Shared replica is Invalid, and dropped when nobody has it pinned.
  // Errors    busy  modified here since an older version: both sides have changed it; write_back or discard
  // decides
  virtual Status invalidate(uint64_t id, uint64_t version_now) = 0;
  // Drops the replica, modified or not. A Replica object that pins it keeps its bytes.
  virtual void discard(uint64_t id) = 0;

  virtual ReplicaState state(uint64_t id, uint64_t version) const = 0;
  // Evicts unpinned replicas down to a smaller budget; pinned ones once they are unpinned.
  virtual void set_budget(uint64_t bytes) = 0;
  virtual ReplicaStats stats() const = 0;
};

}  // namespace terrace
