// What LocalReplicas knows: one entry a replica, the order of use, the sums, the list to copy ahead.
//
// Threads      Any; one mutex. Bytes are copied without it, by the thread that wants them.
// Invariants   L1  resident_bytes is the sum over all entries that have a buffer, listed or not.
//              L2  what is evicted is listed, Shared, and neither pinned, nor being copied or written back.
//              L3  an entry that is given out was current at a moment of that call, or is Modified, or its
//                  lease is lost.
//              L4  an entry that is not listed loses its buffer with its last pin.
//              L5  a buffer whose entry is Shared is never stored to: what is stale gets another entry.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "terrace/local_replicas.h"

namespace terrace {

struct ReplicaBuffer {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static ReplicaBuffer make(uint64_t bytes) {
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    return {std::unique_ptr<std::byte, Free>(memory), bytes};
  }
  std::span<std::byte> span() const { return {at.get(), bytes}; }

  std::unique_ptr<std::byte, Free> at;
  uint64_t bytes = 0;
};

struct LocalReplica::Entry {
  SharedTensor tensor;
  uint64_t bytes = 0;
  ReplicaBuffer buffer;
  std::atomic<uint64_t> version = 0;  // written under the mutex, read without: relaxed
  // Under the mutex:
  bool modified = false;
  bool copying = false;
  bool writing = false;  // back
  bool listed = false;
  uint64_t pins = 0;
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
  using Lock = std::unique_lock<std::mutex>;
  using Order = std::list<std::shared_ptr<Entry>>;
  using Buffers = std::vector<ReplicaBuffer>;                 // to be freed without the mutex
  enum class Patience : uint8_t { waits_for_room, at_once };  // prefetching never waits
  enum class Found : uint8_t { current, absent, waited };

  // Whether what is here may be given out: it is current, or the space's memory is gone, with whoever could
  // have published another version.
  bool good(const SharedTensor& tensor, uint64_t version) const {
    return space_.is_current(tensor, version) || !space_.health().ok();
  }
  Status usable(const SharedTensor& tensor, const char* where) const;
  // All of these with the mutex.
  Result<Found> look(const SharedTensor& tensor, Lock& lock, Buffers& dead);
  LocalReplica pin(const std::shared_ptr<Entry>& entry);
  void use(Order::iterator place);
  void unlist(Order::iterator place, Buffers& dead);
  void unpin_locked(Entry& entry, Buffers& dead);
  void release_if_unused(Entry& entry, Buffers& dead);
  bool evictable(const Entry& entry) const;
  void evict(Order::iterator place, Buffers& dead);
  Result<bool> reserve(const SharedTensor& tensor, Patience patience, const char* where, Lock& lock,
                       Buffers& dead);
  void trim(Buffers& dead);
  void forget_ahead(Entry& entry);
  Error no_room(const SharedTensor& tensor, uint64_t short_bytes, const char* where) const;
  // Lists a new entry for room that was reserved, pinned.
  Result<std::shared_ptr<Entry>> enter(const SharedTensor& tensor, const char* where, Buffers& dead);
  Result<uint64_t> publish(Entry& entry, uint64_t base);  // without the mutex
  Status copy_in(const std::shared_ptr<Entry>& entry, uint64_t wait_ns, Lock& lock, Buffers& dead);

  void work_ahead();
  bool may_go_ahead() const;
  void copy_ahead(const SharedTensor& tensor, Lock& lock, Buffers& dead);

  TensorSpace& space_;
  const uint64_t wait_ns_;
  const uint64_t ahead_bytes_asked_;
  const pid_t process_ = ::getpid();

  mutable std::mutex mutex_;
  std::condition_variable changed_;      // a copy came to its end
  std::condition_variable ahead_wakes_;  // a list came, or some of it was used, or the end
  Order order_;                          // used last: first
  std::unordered_map<TensorIdentity, Order::iterator, Hash> entries_;
  uint64_t budget_bytes_;
  uint64_t resident_bytes_ = 0, pinned_bytes_ = 0, modified_bytes_ = 0, copying_bytes_ = 0;
  uint64_t copying_ahead_ = 0;  // copies under way that nobody waits for
  LocalReplicaStats counts_;    // only the counters

  std::vector<SharedTensor> ahead_list_;
  size_t ahead_next_ = 0;
  uint64_t ahead_number_ = 0;  // of the list
  uint64_t ahead_bytes_ = 0;   // copied for this list and not used yet
  bool closing_ = false;
  std::unique_ptr<std::thread> ahead_thread_;
};

Error replica_error(ErrorCode code, const char* where, const SharedTensor& tensor, const std::string& text);

}  // namespace terrace
