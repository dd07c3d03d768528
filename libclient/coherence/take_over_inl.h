// SPDX-License-Identifier: Apache-2.0
// OwnedPart: becoming a part's owner, and leaving it. The last owner may have died anywhere, or have been
// hostile: every record is checked before it is believed.
#pragma once

namespace terrace::coherence {

template <CoherenceMemory Memory>
void OwnedPart<Memory>::set_owner(layout::PartState state) {
  store_owner(memory_, geometry_, part_, epoch_, host_, state);
}

template <CoherenceMemory Memory>
void OwnedPart<Memory>::take_over() {
  MutexLock lock(mutex_);
  // Of the data nothing is read but names, which describe() asks the memory for; a slot is stored whole.
  memory_.invalidate(geometry_.part_at(part_), geometry_.records_end(), Step::take_over_invalidated);
  memory_.load_barrier(Step::take_over_before_look);
  set_owner(layout::PartState::repairing);
  memory_.store_barrier(Step::none);
  clear_pins(memory_, geometry_, part_);
  free_ = FreeSpace();
  chunks_.take_over(&free_);
  live_ = 0;
  for (uint32_t index = 0; index < geometry_.records; ++index) {
    const uint64_t word = memory_.load(word_at(index));
    if (!has(word, layout::word_live)) continue;
    ++live_;
    if (!repair(index, word)) make_gone(index, word);
  }
  chunks_.give_back(0, geometry_.data_bytes, &free_);
  link_chains(Table{this});
  set_owner(layout::PartState::owned);
  memory_.store_barrier(Step::none);  // what is late here is only late: who uses it has a barrier of its own
}

// Whether a live record stays. Its extent is taken, its word is even afterwards.
template <CoherenceMemory Memory>
bool OwnedPart<Memory>::repair(uint32_t index, uint64_t word) {
  Located tensor;
  uint64_t seen = 0;
  if (has(word, layout::word_tentative)) return false;
  // Nobody published that often: versions never wrap into the flags.
  if (version_of(word) > layout::word_version_mask / 2) return false;
  if (reader_.describe(part_, index, {}, &tensor, &seen) != Outcome::done) return false;
  if (!free_.take_at(tensor.shape.extent_offset, tensor.shape.extent_bytes)) return false;
  const uint64_t kept = layout::word_live | layout::word_linked | (word & layout::word_blank);
  if (version_of(word) % 2 == 0) {
    if (word != (kept | version_of(word)))
      set_word(index, kept | version_of(word), Step::take_over_written_back);
    return true;
  }
  if (!memory_.performs(Step::take_over_roll_back)) {
    set_word(index, kept | (version_of(word) + 1), Step::take_over_written_back);
    return true;
  }
  // Back to the slot of the version before, under a number that nobody saw: the next one but one has that slot,
  // too. The only slot of a tensor may be half-written: its content is lost.
  const uint64_t lost = tensor.shape.slot_count == 1 ? layout::word_blank : 0;
  set_word(index, kept | lost | (version_of(word) - 1 + 4), Step::take_over_written_back);
  return true;
}

template <CoherenceMemory Memory>
void OwnedPart<Memory>::release() {
  MutexLock lock(mutex_);
  store_free(memory_, geometry_, part_);
}

}  // namespace terrace::coherence
