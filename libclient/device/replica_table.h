// SPDX-License-Identifier: Apache-2.0
// What DeviceReplicas knows: one entry a replica, kept in a cache; the copies up and back.
//
// Threads      Any; one mutex. Copies are finished by the streams' threads, which take it too: nothing here
//              waits for a copy while it has the mutex.
// Invariants   K1 to K3 of the cache (libclient/cache/replica_cache.h), and
//              D1  an entry whose copy went wrong is unlisted before its event is done: nobody hits it
//                  afterwards.
#pragma once

#include <unistd.h>

#include <string>

#include "core/base/sync/mutex.h"
#include "libclient/cache/replica_cache.h"
#include "terrace/device_replicas.h"

namespace terrace {

struct Replica::Entry : CachedReplica<Replica::Entry, std::shared_ptr<DeviceBuffer>> {
  uint64_t key() const { return id; }

  uint64_t id = 0;
  std::string name;
  DeviceEvent ready;  // set once, before anybody else sees the entry
};

class Replica::Table final : public std::enable_shared_from_this<Table> {
 public:
  Table(std::shared_ptr<DeviceMemory> device, uint64_t budget_bytes)
      : device_(std::move(device)), cache_(budget_bytes) {}
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
  using Cache = ReplicaCache<uint64_t, Entry>;

  Replica pin(std::shared_ptr<Entry> entry) TERRACE_REQUIRES(mutex_);
  Status check_stale(const Entry& entry, const ReplicaSource& source, uint64_t version) const
      TERRACE_REQUIRES(mutex_);
  Result<std::shared_ptr<DeviceBuffer>> make_buffer(const ReplicaSource& source, Cache::Freed& freed)
      TERRACE_REQUIRES(mutex_);
  Status begin_upload(const std::shared_ptr<Entry>& entry, const ReplicaSource& source)
      TERRACE_REQUIRES(mutex_);

  Status uploaded(const std::shared_ptr<Entry>& entry, Status copied, bool moved_on);
  Status written(const std::shared_ptr<Entry>& entry, Status copied, uint64_t new_version);

  const pid_t process_ = ::getpid();
  const std::shared_ptr<DeviceMemory> device_;
  std::unique_ptr<DeviceStream> up_, down_;

  mutable Mutex mutex_;
  Cache cache_ TERRACE_GUARDED_BY(mutex_);
  ReplicaStats counts_ TERRACE_GUARDED_BY(mutex_);  // only the counters of copies
};

}  // namespace terrace
