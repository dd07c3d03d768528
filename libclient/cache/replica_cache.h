// SPDX-License-Identifier: Apache-2.0
// Replicas in memory under a budget of bytes: which there are, in which order they were used, which may go.
//
// Place        Used by LocalReplicas (libclient/replicas) and DeviceReplicas (libclient/device), which know what
//              a replica is of, fill it, compare versions and write back.
// Threads      One at a time: its user's mutex is held for every call. Buffers are freed without it (Freed).
// Ownership    A listed entry is kept here; its users keep it as well, as long as they have it pinned.
// Invariants   K1  resident is the sum over all entries that have a buffer, listed or not.
//              K2  what is evicted is listed, Shared, and neither pinned, nor being copied or written back.
//              K3  an entry that is not listed loses its buffer with its last pin, copy and write-back.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libclient/cache/cache_bytes.h"

namespace terrace {

// What an Entry of a ReplicaCache derives from, with Entry and its kind of buffer: a unique_ptr or shared_ptr.
template <typename Entry, typename Buffer>
struct CachedReplica {
  uint64_t bytes = 0;
  Buffer buffer;                      // null: given up
  std::atomic<uint64_t> version = 0;  // written under the mutex, read without: relaxed
  // Under the mutex, and changed only by the cache:
  bool modified = false;
  bool copying = false;  // into the buffer
  bool writing = false;  // back
  bool listed = false;
  uint64_t pins = 0;
  typename std::list<std::shared_ptr<Entry>>::iterator place;  // of a listed one
};

// An Entry has `Key key() const`, which stays the same.
template <typename Key, typename Entry, typename Hash = std::hash<Key>>
class ReplicaCache {
 public:
  using Buffer = decltype(Entry::buffer);

  // Buffers that nobody needs any more: to be destroyed without the mutex, or used again.
  class Freed {
   public:
    void add(Buffer buffer, uint64_t bytes) { buffers_.push_back({std::move(buffer), bytes}); }
    void clear() { buffers_.clear(); }
    // One of just this size, or null: what is evicted for an entry, or was stale, is often of its very size.
    Buffer take(uint64_t bytes) {
      for (Part& part : buffers_)
        if (part.bytes == bytes && part.buffer != nullptr && nobody_has(part.buffer))
          return std::move(part.buffer);
      return nullptr;
    }

   private:
    struct Part {
      Buffer buffer;
      uint64_t bytes;
    };
    template <typename Byte, typename Free>
    static bool nobody_has(const std::unique_ptr<Byte, Free>&) {
      return true;
    }
    // Who took it from a handle may use it still, although the handle is gone.
    template <typename Shared>
    static bool nobody_has(const std::shared_ptr<Shared>& buffer) {
      if (buffer.use_count() != 1) return false;
      const std::shared_ptr<Shared> acquired = buffer;  // letting it go orders this behind all who did before
      return true;
    }
    std::vector<Part> buffers_;
  };

  // `unlisted` is told of each entry that leaves the list.
  explicit ReplicaCache(
      uint64_t budget_bytes, std::function<void(Entry&)> unlisted = [](Entry&) {})
      : unlisted_(std::move(unlisted)) {
    sum_.budget = budget_bytes;
  }

  const CacheBytes& sum() const { return sum_; }
  template <typename Stats>
  void add_to(Stats& stats) const {
    stats.budget_bytes = sum_.budget;
    stats.resident_bytes = sum_.resident;
    stats.pinned_bytes = sum_.pinned;
    stats.modified_bytes = sum_.modified;
    stats.replicas = entries_.size();
    stats.evicted = evicted_;
    stats.evicted_bytes = evicted_bytes_;
  }

  // The listed entry of a key, or null.
  std::shared_ptr<Entry> find(const Key& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : *found->second->place;
  }
  // Lists a new entry, which has its buffer, as used last. There is room for it, and none of its key.
  void insert(const std::shared_ptr<Entry>& entry) {
    sum_.resident += entry->bytes;
    order_.push_front(entry);
    entry->place = order_.begin();
    entry->listed = true;
    entries_[entry->key()] = entry.get();
  }
  void use(Entry& entry) { order_.splice(order_.begin(), order_, entry.place); }
  // Nobody finds it any more. A Modified one is lost.
  void unlist(Entry& listed, Freed& freed) {
    const std::shared_ptr<Entry> entry = *listed.place;
    set_modified(*entry, false);
    entry->listed = false;
    entries_.erase(entry->key());
    order_.erase(entry->place);
    unlisted_(*entry);
    release_if_unused(*entry, freed);
  }
  void clear(Freed& freed) {
    while (!order_.empty()) unlist(*order_.front(), freed);
  }

