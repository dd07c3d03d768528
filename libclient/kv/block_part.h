// SPDX-License-Identifier: Apache-2.0
// What the owner of a part does alone: take it over, make room, publish, remove. All stores to directory and data
// are here, each to the owner's own part and chunks.
//
// Publishing                                         what a crash leaves
//   room in a chunk of the part's (process only)     nothing: what no live record says is free
//   bytes and name there, written back; barrier      the same
//   the record's fields, then its word, in one line  the same, or the block, whole
//   written back, barrier                            the block
//
// Removing                                           what a crash leaves
//   word := retiring, written back; full barrier     retiring: the next owner takes that away
//   look at all pins; one is there: word as before   the same
//   word := not live, version + 1; written back      nothing, or the block
//   barrier; only then is its room free              nothing
//
// Threads   Any number of this process, one operation at a time (a mutex). Bytes are filled outside it.
#pragma once

#include <functional>
#include <string_view>

#include "core/base/sync/mutex.h"
#include "libclient/coherence/chains.h"
#include "libclient/coherence/chunk_claims.h"
#include "libclient/coherence/owner_line.h"
#include "libclient/coherence/pins.h"
#include "libclient/kv/block_reader.h"
#include "libclient/kv/block_room.h"

namespace terrace::kv {

using coherence::IsDead;

// Room that was taken for a block.
struct Room {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

template <CoherenceMemory Memory>
class BlockPart {
 public:
  BlockPart(Memory memory, const Geometry& geometry, uint32_t part, uint64_t epoch, uint64_t host,
            IsDead is_dead)
      : memory_(memory),
        geometry_(geometry),
        reader_(memory, geometry),
        part_(part),
        records_(geometry.block(part, 0)),
        epoch_(epoch),
        host_(host),
        is_dead_(std::move(is_dead)),
        pins_(memory, geometry, part),
        chunks_(memory, geometry, part, is_dead_),
        room_(geometry.chunk_bytes, geometry.chunks) {}

  uint32_t part() const { return part_; }
  coherence::PinTable<Memory>& pins() { return pins_; }

  // Makes the part whole after whoever had it before. May be done again after a crash.
  void take_over();
  // Leaves directory and data to the next owner. No pins or rooms may be in use.
  void release() { coherence::store_free(memory_, geometry_, part_); }

  // `may_claim`: also from a chunk that nobody has. Returns done, full, no_record, crowded (others are claiming:
  // again), disowned.
  Outcome reserve(uint64_t bytes, Room* room, bool may_claim = true);
  void cancel(const Room& room);
  // `block`: key, bytes, checksum, parent, times, namespace, word (block_word_summed or 0); its place is `room`, whose
  // bytes are stored. One of its key that has expired does not count: it may be read in place still. On return everybody
  // finds it, or the room is free again. Returns done, exists, no_record, disowned.
  Outcome publish(const Room& room, Block* block, uint64_t now_unix_s);
  // Returns done, pinned, gone, disowned. `block` as it was found.
  Outcome remove(const Block& block);
  void note_use(const Block& block, uint32_t now_unix_s);

  // The live blocks of this part between records `from` and `to`.
  template <typename Each>
  void each_block(uint32_t from, uint32_t to, Each each);
  uint32_t chunks_owned() const {
    MutexLock lock(mutex_);
    return room_.owned();
  }
  bool owns(uint32_t chunk) const {
    MutexLock lock(mutex_);
    return room_.owns(chunk);
  }
  void set_closed(uint32_t chunk, bool closed) {
    MutexLock lock(mutex_);
    if (room_.owns(chunk)) room_.set_closed(chunk, closed);
  }
  uint32_t live() const {
    MutexLock lock(mutex_);
    return live_;
  }
  uint32_t chunk_of(const Block& block) const {
    return static_cast<uint32_t>(block.offset / geometry_.chunk_bytes);
  }

 private:
  // For the functions of chains.h, which are called under the mutex.
  struct Table {
    BlockPart* part;
    uint32_t records() const { return part->geometry_.records; }
    uint64_t word(uint32_t index) const { return part->word(index); }
    void set_word(uint32_t index, uint64_t word, Step step) const { part->set_word(index, word, step); }
    uint32_t home(uint32_t index) const {
      return part->geometry_.home(part->memory_.load(&part->record(index)->key[0]));
    }
  };
  layout::BlockRecord* record(uint32_t index) const { return records_ + index; }
  uint64_t word(uint32_t index) const { return memory_.load(&record(index)->word); }
  void set_word(uint32_t index, uint64_t word, Step written_back) {
    memory_.store(&record(index)->word, word);
    memory_.write_back(record(index), sizeof(layout::BlockRecord), written_back);
  }
  // Whether the owner line still says so. A second line of defence, where the memory is coherent.
  bool still_owner() const { return memory_.load(&geometry_.owner(part_)->epoch) == epoch_; }
  bool pinned(uint32_t index, Step check) const {
    return memory_.performs(check) &&
           coherence::anybody_pinned(memory_, geometry_, part_, index, std::nullopt, is_dead_);
  }
  void repair_all(uint32_t from, uint32_t to, uint64_t* link_steps) TERRACE_REQUIRES(mutex_);
  bool repair(uint32_t index, const layout::BlockRecord& found) TERRACE_REQUIRES(mutex_);
  void make_gone(uint32_t index) TERRACE_REQUIRES(mutex_);
  void give_room(const Room& room, uint32_t index) TERRACE_REQUIRES(mutex_);
  void give_back(uint32_t chunk) TERRACE_REQUIRES(mutex_);
  void drop(const std::vector<uint32_t>& bad) TERRACE_REQUIRES(mutex_);
  void store_record(uint32_t index, const layout::BlockRecord& copy) TERRACE_REQUIRES(mutex_);

  static constexpr uint32_t no_record = ~0u;
  static constexpr uint32_t repaired_at_once = 64;

  Memory memory_;
  const Geometry geometry_;
  BlockReader<Memory> reader_;
  const uint32_t part_;
  layout::BlockRecord* const records_;  // for a take-over, which asks for a place millions of times
  const uint64_t epoch_;
  const uint64_t host_;
  const IsDead is_dead_;
  coherence::PinTable<Memory> pins_;
  mutable Mutex mutex_;
  coherence::ChunkClaims<Memory> chunks_ TERRACE_GUARDED_BY(mutex_);
  BlockRoom room_ TERRACE_GUARDED_BY(mutex_);
  uint32_t live_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::kv

#include "libclient/kv/block_part_inl.h"
