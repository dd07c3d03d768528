// What DeviceReplicas knows: one entry a replica, the order of use, the sums.
//
// Threads      Any; one mutex. Copies are finished by the streams' threads, which take it too: nothing here
//              waits for a copy while it has the mutex.
// Invariants   D1  resident_bytes is the sum over all entries that have a buffer, listed or not.
//              D2  what is evicted is listed, Shared, and neither pinned nor part of a copy under way.
//              D3  an entry whose copy went wrong is unlisted before its event is done: nobody hits it
//                  afterwards.
//              D4  an entry that is not listed loses its buffer with its last pin and copy.
#pragma once

#include <unistd.h>

#include <atomic>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "terrace/device_replicas.h"

namespace terrace {

struct Replica::Entry {
  uint64_t id = 0;
  std::string name;
  uint64_t bytes = 0;
  std::shared_ptr<DeviceBuffer> buffer;
  DeviceEvent ready;                  // set once, before anybody else sees the entry
  std::atomic<uint64_t> version = 0;  // written under the mutex, read without: relaxed
  // Under the mutex:
  bool modified = false;
  bool copying = false;  // up
  bool writing = false;  // back
  bool listed = false;
  uint64_t pins = 0;
};

class Replica::Table final : public std::enable_shared_from_this<Table> {
 public:
  Table(std::shared_ptr<DeviceMemory> device, uint64_t budget_bytes)
      : device_(std::move(device)), budget_bytes_(budget_bytes) {}
  Status start();
  void close();  // waits for copies; afterwards only pinned entries are left

  Result<Replica> fetch(const ReplicaSource& source, uint64_t version);
  Status mark_modified(const Replica& replica);
  Result<DeviceEvent> write_back(const Replica& replica, std::span<std::byte> to, uint64_t new_version);
  Status invalidate(uint64_t id, uint64_t version_now);
  void discard(uint64_t id);
  ReplicaState state(uint64_t id, uint64_t version) const;
  void set_budget(uint64_t bytes);
  ReplicaStats stats() const;

  Replica pin_again(const std::shared_ptr<Entry>& entry);
  void unpin(Entry& entry);
  // In a forked child nothing here may be used: a thread that the child does not have may hold the mutex.
  bool forked() const { return ::getpid() != process_; }
  Status usable(const char* where) const;
  const DeviceInfo& device_info() const { return device_->info(); }

 private:
  using Order = std::list<std::shared_ptr<Entry>>;
  using Buffers = std::vector<std::shared_ptr<DeviceBuffer>>;  // to be freed without the mutex

  // All of these with the mutex.
  Replica pin(const std::shared_ptr<Entry>& entry);
  Status check_stale(const Entry& entry, const ReplicaSource& source, uint64_t version) const;
  bool evictable(const Entry& entry) const;
  std::shared_ptr<DeviceBuffer> unlist(Order::iterator place, uint64_t wanted_bytes, Buffers& dead);
  void release_if_unused(Entry& entry, Buffers& dead);
  Status make_room(const ReplicaSource& source, std::shared_ptr<DeviceBuffer>& reused, Buffers& dead);
  std::shared_ptr<DeviceBuffer> evict(Order::iterator place, uint64_t wanted_bytes, Buffers& dead);
  Result<std::shared_ptr<DeviceBuffer>> allocate(const ReplicaSource& source);
  void trim(Buffers& dead);
  Error no_room(const ReplicaSource& source, uint64_t short_bytes) const;
  std::string in_use_text() const;
  Status begin_upload(const std::shared_ptr<Entry>& entry, const ReplicaSource& source);

  Status uploaded(const std::shared_ptr<Entry>& entry, Status copied, bool moved_on);
  Status written(const std::shared_ptr<Entry>& entry, Status copied, uint64_t new_version);

  const pid_t process_ = ::getpid();
  const std::shared_ptr<DeviceMemory> device_;
  std::unique_ptr<DeviceStream> up_, down_;

  mutable std::mutex mutex_;
  Order order_;  // used last: first
  std::unordered_map<uint64_t, Order::iterator> entries_;
  uint64_t budget_bytes_;
  uint64_t resident_bytes_ = 0, pinned_bytes_ = 0, modified_bytes_ = 0, moving_bytes_ = 0;
  ReplicaStats counts_;  // only the counters
};

}  // namespace terrace
