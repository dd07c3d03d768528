// SPDX-License-Identifier: Apache-2.0
// BlockPart: the steps of block_part.h.
#pragma once

namespace terrace::kv {

template <CoherenceMemory Memory>
void BlockPart<Memory>::take_over() {
  MutexLock lock(mutex_);
  memory_.invalidate(geometry_.part_at(part_), geometry_.records_end(), Step::take_over_invalidated);
  memory_.load_barrier(Step::take_over_before_look);
  coherence::store_owner(memory_, geometry_, part_, epoch_, host_, layout::PartState::repairing);
  memory_.store_barrier(Step::none);
  coherence::clear_pins(memory_, geometry_, part_);
  coherence::FreeSpace owned;
  chunks_.take_over(&owned);
  for (uint32_t chunk = 0; chunk < geometry_.chunks; ++chunk)
    if (owned.has(geometry_.chunk_begin(chunk), geometry_.chunk_bytes)) room_.own(chunk);
  uint64_t steps = coherence::link_steps(Table{this});
  room_.expect(geometry_.records);
  for (uint32_t from = 0; from < geometry_.records; from += repaired_at_once)
    repair_all(from, std::min(from + repaired_at_once, geometry_.records), &steps);
  if (steps == 0) coherence::link_all(Table{this});
  for (uint32_t chunk = 0; chunk < geometry_.chunks; ++chunk)
    if (room_.is_empty(chunk)) give_back(chunk);
  coherence::store_owner(memory_, geometry_, part_, epoch_, host_, layout::PartState::owned);
  memory_.store_barrier(Step::none);  // what is late here is only late: who uses it has a barrier of its own
}

// Some records: first which of them are live, then a copy of each, then each is looked at. Live ones lie among others at random, so
// a branch for each record would be wrong half of the time, and take longer than all else.
template <CoherenceMemory Memory>
void BlockPart<Memory>::repair_all(uint32_t from, uint32_t to, uint64_t* link_steps) {
  uint32_t live[repaired_at_once], count = 0;
  for (uint32_t index = from; index < to; ++index) {
    live[count] = index;
    count += has(word(index), layout::word_live) ? 1 : 0;
  }
  layout::BlockRecord copies[repaired_at_once];
  for (uint32_t at = 0; at < count; ++at) {
    const auto* const words = reinterpret_cast<const uint64_t*>(record(live[at]));
    uint64_t copy[sizeof(layout::BlockRecord) / sizeof(uint64_t)];
    for (size_t part = 0; part < std::size(copy); ++part) copy[part] = memory_.load(words + part);
    std::memcpy(&copies[at], copy, sizeof copy);
  }
  live_ += count;
  // A chain is linked while its lines are still at hand; what is cut behind it later ends no chain that goes on.
  for (uint32_t at = 0; at < count; ++at)
    if (!repair(live[at], copies[at]))
      make_gone(live[at]);
    else if (geometry_.home(copies[at].key[0]) != live[at])
      coherence::link_chain(Table{this}, live[at], link_steps);
}

// Whether a live record stays. What it had of the data is noted, its word is that of a block that stays.
template <CoherenceMemory Memory>
bool BlockPart<Memory>::repair(uint32_t index, const layout::BlockRecord& found) {
  // Nobody published that often: versions never wrap into the flags.
  if (coherence::version_of(found.word) > layout::word_version_mask / 2) return false;
  const std::optional<Block> whole = block_of(found, geometry_);
  if (!whole || !room_.note(whole->offset, whole->extent_bytes, index)) return false;
  const uint64_t kept = block_state(found.word) | layout::word_linked;
  if (found.word != kept) set_word(index, kept, Step::take_over_written_back);
  return true;
}

template <CoherenceMemory Memory>
Outcome BlockPart<Memory>::reserve(uint64_t bytes, Room* room, bool may_claim) {
  MutexLock lock(mutex_);
  if (!still_owner()) return Outcome::disowned;
  if (live_ >= geometry_.records - geometry_.records / 4) return Outcome::no_record;  // chains stay short
  std::vector<uint32_t> bad;
  std::optional<uint64_t> offset = room_.take(bytes, &bad);
  drop(bad);
  if (!offset && may_claim) {
    coherence::FreeSpace fresh;
    const Outcome claimed = chunks_.make_room(geometry_.chunk_bytes, &fresh);
    if (claimed != Outcome::done) return claimed;
    // One that is the part's already looks free when the memory went away, or when a hostile holder
    // stored to the claim.
    for (uint32_t chunk = 0; chunk < geometry_.chunks; ++chunk)
      if (fresh.has(geometry_.chunk_begin(chunk), geometry_.chunk_bytes) && !room_.owns(chunk))
        room_.own(chunk);
    offset = room_.take(bytes, &bad);
  }
  if (!offset) return Outcome::full;
  *room = {.offset = *offset, .bytes = bytes};
  return Outcome::done;
}

template <CoherenceMemory Memory>
void BlockPart<Memory>::cancel(const Room& room) {
  // Nothing of this part may stay dirty in a cache: an eviction later would overwrite the next owner's.
  memory_.write_back(geometry_.data() + room.offset, room.bytes, Step::abort_written_back);
  MutexLock lock(mutex_);
  memory_.store_barrier(Step::none);
  give_room(room, no_record);
}

template <CoherenceMemory Memory>
Outcome BlockPart<Memory>::publish(const Room& room, Block* block, uint64_t now_unix_s) {
  memory_.write_back(geometry_.data() + room.offset, room.bytes, Step::data_written_back);
  memory_.store_barrier(Step::data_before_flip);
  MutexLock lock(mutex_);
  if (!still_owner()) return Outcome::disowned;
  Block other;
  const bool exists = reader_.find(part_, block->key, now_unix_s, &other) == Outcome::done;
  const bool full = live_ >= geometry_.records - geometry_.records / 4;
  if (exists || full) {
    give_room(room, no_record);
    return exists ? Outcome::exists : Outcome::no_record;
  }
  uint32_t index = geometry_.home(block->key.low);
  while (has(word(index), layout::word_live)) index = (index + 1) & (geometry_.records - 1);
  block->part = part_;
  block->record = index;
  block->offset = room.offset;
  block->extent_bytes = room.bytes;
  const layout::BlockRecord copy =
      record_of(*block, (coherence::version_of(word(index)) + 1) & layout::word_version_mask);
  block->word = copy.word;
  ++live_;
  store_record(index, copy);
  return Outcome::done;
}

// The word last: all of it is one line, whose stores reach the memory in their order.
template <CoherenceMemory Memory>
void BlockPart<Memory>::store_record(uint32_t index, const layout::BlockRecord& copy) {
  uint64_t words[sizeof copy / sizeof(uint64_t)];
  std::memcpy(words, &copy, sizeof copy);
  auto* const to = reinterpret_cast<uint64_t*>(record(index));
  for (size_t at = 1; at < std::size(words); ++at) memory_.store(to + at, words[at]);
  set_word(index, copy.word, Step::flip_written_back);
  memory_.store_barrier(Step::flip_before_return);
}

template <CoherenceMemory Memory>
Outcome BlockPart<Memory>::remove(const Block& block) {
  MutexLock lock(mutex_);
  if (!still_owner()) return Outcome::disowned;
  const uint64_t before = word(block.record);
  if (!has(before, layout::word_live) || block_state(before) != block_state(block.word)) return Outcome::gone;
  if (pinned(block.record, Step::retire_pin_check)) return Outcome::pinned;
  set_word(block.record, before | layout::word_retiring, Step::retire_written_back);
  memory_.full_barrier(Step::retire_before_pins);
  if (pinned(block.record, Step::retire_pin_check)) {
    set_word(block.record, before, Step::none);
    memory_.store_barrier(Step::none);
    return Outcome::pinned;
  }
  make_gone(block.record);
  give_room({.offset = block.offset, .bytes = block.extent_bytes}, block.record);
  return Outcome::done;
}

template <CoherenceMemory Memory>
void BlockPart<Memory>::note_use(const Block& block, uint32_t now_unix_s) {
  MutexLock lock(mutex_);
  if (block_state(word(block.record)) != block_state(block.word)) return;
  // Beside namespace and checksum in one word: all of it is this part's, and nothing else of it changes.
  auto* const times = reinterpret_cast<uint64_t*>(&record(block.record)->expires_unix_s);
  memory_.store(times, uint64_t{now_unix_s} << 32 | block.expires_unix_s);
  memory_.write_back(times, sizeof(uint64_t), Step::none);
}

template <CoherenceMemory Memory>
template <typename Each>
void BlockPart<Memory>::each_block(uint32_t from, uint32_t to, Each each) {
  for (uint32_t index = from; index < to; ++index) {
    Block block;
    if (has(word(index), layout::word_live) && reader_.describe(part_, index, &block) == Outcome::done)
      each(block);
  }
}

template <CoherenceMemory Memory>
void BlockPart<Memory>::make_gone(uint32_t index) {
  const uint64_t next = (coherence::version_of(word(index)) + 1) & layout::word_version_mask;
  set_word(index, layout::word_linked | next, Step::gone_written_back);
  memory_.store_barrier(Step::gone_before_reuse);
  --live_;
  coherence::unlink_tail(Table{this}, index);
}

template <CoherenceMemory Memory>
void BlockPart<Memory>::give_room(const Room& room, uint32_t index) {
  std::vector<uint32_t> bad;
  room_.give(room.offset, room.bytes, index, &bad);
  drop(bad);
  const uint32_t chunk = room_.chunk_of(room.offset);
  if (room_.is_empty(chunk)) give_back(chunk);
}

template <CoherenceMemory Memory>
void BlockPart<Memory>::give_back(uint32_t chunk) {
  coherence::FreeSpace whole;
  whole.give(geometry_.chunk_begin(chunk), geometry_.chunk_bytes);
  room_.disown(chunk);
  chunks_.give_back(geometry_.chunk_begin(chunk), geometry_.chunk_bytes, &whole);
}

// Records without room of their own.
template <CoherenceMemory Memory>
void BlockPart<Memory>::drop(const std::vector<uint32_t>& bad) {
  for (const uint32_t index : bad)
    if (has(word(index), layout::word_live)) make_gone(index);
}

}  // namespace terrace::kv
