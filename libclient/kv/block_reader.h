// SPDX-License-Identifier: Apache-2.0
// What any holder does with blocks of any part: look up, copy, look again. One attempt each; the caller waits.
// Every number from the space is copied and checked before use as a place.
//
//   reader                                         owner of the part
//   line dropped; word, fields, word again         removal: word not live, written back, barrier
//   bytes dropped, copied                          only then another block's bytes in that place
//   line dropped; the same version: they were whole
//
// Threads   Any number.
#pragma once

#include <cstring>
#include <span>
#include <string_view>

#include "core/base/crc32c.h"
#include "libclient/coherence/memory/memory.h"
#include "libclient/coherence/word.h"
#include "libclient/kv/block.h"

namespace terrace::kv {

using coherence::CoherenceMemory;
using coherence::Geometry;
using coherence::has;
using coherence::Outcome;
using coherence::Step;

// Of one block and whatever it is doing: its version, and whether it is there. The rest of a word is the chain's.
inline constexpr uint64_t block_state(uint64_t word) {
  return word & (layout::word_live | layout::block_word_summed | layout::word_version_mask);
}

template <CoherenceMemory Memory>
class BlockReader {
 public:
  BlockReader(Memory memory, const Geometry& geometry) : memory_(memory), geometry_(geometry) {}

  const Geometry& geometry() const { return geometry_; }
  Memory memory() const { return memory_; }
  const std::byte* data(const Block& block) const { return geometry_.data() + block.offset; }

  // One that has expired by then is passed over: behind it may be another one of its key, put while it was pinned.
  // 0: nothing has. Returns done, gone, raced (it kept changing), corrupt (a record that should be it makes no sense).
  Outcome find(uint32_t part, const BlockKey& key, uint64_t now_unix_s, Block* found) {
    Outcome worst = Outcome::gone;
    uint32_t index = geometry_.home(key.low);
    for (uint32_t probes = 0; probes < geometry_.records; ++probes) {
      const layout::BlockRecord* const at = geometry_.block(part, index);
      drop_line(at, Step::record_invalidated, Step::record_before_look);
      const uint64_t word = memory_.load(&at->word);
      if (!has(word, layout::word_linked)) return worst;
      if (has(word, layout::word_live) && memory_.load(&at->key[0]) == key.low &&
          memory_.load(&at->key[1]) == key.high) {
        const Outcome outcome = describe(part, index, found);
        if (outcome == Outcome::done && found->key == key && !found->is_expired(now_unix_s)) return outcome;
        if (outcome != Outcome::gone && outcome != Outcome::done) worst = outcome;
      }
      index = (index + 1) & (geometry_.records - 1);
    }
    return worst;
  }

  // Whether a block of that key is there now, without looking at the rest of its record.
  bool is_there(uint32_t part, const BlockKey& key, uint64_t now_unix_s) {
    uint32_t index = geometry_.home(key.low);
    for (uint32_t probes = 0; probes < geometry_.records; ++probes) {
      const layout::BlockRecord* const at = geometry_.block(part, index);
      drop_line(at, Step::record_invalidated, Step::record_before_look);
      const uint64_t word = memory_.load(&at->word);
      if (!has(word, layout::word_linked)) return false;
      if (has(word, layout::word_live) && memory_.load(&at->key[0]) == key.low &&
          memory_.load(&at->key[1]) == key.high) {
        const uint64_t times = memory_.load(reinterpret_cast<const uint64_t*>(&at->expires_unix_s));
        memory_.load_barrier(Step::none);
        const auto expires_unix_s = static_cast<uint32_t>(times);
        if (block_state(memory_.load(&at->word)) == block_state(word) &&
            (expires_unix_s == 0 || expires_unix_s > now_unix_s))
          return true;
      }
      index = (index + 1) & (geometry_.records - 1);
    }
    return false;
  }

  // The block of one record, whatever it is. Returns done, gone, raced, corrupt.
  Outcome describe(uint32_t part, uint32_t index, Block* found) {
    constexpr int attempts = 16;  // each failed one is a removal and a put in this record meanwhile
    for (int attempt = 0; attempt < attempts; ++attempt) {
      const layout::BlockRecord* const at = geometry_.block(part, index);
      drop_line(at, Step::record_invalidated, Step::record_before_look);
      layout::BlockRecord copy;
      const uint64_t word = copy_line(at, &copy);
      if (!has(copy.word, layout::word_live)) return Outcome::gone;
      if (block_state(word) != block_state(copy.word)) continue;
      const std::optional<Block> block = block_of(copy, geometry_);
      if (!block) return Outcome::corrupt;
      *found = *block;
      found->part = part;
      found->record = index;
      return Outcome::done;
    }
    return Outcome::raced;
  }

