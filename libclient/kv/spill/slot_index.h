// SPDX-License-Identifier: Apache-2.0
// The index of one slot in mapped memory: which blocks it has, and where. Everybody reads it without a lock; the
// slot's owner inserts; anybody removes, by one compare-and-swap of a record's word.
//
//   owner                                    reader
//   the word is not live                     word; fields; the word again: the same, live
//   fields; barrier; word := live, v + 1     frame read from the data; the word again: the same
//   gone: word := v + 1, if it still is v
//
// No number in the memory is used as a place before it was copied and checked.
//
// Threads   Any read and remove; one inserts. The caller has os::LossyAccesses around its calls.
#pragma once

#include <cstddef>
#include <optional>

#include "libclient/coherence/memory/coherent_memory.h"
#include "libclient/kv/spill/spill_format.h"

namespace terrace::kv {

// Stores `value` where `expected` is. Whether `value` is there afterwards: for values that only one writer makes.
inline bool replace_word(uint64_t* word, uint64_t expected, uint64_t value) {
  os::replace_or_drop(word, expected, value);
  return os::load_or_zero(word) == value;
}

class SlotIndex {
 public:
  // `buckets`: geometry.buckets of them, 64-byte aligned.
  SlotIndex(std::byte* buckets, const SpillGeometry& geometry, uint32_t slot)
      : buckets_(buckets), geometry_(geometry), slot_(slot) {}

  // Starts to bring the line where find() begins.
  void expect(const BlockKey& key) const { __builtin_prefetch(tags(bucket_of(key))); }
  std::optional<SpillBlock> find(const BlockKey& key) const;
  std::optional<SpillBlock> at(uint64_t record) const;
  // Whether the block that was found is there still.
  bool holds(const SpillBlock& block) const { return memory_.load(&record(block.record)->word) == block.word; }
  void remove(const SpillBlock& block) {
    const uint64_t version = block.word & layout::spill_word_version_mask;
    os::replace_or_drop(&record(block.record)->word, block.word,
                        (version + 1) & layout::spill_word_version_mask);
  }
  uint32_t uses(uint64_t record) const;
  // One more, up to 15. One that is lost makes a worse choice of what stays, and nothing else.
  void note_use(uint64_t record);

  // --- the owner's

  // Publishes the block; sets its record and word. In a full bucket one that `is_older` says is the oldest goes.
  // false: this slot has the key.
  template <typename IsOlder>
  bool insert(SpillBlock* block, uint32_t uses, IsOlder is_older);
  void set_uses(uint64_t record, uint32_t uses);
  // Removes what makes no sense or `drops`, and makes all tags right. `each` is told of every block that stays.
  template <typename Drops, typename Each>
  void recover(Drops drops, Each each);

 private:
  static constexpr uint32_t per_bucket = layout::spill_bucket_records;

  uint64_t bucket_of(const BlockKey& key) const { return (key.low ^ key.low >> 32) & (geometry_.buckets - 1); }
  static uint32_t tag_of(const BlockKey& key) {
    const auto tag = static_cast<uint32_t>(key.high);
    return tag == 0 ? 1 : tag;
  }
  layout::SpillTags* tags(uint64_t bucket) const {
    return reinterpret_cast<layout::SpillTags*>(buckets_ + bucket * layout::spill_bucket_bytes);
  }
  layout::SpillRecord* record(uint64_t index) const {
    return reinterpret_cast<layout::SpillRecord*>(buckets_ + index / per_bucket * layout::spill_bucket_bytes) +
           1 + index % per_bucket;
  }
  uint32_t tag(uint64_t bucket, uint32_t place) const {
    const auto* const pairs = reinterpret_cast<const uint64_t*>(tags(bucket)->tags);
    return static_cast<uint32_t>(memory_.load(pairs + place / 2) >> place % 2 * 32);
  }
  void set_tag(uint64_t bucket, uint32_t place, uint32_t tag);

  coherence::CoherentMemory memory_;
  std::byte* const buckets_;
  const SpillGeometry geometry_;
  const uint32_t slot_;
};

template <typename IsOlder>
bool SlotIndex::insert(SpillBlock* block, uint32_t uses, IsOlder is_older) {
  const uint64_t bucket = bucket_of(block->key);
  std::optional<uint32_t> free;
  std::optional<SpillBlock> oldest;
  for (uint32_t place = 0; place < per_bucket; ++place) {
    const std::optional<SpillBlock> there = at(bucket * per_bucket + place);
    if (there && there->key == block->key) return false;
    if (!there && !free) free = place;
    if (there && (!oldest || is_older(*there, *oldest))) oldest = there;
  }
  if (!free) {
    remove(*oldest);
    free = static_cast<uint32_t>(oldest->record % per_bucket);
  }
  block->slot = slot_;
  block->record = bucket * per_bucket + *free;
  layout::SpillRecord* const to = record(block->record);
  uint64_t before = memory_.load(&to->word);
  if ((before & layout::spill_word_live) != 0) {  // one that makes no sense
    const uint64_t gone = ((before & layout::spill_word_version_mask) + 1) & layout::spill_word_version_mask;
    os::replace_or_drop(&to->word, before, gone);
    before = memory_.load(&to->word);
  }
  const uint64_t version = ((before & layout::spill_word_version_mask) + 1) & layout::spill_word_version_mask;
  const layout::SpillRecord made = spill_record_of(*block, version);
  memory_.full_barrier(coherence::Step::none);
  const auto* const from = reinterpret_cast<const uint64_t*>(&made);
  for (size_t index = 1; index < sizeof made / sizeof(uint64_t); ++index)
    memory_.store(reinterpret_cast<uint64_t*>(to) + index, from[index]);
  set_uses(block->record, uses);
  set_tag(bucket, *free, tag_of(block->key));
  memory_.store_barrier(coherence::Step::none);
  memory_.store(&to->word, made.word);
  block->word = made.word;
  return true;
}

template <typename Drops, typename Each>
void SlotIndex::recover(Drops drops, Each each) {
  for (uint64_t bucket = 0; bucket < geometry_.buckets; ++bucket)
    for (uint32_t place = 0; place < per_bucket; ++place) {
      const uint64_t index = bucket * per_bucket + place;
      const uint64_t word = memory_.load(&record(index)->word);
      if ((word & layout::spill_word_live) == 0) continue;
      const std::optional<SpillBlock> block = at(index);
      if (!block || drops(*block)) {
        const uint64_t version = word & layout::spill_word_version_mask;
        os::replace_or_drop(&record(index)->word, word, (version + 1) & layout::spill_word_version_mask);
        continue;
      }
      if (tag(bucket, place) != tag_of(block->key)) set_tag(bucket, place, tag_of(block->key));
      each(*block);
    }
}

}  // namespace terrace::kv
