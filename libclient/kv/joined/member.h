// SPDX-License-Identifier: Apache-2.0
// The members that a process has mapped, and the order in which a key asks them.
//
// Threads   A MemberSet does not change once others can see it. Of a Member the atomics do.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libclient/kv/joined/member_list.h"
#include "libclient/kv/member_space.h"

namespace terrace::kv {

struct Member {
  std::string where;
  KvMemberMemory memory;
  std::unique_ptr<MemberKvSpace> space;  // goes before its memory
  uint64_t data_bytes = 0;
  std::atomic<uint64_t> id = 0;  // 0: there is no list yet
  std::atomic<bool> lost = false;
  std::atomic<uint64_t> no_part_until_ns = 0;  // others own all of them
  std::atomic<uint64_t> full_until_ns = 0;     // it has no free room
  std::atomic<uint32_t> spare_parts = 0;       // without an owner, at the last look
  // Of who looks: how often its list, or its policy, was an older one.
  uint32_t stale_looks = 0, older_policy_looks = 0;

  bool has_part() const { return space->part().has_value(); }
};

class MemberSet {
 public:
  struct Entry {
    std::shared_ptr<Member> member;
    bool leaving = false;
    uint64_t salt = 0;
    uint32_t index = 0;  // in the list
    MemberKvSpace& space() const { return *member->space; }
  };

  explicit MemberSet(std::vector<Entry> entries = {}) : entries_(std::move(entries)) {
    for (const Entry& entry : entries_) {
      data_bytes_ += entry.member->data_bytes;
      salts_.push_back(entry.salt);
    }
    equal_ = std::all_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.member->data_bytes == entries_.front().member->data_bytes;
    });
  }

  size_t size() const { return entries_.size(); }
  bool alone() const { return entries_.size() == 1; }
  const Entry& operator[](size_t at) const { return entries_[at]; }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  uint64_t data_bytes() const { return data_bytes_; }

  // The one that a key prefers: of each a number that follows from the key, by how much data it has; the highest. So a
  // member that comes or goes changes it for few keys. Asked next are those behind it, around.
  size_t preferred(const BlockKey& key) const {
    if (equal_) return preferred_of_equal(key);
    size_t best = 0;
    double best_score = 0;
    for (size_t at = 0; at < entries_.size(); ++at) {
      const uint64_t number = mixed(key.low ^ salts_[at]);
      const double score = std::log((static_cast<double>(number >> 11) + 1) * 0x1p-53) /
                           static_cast<double>(entries_[at].member->data_bytes);
      if (at == 0 || score > best_score) best = at, best_score = score;
    }
    return best;
  }
  size_t behind(size_t preferred,
                size_t steps) const {  // both below size(); no division: for each of many keys
    const size_t at = preferred + steps;
    return at < entries_.size() ? at : at - entries_.size();
  }

 private:
  // Without a branch: which is the highest so far is as good as random.
  size_t preferred_of_equal(const BlockKey& key) const {
    size_t best = 0;
    uint64_t best_number = 0;
    for (size_t at = 0; at < salts_.size(); ++at) {
      const uint64_t number = mixed(key.low ^ salts_[at]);
      const bool higher = number > best_number;
      best = higher ? at : best;
      best_number = higher ? number : best_number;
    }
    return best;
  }
  static uint64_t mixed(uint64_t number) {
    number = (number ^ number >> 32) * 0x9e3779b97f4a7c15ull;
    number = (number ^ number >> 29) * 0xbf58476d1ce4e5b9ull;
    return number ^ number >> 32;
  }

  std::vector<Entry> entries_;
  std::vector<uint64_t> salts_;  // theirs
  uint64_t data_bytes_ = 0;
  bool equal_ = true;
};

// But for what a space of several counts itself.
inline void add_counters(KvCounters& sum, const KvCounters& of) {
  sum.hits += of.hits, sum.misses += of.misses, sum.hit_bytes += of.hit_bytes;
  sum.puts += of.puts, sum.put_bytes += of.put_bytes, sum.puts_refused += of.puts_refused;
  sum.evicted += of.evicted, sum.evicted_bytes += of.evicted_bytes;
  sum.expired += of.expired, sum.erased += of.erased;
  sum.chunks_given += of.chunks_given, sum.parts_adopted += of.parts_adopted;
  sum.spilled += of.spilled, sum.spill_hits += of.spill_hits, sum.spill_dropped += of.spill_dropped;
  sum.local_hits += of.local_hits, sum.local_hit_bytes += of.local_hit_bytes;
  sum.local_copied += of.local_copied, sum.local_evicted += of.local_evicted, sum.local_stale += of.local_stale;
}

}  // namespace terrace::kv
