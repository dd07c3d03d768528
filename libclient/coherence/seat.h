// SPDX-License-Identifier: Apache-2.0
// A seat: the pins of a holder that owned no part when it first pinned. It reads in place and stores nothing but
// them, so a reader never takes the part of a writer that died. It is owned as a part is, under the number
// `parts` + seat.
//
// Crash     Pins of a dead owner do not count; the next owner clears them.
// Threads   Any number of this process, as PinTable.
#pragma once

#include "libclient/coherence/owner_line.h"
#include "libclient/coherence/pins.h"

namespace terrace::coherence {

template <CoherenceMemory Memory>
class Seat {
 public:
  Seat(Memory memory, const Geometry& geometry, uint32_t holder, uint64_t epoch, uint64_t host)
      : memory_(memory),
        geometry_(geometry),
        holder_(holder),
        epoch_(epoch),
        host_(host),
        pins_(memory, geometry, holder) {}

  uint32_t holder() const { return holder_; }
  PinTable<Memory>& pins() { return pins_; }

  void take_over() {
    memory_.invalidate(geometry_.owner(holder_), geometry_.records_offset(), Step::take_over_invalidated);
    memory_.load_barrier(Step::take_over_before_look);
    store_owner(memory_, geometry_, holder_, epoch_, host_, layout::PartState::repairing);
    memory_.store_barrier(Step::none);
    clear_pins(memory_, geometry_, holder_);
    store_owner(memory_, geometry_, holder_, epoch_, host_, layout::PartState::owned);
    memory_.store_barrier(Step::none);
  }
  // No pin may be in use.
  void release() { store_free(memory_, geometry_, holder_); }

 private:
  Memory memory_;
  const Geometry geometry_;
  const uint32_t holder_;
  const uint64_t epoch_;
  const uint64_t host_;
  PinTable<Memory> pins_;
};

}  // namespace terrace::coherence
