// SPDX-License-Identifier: Apache-2.0
// KvLocal: copies of blocks in this process's memory.
//
//   find     a look-up under the lock of one of 16 shards, and a reference
//   wants    whether a block that was just read should have a copy
//   begin    room for it: free, or that of the copies that are worth least
//   finish   the bytes are there: it is found from now on
//   drop     its block is gone
//
// Whether a copy still is its block is asked by the space (kv_local_inl.h), each time.
//
// Locks     mutex_, then a shard's. All are this process's alone: no other one waits for them.
// Threads   Any. In a forked child nothing is found, and references do nothing.
#pragma once

#include <array>
#include <optional>
#include <unordered_map>

#include "core/base/sync/mutex.h"
#include "core/os/fork_mark.h"
#include "core/os/memory_map.h"
#include "libclient/coherence/free_space.h"
#include "libclient/kv/local/local_copy.h"
#include "libclient/kv/local/seen_blocks.h"
#include "libclient/kv/own_order.h"
#include "libclient/kv/rules.h"
#include "terrace/kv_local.h"

namespace terrace::kv {

class LocalStore final : public KvLocal {
 public:
  LocalStore(os::MemoryMap memory, const KvLocalOptions& options);
  ~LocalStore() override;

  // A space begins to use it; ends, and its copies go.
  std::shared_ptr<LocalShare> join();
  void leave(const LocalShare& share);

  LocalRef find(const LocalShare& share, const BlockKey& key);
  // It was given to somebody. Not noted where another thread has the order.
  void use(LocalCopy& copy);
  bool wants(const LocalShare& share, const Block& block);
  // Room for a copy that nobody finds yet, of block.extent_bytes at data. Nothing: there is none.
  LocalRef begin(std::shared_ptr<LocalShare> share, const Block& block, std::string_view name_space);
  void finish(LocalCopy& copy);
  void drop(LocalCopy& copy);  // what was begun, or is found
  uint64_t bytes_max() const { return memory_.size_bytes(); }

 private:
  friend class LocalRef;
  struct Key {
    uint64_t space = 0;
    BlockKey key;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& of) const { return of.key.high ^ of.space * 0x9e3779b97f4a7c15ull; }
  };
  struct alignas(64) Shard {
    Mutex mutex;
    std::unordered_map<Key, LocalCopy*, Hash> copies TERRACE_GUARDED_BY(mutex);
  };
  static Key key_of(const LocalCopy& copy) { return {copy.share->space, copy.block.key}; }
  Shard& shard_of(const BlockKey& key) { return shards_[key.low >> 60]; }

  void release(LocalCopy* copy);
  void free(LocalCopy* copy) TERRACE_REQUIRES(mutex_);
  void remove(LocalCopy* copy, bool evicted) TERRACE_REQUIRES(mutex_);
  bool fit_budgets(const std::vector<uint16_t>& budgets, uint64_t bytes) TERRACE_REQUIRES(mutex_);
  std::optional<uint64_t> make_room(uint64_t bytes) TERRACE_REQUIRES(mutex_);
  std::optional<uint32_t> new_id() TERRACE_REQUIRES(mutex_);
  uint64_t evict(uint32_t id) TERRACE_REQUIRES(mutex_);
  void note_worth(uint32_t hits) TERRACE_REQUIRES(mutex_);

  const os::ForkMark process_;
  const os::MemoryMap memory_;
  const uint64_t most_bytes_;  // of one copy
  SeenBlocks seen_;
  std::atomic<uint32_t> copy_one_of_ = 1;  // blocks that are wanted
  std::atomic<uint32_t> wanted_ = 0;
  std::array<Shard, 16> shards_;

  Mutex mutex_;
  Rules rules_ TERRACE_GUARDED_BY(mutex_);
  coherence::FreeSpace free_ TERRACE_GUARDED_BY(mutex_);
  eviction::BlockOrder order_ TERRACE_GUARDED_BY(mutex_);
  std::vector<BudgetBlocks> budgets_ TERRACE_GUARDED_BY(mutex_);
  std::vector<LocalCopy*> by_id_ TERRACE_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ids_ TERRACE_GUARDED_BY(mutex_);
  uint32_t worth_of_16_ TERRACE_GUARDED_BY(mutex_) = 64 * 16;  // hits of copies that went, 16 times their mean
  uint64_t spaces_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::kv
