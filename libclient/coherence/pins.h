// SPDX-License-Identifier: Apache-2.0
// Reading in place: a reader stores a pin in a word of its OWN part or seat, and a writer looks at all holders'
// pins before it overwrites.
//
//   reader                             owner of the tensor
//   look at the record: version v      word := v + 1 (or retiring), written back
//   pin := (part, record, slot)        full barrier
//   written back; full barrier         look at all pins
//   look at the record again           pinned: word := v again, and the caller waits
//   v still there: read as long as needed, then pin := 0
//
// Each stores first, and only then looks: if a reader and an owner meet, at least one sees the other. Pins of a
// dead holder do not count.
//
// A word may also ask the owner of a part to remove a tensor. Such a request orders nothing: the owner removes
// the tensor as usual, or does not, and the requester checks whether it is gone.
#pragma once

#include <optional>
#include <vector>

#include "core/base/sync/mutex.h"
#include "libclient/coherence/reader.h"

namespace terrace::coherence {

// The pins of this process, in the part or seat that it owns.
//
// Threads   Any number.
template <CoherenceMemory Memory>
class PinTable {
 public:
  PinTable(Memory memory, const Geometry& geometry, uint32_t holder)
      : memory_(memory), geometry_(geometry), holder_(holder) {}

  // Visible to owners once a full barrier is behind it: full_barrier(Step::pin_before_recheck).
  // Nothing when all are in use.
  std::optional<uint32_t> hold(uint64_t pin) {
    MutexLock lock(mutex_);
    uint32_t index = 0;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else if (used_ < geometry_.pins) {
      index = used_++;
      uint64_t* const used = &geometry_.owner(holder_)->pins_used;
      memory_.store(used, used_);
      memory_.write_back(used, sizeof *used, Step::pin_written_back);
    } else {
      return std::nullopt;
    }
    memory_.store(geometry_.pin(holder_, index), pin);
    memory_.write_back(geometry_.pin(holder_, index), sizeof(uint64_t), Step::pin_written_back);
    return index;
  }

  // The reads are done. An owner may learn of it late.
  void drop(uint32_t index) {
    memory_.load_barrier(Step::none);
    MutexLock lock(mutex_);
    memory_.store(geometry_.pin(holder_, index), 0);
    memory_.write_back(geometry_.pin(holder_, index), sizeof(uint64_t), Step::none);
    free_.push_back(index);
  }

  uint32_t in_use() const {
    MutexLock lock(mutex_);
    return used_ - static_cast<uint32_t>(free_.size());
  }

 private:
  Memory memory_;
  const Geometry geometry_;
  const uint32_t holder_;
  mutable Mutex mutex_;
  std::vector<uint32_t> free_ TERRACE_GUARDED_BY(mutex_);
  uint32_t used_ TERRACE_GUARDED_BY(mutex_) = 0;
};

// Gives `look` each word of every holder's pins, with the holder, until it returns true; whether it did.
template <CoherenceMemory Memory, typename Look>
bool any_pin(Memory memory, const Geometry& geometry, Look look) {
  for (uint32_t holder = 0; holder < geometry.holders(); ++holder)
    memory.invalidate(geometry.owner(holder), sizeof(layout::PartOwner), Step::pins_invalidated);
  memory.load_barrier(Step::pins_before_look);
  uint32_t used[layout::space_holders_max];
  bool any = false;
  for (uint32_t holder = 0; holder < geometry.holders(); ++holder) {
    const uint64_t count = memory.load(&geometry.owner(holder)->pins_used);
    used[holder] = static_cast<uint32_t>(std::min<uint64_t>(count, geometry.pins));
    if (used[holder] == 0) continue;
    any = true;
    memory.invalidate(geometry.pin(holder, 0), used[holder] * sizeof(uint64_t), Step::pins_invalidated);
  }
  if (!any) return false;
  memory.load_barrier(Step::pins_before_look);
  for (uint32_t holder = 0; holder < geometry.holders(); ++holder)
    for (uint32_t index = 0; index < used[holder]; ++index)
      if (look(holder, memory.load(geometry.pin(holder, index)))) return true;
  return false;
}

// Whether anybody who lives has pinned a slot of a record; any slot when `slot` is nothing.
template <CoherenceMemory Memory>
bool anybody_pinned(Memory memory, const Geometry& geometry, uint32_t part, uint32_t record,
                    std::optional<uint32_t> slot, const IsDead& is_dead) {
  return any_pin(memory, geometry, [&](uint32_t holder, uint64_t pin) {
    const bool hit = slot ? pin == pin_word(part, record, *slot)
                          : pin == pin_word(part, record, 0) || pin == pin_word(part, record, 1);
    return hit && !is_dead(holder, memory.load(&geometry.owner(holder)->epoch));
  });
}

// What holders ask the owner of `part` to remove.
template <CoherenceMemory Memory>
std::vector<Removal> removals_asked(Memory memory, const Geometry& geometry, uint32_t part) {
  std::vector<Removal> asked;
  any_pin(memory, geometry, [&](uint32_t, uint64_t pin) {
    if ((pin & (layout::pin_used | layout::pin_asks_removal)) != layout::pin_asks_removal) return false;
    const Removal removal = removal_of(pin);
    if (removal.part == part && removal.record < geometry.records) asked.push_back(removal);
    return false;
  });
  return asked;
}

}  // namespace terrace::coherence