  void pin(Entry& entry) {
    if (entry.pins++ == 0) sum_.pinned += entry.bytes;
  }
  void unpin(Entry& entry, Freed& freed) {
    if (--entry.pins != 0) return;
    sum_.pinned -= entry.bytes;
    settle(entry, freed);
  }
  void set_modified(Entry& entry, bool to) { set(entry.modified, to, sum_.modified, entry.bytes); }
  void set_copying(Entry& entry, bool to) { set(entry.copying, to, sum_.moving, entry.bytes); }
  void set_writing(Entry& entry, bool to) { set(entry.writing, to, sum_.moving, entry.bytes); }
  // After a copy or write-back of it has ended: its buffer, and what is over the budget, may go now.
  void settle(Entry& entry, Freed& freed) {
    release_if_unused(entry, freed);
    trim(freed);
  }

  void set_budget(uint64_t bytes, Freed& freed) {
    sum_.budget = bytes;
    trim(freed);
  }
  // Evicts what was used least recently until `bytes` fit; nothing when that would not be enough, or of what
  // `spared` says must stay. Returns the bytes that are short.
  uint64_t make_room(uint64_t bytes, Freed& freed, const std::function<bool(const Entry&)>& spared = nullptr) {
    uint64_t owed_bytes = over_budget(bytes);
    const std::vector<Entry*> chosen = victims(owed_bytes, spared);
    if (owed_bytes == 0)
      for (Entry* victim : chosen) evict(*victim, freed);
    return owed_bytes;
  }
  // false: nothing may go.
  bool evict_one(Freed& freed) {
    uint64_t owed_bytes = 1;
    const std::vector<Entry*> chosen = victims(owed_bytes, nullptr);
    if (!chosen.empty()) evict(*chosen.front(), freed);
    return !chosen.empty();
  }

 private:
  static void set(bool& flag, bool to, uint64_t& sum_bytes, uint64_t bytes) {
    if (flag != to) sum_bytes = to ? sum_bytes + bytes : sum_bytes - bytes;
    flag = to;
  }
  uint64_t over_budget(uint64_t more_bytes) const {
    const uint64_t wanted_bytes = sum_.resident + more_bytes;
    return wanted_bytes > sum_.budget ? wanted_bytes - sum_.budget : 0;
  }
  static bool evictable(const Entry& entry) {  // K2
    return entry.pins == 0 && !entry.modified && !entry.copying && !entry.writing;
  }
  // Those used least recently of `owed_bytes`, of which what they are short is left.
  std::vector<Entry*> victims(uint64_t& owed_bytes, const std::function<bool(const Entry&)>& spared) const {
    std::vector<Entry*> chosen;
    for (auto place = order_.rbegin(); place != order_.rend() && owed_bytes > 0; ++place) {
      Entry& entry = **place;
      if (!evictable(entry) || (spared && spared(entry))) continue;
      chosen.push_back(&entry);
      owed_bytes -= std::min(owed_bytes, entry.bytes);
    }
    return chosen;
  }
  void evict(Entry& entry, Freed& freed) {
    ++evicted_;
    evicted_bytes_ += entry.bytes;
    unlist(entry, freed);
  }
  void trim(Freed& freed) {
    uint64_t owed_bytes = over_budget(0);
    for (Entry* victim : victims(owed_bytes, nullptr)) evict(*victim, freed);
  }
  void release_if_unused(Entry& entry, Freed& freed) {  // K3
    if (entry.listed || entry.pins != 0 || entry.copying || entry.writing || entry.buffer == nullptr) return;
    sum_.resident -= entry.bytes;
    freed.add(std::move(entry.buffer), entry.bytes);
  }

  const std::function<void(Entry&)> unlisted_;
  std::list<std::shared_ptr<Entry>> order_;  // used last: first
  std::unordered_map<Key, Entry*, Hash> entries_;
  CacheBytes sum_;
  uint64_t evicted_ = 0, evicted_bytes_ = 0;
};

}  // namespace terrace
