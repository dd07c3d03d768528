// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/note_ring.h"

#include <new>

namespace terrace::tiering {

void NoteRing::open(void* memory) {
  places_ = static_cast<Place*>(memory);
  for (uint32_t i = 0; i < notes_max; ++i) {
    ::new (&places_[i]) Place{};
    places_[i].sequence.store(i, std::memory_order_relaxed);
  }
  next_.store(0, std::memory_order_relaxed);
  read_ = 0;
}

bool NoteRing::put(const Note& note) {
  uint32_t position = next_.load(std::memory_order_relaxed);
  for (;;) {
    // acquire pairs with take()'s release: the place is empty, for this lap.
    const uint32_t sequence = places_[position % notes_max].sequence.load(std::memory_order_acquire);
    if (sequence == position) {
      if (next_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) break;
    } else if (static_cast<int32_t>(sequence - position) < 0) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return false;
    } else {
      position = next_.load(std::memory_order_relaxed);
    }
  }
  Place& place = places_[position % notes_max];
  place.note = note;
  place.sequence.store(position + 1, std::memory_order_release);  // release: pairs with take()
  return true;
}

bool NoteRing::take(Note* note) {
  Place& place = places_[read_ % notes_max];
  // acquire pairs with put()'s release: the note is whole.
  if (place.sequence.load(std::memory_order_acquire) != read_ + 1) return false;
  *note = place.note;
  place.sequence.store(read_ + notes_max, std::memory_order_release);  // release: pairs with put()
  ++read_;
  return true;
}

}  // namespace terrace::tiering
