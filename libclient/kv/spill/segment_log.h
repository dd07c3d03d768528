// SPDX-License-Identifier: Apache-2.0
// The segments of one slot, as its owner fills them: the next place, and which segment is written anew when there is no
// other. Its blocks go, but for those that were read since: they are written on, at the new end.
//
// Between slots: who needs a segment takes a free one, then one of a slot that nobody owns, then, with less than its
// share, says so; owners that have more give one back when they tend. Meanwhile its own oldest one goes.
//
// Threads   One: the owner's that writes. The caller has os::LossyAccesses around its calls.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "libclient/kv/spill/buffer_pool.h"
#include "libclient/kv/spill/spill_folder.h"

namespace terrace::kv {

// What a store has done; any thread adds and reads.
struct SpillCounts {
  std::atomic<uint64_t> hits = 0, misses = 0, hit_bytes = 0, prefetch_hits = 0, queued_hits = 0, written = 0,
                        written_bytes = 0, there_already = 0, dropped = 0, write_errors = 0, read_errors = 0,
                        wrong = 0, segments_reused = 0, segments_taken = 0, segments_given = 0, kept = 0;
  static void add(std::atomic<uint64_t>& count, uint64_t value = 1) {
    count.fetch_add(value, std::memory_order_relaxed);
  }
};

// A block that stays although its segment is written anew.
struct KeptFrame {
  SpillBlock block;
  std::shared_ptr<std::byte> frame;
  SpillToken token;
  uint32_t uses = 0;
};

class SegmentLog {
 public:
  SegmentLog(SpillFolder& folder, BufferPool& buffers, SpillCounts& counts, uint32_t slot)
      : folder_(folder), map_(folder.map()), buffers_(buffers), counts_(counts), slot_(slot) {}

  uint32_t slot() const { return slot_; }
  // What the slot had before this owner: drops what cannot be, and makes tags right.
  void recover();
  // In the segment that is being filled. Nothing: it is full, or there is none.
  std::optional<uint64_t> reserve(uint64_t frame_bytes);
  // Another segment is filled from now on. Nothing may be in flight. false: there is none to be had now.
  bool next_segment(uint64_t now_ms, std::vector<KeptFrame>* kept);
  // Makes the block found; false: this slot has its key.
  bool publish(SpillBlock* block, uint32_t uses);
  // The disk took no more: for a while no segment is claimed, and the one that is being filled is given back.
  void disk_full(uint64_t now_ms);
  // For others that have less than their share; not while anything is in flight.
  void give_if_asked(uint64_t now_ms);
  uint64_t segments() const { return count_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t no_segment = ~0u;
  SlotIndex& index() { return *folder_.index(slot_); }
  uint64_t share() const;
  bool claim_free(uint64_t now_ms);
  bool free_of_the_dead(uint64_t now_ms);
  void start(uint32_t segment);
  void clear(uint32_t segment);
  std::vector<KeptFrame> worth_keeping(uint32_t segment);
  bool has_disk_space(uint32_t segment);
  uint32_t segment_of(const SpillBlock& block) const {
    return static_cast<uint32_t>(block.offset / folder_.geometry().segment_bytes);
  }

  SpillFolder& folder_;
  SpillMap& map_;
  BufferPool& buffers_;
  SpillCounts& counts_;
  const uint32_t slot_;
  std::vector<std::vector<uint64_t>> records_;  // by segment: of blocks that were put there, some of them gone
  uint32_t active_ = no_segment;
  uint64_t end_ = 0;  // of what is reserved in it
  uint64_t grows_again_ms_ = 0;
  uint64_t looks_again_ms_ = 0;  // for segments of the dead
  std::atomic<uint64_t> count_ = 0;
};

}  // namespace terrace::kv
