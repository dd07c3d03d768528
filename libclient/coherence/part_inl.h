// SPDX-License-Identifier: Apache-2.0
// OwnedPart: tensors of a part that is owned.
#pragma once

namespace terrace::coherence {

template <CoherenceMemory Memory>
Outcome OwnedPart<Memory>::place(std::string_view name, const layout::TensorShape& planned, Located* created) {
  const uint64_t hash = name_hash(name);
  MutexLock lock(mutex_);
  if (!still_owner()) return Outcome::disowned;
  uint64_t word = 0;
  // Another thread of this holder may be about to create it, or to give it up.
  if (reader_.find(part_, hash, name, created, &word) == Outcome::done)
    return has(word, layout::word_tentative) ? Outcome::raced : Outcome::exists;
  if (live_ >= geometry_.records - geometry_.records / 4) return Outcome::full;  // chains stay short
  uint32_t index = geometry_.home(hash);
  for (word = memory_.load(word_at(index)); has(word, layout::word_live); word = memory_.load(word_at(index)))
    index = (index + 1) & (geometry_.records - 1);
  uint64_t offset = 0;
  if (const Outcome room = take_room(planned.extent_bytes, &offset); room != Outcome::done) return room;
  ++live_;

  layout::SpaceRecord* const at = record(index);
  const uint64_t incarnation = memory_.load(&at->slots.incarnation) + 1;
  layout::TensorShape shape = planned;
  shape.extent_offset = offset;
  shape.data_offset = offset + planned.data_offset;
  shape.checksum = shape_checksum(shape, incarnation, hash, name);
  // The incarnation first: who still reads the description that was here must see it change.
  memory_.store(&at->slots.incarnation, incarnation);
  memory_.store(&at->slots.name_hash, hash);
  memory_.write_back(&at->slots, sizeof at->slots, Step::shape_written_back);
  memory_.store_barrier(Step::shape_before_live);
  memory_.write(&at->shape, &shape, sizeof shape);
  memory_.write(geometry_.data() + offset, name.data(), name.size());
  memory_.write_back(&at->shape, sizeof shape, Step::shape_written_back);
  memory_.write_back(geometry_.data() + offset, name.size(), Step::shape_written_back);
  memory_.store_barrier(Step::shape_before_live);
  set_word(index,
           layout::word_live | layout::word_linked | layout::word_blank | layout::word_tentative |
               (version_of(word) + 4),
           Step::live_written_back);
  memory_.full_barrier(Step::create_before_look);
  *created = {.part = part_, .record = index, .incarnation = incarnation, .shape = shape};
  return Outcome::done;
}

template <CoherenceMemory Memory>
void OwnedPart<Memory>::confirm(const Located& tensor) {
  MutexLock lock(mutex_);
  set_word(tensor.record, memory_.load(word_at(tensor.record)) & ~layout::word_tentative,
           Step::live_written_back);
  memory_.store_barrier(Step::live_before_return);
}

template <CoherenceMemory Memory>
void OwnedPart<Memory>::withdraw(const Located& tensor) {
  MutexLock lock(mutex_);
  make_gone(tensor.record, memory_.load(word_at(tensor.record)));
  give_room(tensor.shape);
}

template <CoherenceMemory Memory>
Outcome OwnedPart<Memory>::begin_write(const Located& tensor, Ticket* ticket) {
  MutexLock lock(mutex_);
  if (!still_owner()) return Outcome::disowned;
  const uint64_t word = memory_.load(word_at(tensor.record));
  if (!is_this(tensor, word)) return Outcome::gone;
  if (version_of(word) % 2 != 0) return Outcome::writing;
  const uint64_t version = version_of(word) + 2;
  const uint32_t slot = slot_of(version, tensor.shape.slot_count);
  // The only slot is not marked before it looks free: who dies while it waits for a reader shall not have lost
  // the content, nor kept others from reading it.
  if (tensor.shape.slot_count == 1 && pinned(tensor.record, slot, Step::pin_check)) return Outcome::pinned;
  set_word(tensor.record, word + 1, Step::mark_written_back);
  memory_.full_barrier(Step::mark_before_data);
  if (pinned(tensor.record, slot, Step::pin_check)) {
    set_word(tensor.record, word, Step::none);  // nothing was stored: the version is what it was
    memory_.store_barrier(Step::none);
    return Outcome::pinned;
  }
  *ticket = {.tensor = tensor,
             .before = word,
             .version = version,
             .bytes = {reader_.data(tensor, slot), tensor.shape.data_bytes}};
  return Outcome::done;
}

template <CoherenceMemory Memory>
void OwnedPart<Memory>::publish(const Ticket& ticket, uint32_t checksum) {
  const uint32_t index = ticket.tensor.record;
  memory_.write_back(ticket.bytes.data(), ticket.bytes.size(), Step::data_written_back);
  MutexLock lock(mutex_);
  if (geometry_.checksums()) {
    uint64_t* const sums = &record(index)->slots.data_checksums;
    const uint32_t shift = slot_of(ticket.version, ticket.tensor.shape.slot_count) * 32;
    memory_.store(sums, (memory_.load(sums) & ~(uint64_t{0xffffffff} << shift)) | uint64_t{checksum} << shift);
  }
  memory_.store_barrier(Step::data_before_flip);
  set_word(index, layout::word_live | layout::word_linked | ticket.version, Step::flip_written_back);
  memory_.store_barrier(Step::flip_before_return);
}

// A slot that was touched and a word that is as before would let through who read the slot meanwhile, having
// begun two versions ago. So the same content gets another number, as at a take-over.
template <CoherenceMemory Memory>
void OwnedPart<Memory>::abort(const Ticket& ticket, bool touched) {
  // Nothing of this part may stay dirty in a cache: an eviction after release() would overwrite the next
  // owner's.
  if (touched) memory_.write_back(ticket.bytes.data(), ticket.bytes.size(), Step::abort_written_back);
  MutexLock lock(mutex_);
  uint64_t word = ticket.before;
  if (touched && ticket.tensor.shape.slot_count == 1)
    word = layout::word_live | layout::word_linked | layout::word_blank | ticket.version;
  else if (touched)
    word = ticket.before + 4;
  set_word(ticket.tensor.record, word, Step::none);
  memory_.store_barrier(Step::none);
}

template <CoherenceMemory Memory>
Outcome OwnedPart<Memory>::remove(const Located& tensor) {
  MutexLock lock(mutex_);
  if (!still_owner()) return Outcome::disowned;
  const uint64_t word = memory_.load(word_at(tensor.record));
  if (!is_this(tensor, word)) return Outcome::gone;
  if (version_of(word) % 2 != 0) return Outcome::writing;
  if (pinned(tensor.record, std::nullopt, Step::retire_pin_check)) return Outcome::pinned;
  set_word(tensor.record, word | layout::word_retiring, Step::retire_written_back);
  memory_.full_barrier(Step::retire_before_pins);
  if (pinned(tensor.record, std::nullopt, Step::retire_pin_check)) {
    set_word(tensor.record, word, Step::none);
    memory_.store_barrier(Step::none);
    return Outcome::pinned;
  }
  make_gone(tensor.record, word);
  give_room(tensor.shape);
  return Outcome::done;
}

template <CoherenceMemory Memory>
uint64_t OwnedPart<Memory>::remove_what_peers_ask() {
  uint64_t removed = 0;
  for (const Removal& asked : removals_asked(memory_, geometry_, part_)) {
    Located tensor;
    uint64_t word = 0;
    if (reader_.describe(part_, asked.record, {}, &tensor, &word) != Outcome::done) continue;
    const bool allowed = (tensor.shape.flags & TensorFlags::peers_may_remove) != 0;
    if (allowed && asked_incarnation(tensor.incarnation) == asked.incarnation &&
        remove(tensor) == Outcome::done)
      ++removed;
  }
  return removed;
}

template <CoherenceMemory Memory>
Outcome OwnedPart<Memory>::take_room(uint64_t bytes, uint64_t* offset) {
  std::optional<uint64_t> room = free_.take(bytes);
  if (!room) {
    const Outcome claimed = chunks_.make_room(bytes, &free_);
    if (claimed != Outcome::done) return claimed;
    room = free_.take(bytes);
  }
  if (!room) return Outcome::full;
  *offset = *room;
  return Outcome::done;
}

template <CoherenceMemory Memory>
void OwnedPart<Memory>::give_room(const layout::TensorShape& shape) {
  free_.give(shape.extent_offset, shape.extent_bytes);
  chunks_.give_back(shape.extent_offset, shape.extent_bytes, &free_);
}

// Versions skip 4, so that nobody who read the old tensor takes its bytes for whole afterwards.
template <CoherenceMemory Memory>
void OwnedPart<Memory>::make_gone(uint32_t index, uint64_t word) {
  const uint64_t next = (version_of(word) + 4) & layout::word_version_mask & ~uint64_t{1};
  set_word(index, layout::word_linked | next, Step::gone_written_back);
  memory_.store_barrier(Step::gone_before_reuse);
  --live_;
  unlink_tail(Table{this}, index);
}

}  // namespace terrace::coherence