  // Starts to bring the line where the look-up of a key begins; find() asks for it again. The caller has a load
  // barrier between all of these and the first find().
  void expect(uint32_t part, const BlockKey& key) {
    const layout::BlockRecord* const at = geometry_.block(part, geometry_.home(key.low));
#if defined(__x86_64__)
    // g++ 12 leaves __builtin_prefetch out here: this is not seen as needed by anything.
    if constexpr (Memory::coherent) asm volatile("prefetcht0 %0" : : "m"(*at));
#else
    if constexpr (Memory::coherent) __builtin_prefetch(at);
#endif
  }

  // Copies the block and what lies behind it. Returns done, gone (or replaced meanwhile), corrupt (its checksum).
  Outcome copy(const Block& block, std::span<std::byte> into, std::span<std::byte> name) {
    memory_.invalidate(data(block), block.extent_bytes, Step::data_invalidated);
    memory_.load_barrier(Step::data_before_read);
    memory_.read(into.data(), data(block), block.bytes);
    memory_.read(name.data(), geometry_.data() + block.name_offset(), name.size());
    if (!recheck(block)) return Outcome::gone;
    if (block.has_checksum() && crc32c(into.first(block.bytes)) != block.data_checksum) return Outcome::corrupt;
    return Outcome::done;
  }

  // Of what lies behind the block; name.size() bytes, which the extent has.
  Outcome copy_name(const Block& block, std::span<std::byte> name) {
    const std::byte* const from = geometry_.data() + block.name_offset();
    memory_.invalidate(from, name.size(), Step::shape_invalidated);
    memory_.load_barrier(Step::shape_before_read);
    memory_.read(name.data(), from, name.size());
    return recheck(block) ? Outcome::done : Outcome::gone;
  }

  // The crc32c of the bytes where they lie. Not sure before recheck().
  uint32_t checksum_in_place(const Block& block) {
    memory_.invalidate(data(block), block.bytes, Step::data_invalidated);
    memory_.load_barrier(Step::data_before_read);
    std::byte piece[4096];
    uint32_t sum = 0;
    for (uint64_t at = 0; at < block.bytes; at += sizeof piece) {
      const size_t length = std::min<uint64_t>(sizeof piece, block.bytes - at);
      memory_.read(piece, data(block) + at, length);
      memory_.load_barrier(Step::none);
      sum = crc32c({piece, length}, sum);
    }
    return sum;
  }

  // Whether what was read since the block was found were its bytes.
  bool recheck(const Block& block) {
    memory_.load_barrier(Step::read_before_recheck);
    if (!memory_.performs(Step::recheck)) return true;
    return block_state(word_again(block)) == block_state(block.word);
  }
  // After a pin is in place and a full barrier behind it: whether nobody decided before to remove the block.
  bool holds_after_pin(const Block& block) {
    if (!memory_.performs(Step::pin_recheck)) return true;
    const uint64_t word = word_again(block);
    return block_state(word) == block_state(block.word) && !has(word, layout::word_retiring);
  }
  // Of a block that was copied before, to memory of this process: whether the space has it still, by one line of it. All of the
  // record is compared: an owner that lost power may have taken a version that others had seen with it. Says when it
  // was used.
  bool is_still(Block* block) {
    if (!memory_.performs(Step::copy_look)) return true;
    const layout::BlockRecord* const at = geometry_.block(block->part, block->record);
    drop_line(at, Step::copy_invalidated, Step::copy_before_look);
    layout::BlockRecord copy;
    (void)copy_line(at, &copy);
    block->used_unix_s = copy.used_unix_s;
    return is_of(copy, *block);
  }

 private:
  void drop_line(const void* line, Step invalidated, Step before_look) {
    memory_.invalidate(line, layout::cache_line_bytes, invalidated);
    memory_.load_barrier(before_look);
  }

  uint64_t word_again(const Block& block) {
    const layout::BlockRecord* const at = geometry_.block(block.part, block.record);
    drop_line(at, Step::recheck_invalidated, Step::recheck_before_look);
    return memory_.load(&at->word);
  }

  // By words, in order; returns the word as it is afterwards.
  uint64_t copy_line(const layout::BlockRecord* at, layout::BlockRecord* copy) {
    uint64_t words[sizeof *copy / sizeof(uint64_t)];
    const auto* const from = reinterpret_cast<const uint64_t*>(at);
    for (size_t index = 0; index < std::size(words); ++index) words[index] = memory_.load(from + index);
    std::memcpy(copy, words, sizeof words);
    memory_.load_barrier(Step::none);
    return memory_.load(&at->word);
  }

  Memory memory_;
  const Geometry geometry_;
};

}  // namespace terrace::kv
