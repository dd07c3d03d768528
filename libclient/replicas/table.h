// SPDX-License-Identifier: Apache-2.0
// What LocalReplicas knows: one entry a replica, kept in a cache; the list to copy ahead.
//
// Threads      Any; one mutex. Bytes are copied without it, by the thread that wants them.
// Invariants   K1 to K3 of the cache (libclient/cache/replica_cache.h), and
//              L1  an entry that is given out was current at a moment of that call, or is Modified, or its
//                  lease is lost.
//              L2  a buffer whose entry is Shared is never stored to: what is stale gets another entry.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/sync/mutex.h"
#include "libclient/cache/replica_cache.h"
#include "terrace/local_replicas.h"

namespace terrace {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using ReplicaMemory = std::unique_ptr<std::byte, FreeMemory>;

struct LocalReplica::Entry : CachedReplica<LocalReplica::Entry, ReplicaMemory> {
  TensorIdentity key() const { return tensor.identity(); }
  std::span<std::byte> span() const { return {buffer.get(), bytes}; }

  SharedTensor tensor;
  // Under the mutex:
  uint64_t ahead = 0;   // the list for which it was copied, until it is used; 0: for none
  uint64_t wanted = 0;  // the last list that it was looked at for, until it is used
};

class LocalReplica::Table final : public std::enable_shared_from_this<Table> {
 public:
  Table(TensorSpace& space, const LocalReplicasOptions& options);
  Status start();
  void close();  // afterwards only pinned entries are left

  Result<LocalReplica> fetch(const SharedTensor& tensor);
  void prefetch(std::span<const SharedTensor> tensors);
  Result<LocalReplica> overwrite(const SharedTensor& tensor);
  Result<std::span<std::byte>> modify(const LocalReplica& replica, bool already);
  Result<uint64_t> write_back(const LocalReplica& replica);
  void discard(const SharedTensor& tensor);
  ReplicaState state(const SharedTensor& tensor);
  void set_budget(uint64_t bytes);
  LocalReplicaStats stats() const;
  void unpin(Entry& entry);
  // In a forked child nothing here may be used: a thread that the child does not have may hold the mutex.
  bool forked() const { return ::getpid() != process_; }

 private:
  struct Hash {
    size_t operator()(const TensorIdentity& of) const {
      return ((uint64_t{of.part} << 32 | of.record) * 0x9e3779b97f4a7c15ull) ^ of.incarnation;
    }
  };
  using Cache = ReplicaCache<TensorIdentity, Entry, Hash>;
  enum class Patience : uint8_t { waits_for_room, at_once };  // prefetching never waits
  enum class Found : uint8_t { current, absent, waited };

  // Whether what is here may be given out: it is current, or the space's memory is gone, with whoever could
  // have published another version.
  bool good(const SharedTensor& tensor, uint64_t version) const {
    return space_.is_current(tensor, version) || !space_.health().ok();
  }
  Status usable(const SharedTensor& tensor, const char* where) const;
  Result<Found> look(const SharedTensor& tensor, Cache::Freed& freed) TERRACE_REQUIRES(mutex_);
  LocalReplica pin(std::shared_ptr<Entry> entry) TERRACE_REQUIRES(mutex_);
  void use(Entry& entry) TERRACE_REQUIRES(mutex_);
  Result<bool> reserve(const SharedTensor& tensor, Patience patience, const char* where, Cache::Freed& freed)
      TERRACE_REQUIRES(mutex_);
  void forget_ahead(Entry& entry) TERRACE_REQUIRES(mutex_);
  Result<std::shared_ptr<Entry>> enter(const SharedTensor& tensor, const char* where, Cache::Freed& freed)
      TERRACE_REQUIRES(mutex_);
  Result<uint64_t> publish(Entry& entry, uint64_t base) TERRACE_EXCLUDES(mutex_);
  Status copy_in(const std::shared_ptr<Entry>& entry, uint64_t wait_ns, Cache::Freed& freed)
      TERRACE_REQUIRES(mutex_);

  void work_ahead();
  bool may_go_ahead() const TERRACE_REQUIRES(mutex_);
  void copy_ahead(const SharedTensor& tensor, Cache::Freed& freed) TERRACE_REQUIRES(mutex_);

  TensorSpace& space_;
  const uint64_t wait_ns_;
  const uint64_t ahead_bytes_asked_;
  const pid_t process_ = ::getpid();

  mutable Mutex mutex_;
  ConditionVariable changed_;      // a copy came to its end
  ConditionVariable ahead_wakes_;  // a list came, or some of it was used, or the end
  Cache cache_ TERRACE_GUARDED_BY(mutex_);
  uint64_t copying_ahead_ TERRACE_GUARDED_BY(mutex_) = 0;  // copies under way that nobody waits for
  LocalReplicaStats counts_ TERRACE_GUARDED_BY(mutex_);    // only the counters of copies

  std::vector<SharedTensor> ahead_list_ TERRACE_GUARDED_BY(mutex_);
  size_t ahead_next_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t ahead_number_ TERRACE_GUARDED_BY(mutex_) = 0;  // of the list
  uint64_t ahead_bytes_ TERRACE_GUARDED_BY(mutex_) = 0;   // copied for this list and not used yet
  bool closing_ TERRACE_GUARDED_BY(mutex_) = false;
  std::unique_ptr<std::thread> ahead_thread_;
};

Error replica_error(ErrorCode code, const char* where, const SharedTensor& tensor, const std::string& text);

}  // namespace terrace
