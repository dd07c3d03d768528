// SPDX-License-Identifier: Apache-2.0
// The map of a spill folder in mapped memory: who owns which segment of the data, who wants one, and what was erased.
//
// Threads   Any, of any process. The caller has os::LossyAccesses around its calls.
#pragma once

#include <cstddef>
#include <ctime>
#include <optional>
#include <vector>

#include "libclient/kv/spill/slot_index.h"

namespace terrace::kv {

inline uint64_t spill_now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
}

// As KvSpace looks at the time.
inline uint64_t spill_now_s() {
  return static_cast<uint64_t>(std::time(nullptr));
}

// What had been erased when a put began. A block of which something was erased since is not published.
struct SpillToken {
  uint64_t flushes = 0, erases = 0;
  bool operator==(const SpillToken&) const = default;
};

struct SpillSegment {
  uint32_t index = 0;
  uint64_t word = 0;
  uint64_t age_ms() const { return word & layout::spill_segment_age_mask; }
};

class SpillMap {
 public:
  SpillMap(std::byte* memory, const SpillGeometry& geometry) : memory_(memory), geometry_(geometry) {}

  layout::SpillSlot* slot(uint32_t slot) const {
    return reinterpret_cast<layout::SpillSlot*>(memory_ + layout::spill_slots_offset) + slot;
  }
  uint32_t slots_used() const;
  void set_slot_used(uint32_t slot);
  uint64_t epoch(uint32_t of) const { return os::load_or_zero(&slot(of)->epoch); }
  bool is_open(uint32_t of) const { return os::load_or_zero(&slot(of)->open) == 1; }
  void store(uint64_t* word, uint64_t value) const { os::store_or_drop(word, value); }
  uint32_t slots_open() const;

  // Nothing: free, or nonsense.
  std::optional<uint32_t> owner(uint32_t segment) const { return owner_in(os::load_or_zero(word(segment))); }
  uint64_t age_ms(uint32_t segment) const {
    return os::load_or_zero(word(segment)) & layout::spill_segment_age_mask;
  }
  std::vector<SpillSegment> segments_of(
      std::optional<uint32_t> slot) const;  // the oldest first; none: the free ones
  bool claim(const SpillSegment& free, uint32_t slot, uint64_t now_ms);
  bool renew(uint32_t segment, uint32_t slot, uint64_t now_ms);  // of the own slot: it begins anew
  void release(const SpillSegment& owned) { os::replace_or_drop(word(owned.index), owned.word, 0); }

  // Whether a slot other than `me` lately had too few segments.
  bool somebody_wants(uint32_t me, uint64_t now_ms) const;

  SpillToken token(const BlockKey& key) const {
    return {.flushes = os::load_or_zero(flushes()), .erases = os::load_or_zero(erases(key))};
  }
  void note_erase(const BlockKey& key) { count_up(erases(key)); }
  void note_flush() { count_up(flushes()); }

  // Whether `address` is in the map.
  bool covers(const void* address) const {
    return address >= memory_ && address < memory_ + geometry_.map_bytes();
  }

 private:
  uint64_t* at(uint64_t offset) const { return reinterpret_cast<uint64_t*>(memory_ + offset); }
  uint64_t* word(uint32_t segment) const { return at(layout::spill_segments_offset) + segment; }
  uint64_t* flushes() const { return at(layout::spill_flushes_offset); }
  uint64_t* erases(const BlockKey& key) const {
    return at(layout::spill_erases_offset) + key.low % layout::spill_erase_counters;
  }
  static std::optional<uint32_t> owner_in(uint64_t word) {
    const uint64_t owner = word >> layout::spill_segment_slot_shift;
    return owner == 0 || owner > layout::spill_slots ? std::nullopt
                                                     : std::optional(static_cast<uint32_t>(owner - 1));
  }
  static uint64_t word_of(uint32_t slot, uint64_t now_ms) {
    return uint64_t{slot + 1} << layout::spill_segment_slot_shift | (now_ms & layout::spill_segment_age_mask);
  }
  static void count_up(uint64_t* word);

  std::byte* const memory_;
  const SpillGeometry geometry_;
};

}  // namespace terrace::kv
