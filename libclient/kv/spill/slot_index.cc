// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/spill/slot_index.h"

#include <cstring>

namespace terrace::kv {

std::optional<SpillBlock> SlotIndex::find(const BlockKey& key) const {
  const uint64_t bucket = bucket_of(key);
  const uint32_t wanted = tag_of(key);
  for (uint32_t place = 0; place < per_bucket; ++place) {
    if (tag(bucket, place) != wanted) continue;
    const std::optional<SpillBlock> block = at(bucket * per_bucket + place);
    if (block && block->key == key) return block;
  }
  return std::nullopt;
}

std::optional<SpillBlock> SlotIndex::at(uint64_t index) const {
  constexpr int attempts = 16;  // each failed one is a removal and an insertion in this record meanwhile
  const layout::SpillRecord* const from = record(index);
  for (int attempt = 0; attempt < attempts; ++attempt) {
    uint64_t words[sizeof(layout::SpillRecord) / sizeof(uint64_t)];
    for (size_t word = 0; word < std::size(words); ++word)
      words[word] = memory_.load(reinterpret_cast<const uint64_t*>(from) + word);
    if ((words[0] & layout::spill_word_live) == 0) return std::nullopt;
    memory_.load_barrier(coherence::Step::none);
    if (memory_.load(&from->word) != words[0]) continue;
    layout::SpillRecord copy;
    std::memcpy(&copy, words, sizeof copy);
    std::optional<SpillBlock> block = spill_block_of(copy, geometry_);
    if (!block || bucket_of(block->key) != index / per_bucket) return std::nullopt;
    block->slot = slot_;
    block->record = index;
    return block;
  }
  return std::nullopt;
}

uint32_t SlotIndex::uses(uint64_t index) const {
  return static_cast<uint32_t>(memory_.load(&tags(index / per_bucket)->uses) >> index % per_bucket * 4 & 15);
}

void SlotIndex::set_uses(uint64_t index, uint32_t uses) {
  uint64_t* const word = &tags(index / per_bucket)->uses;
  const uint64_t shift = index % per_bucket * 4, before = memory_.load(word);
  const uint64_t after = (before & ~(uint64_t{15} << shift)) | uint64_t{uses} << shift;
  if (after != before) os::replace_or_drop(word, before, after);
}

void SlotIndex::note_use(uint64_t index) {
  if (const uint32_t before = uses(index); before < 15) set_uses(index, before + 1);
}

void SlotIndex::set_tag(uint64_t bucket, uint32_t place, uint32_t tag) {
  uint64_t* const pair = reinterpret_cast<uint64_t*>(tags(bucket)->tags) + place / 2;
  const uint64_t shift = place % 2 * 32;
  memory_.store(pair, (memory_.load(pair) & ~(uint64_t{0xffffffff} << shift)) | uint64_t{tag} << shift);
}

}  // namespace terrace::kv
