// SPDX-License-Identifier: Apache-2.0
// A space as one holder sees it: all parts to read, and one of them to write or a seat to pin from. The
// protocol without names of errors, waiting or threads; TensorSpace (tensor_space.cc) adds those, the
// emulator's tests drive this directly.
#pragma once

#include <memory>

#include "libclient/coherence/part.h"
#include "libclient/coherence/seat.h"

namespace terrace::coherence {

template <CoherenceMemory Memory>
class SpaceCore {
 public:
  SpaceCore(Memory memory, const Geometry& geometry, IsDead is_dead)
      : memory_(memory), geometry_(geometry), reader_(memory, geometry), is_dead_(std::move(is_dead)) {}

  Reader<Memory>& reader() { return reader_; }
  OwnedPart<Memory>* own() { return own_.get(); }
  const Geometry& geometry() const { return geometry_; }

  // The caller owns `part` under `epoch`.
  void become_owner(uint32_t part, uint64_t epoch, uint64_t host) {
    own_ = std::make_unique<OwnedPart<Memory>>(memory_, geometry_, part, epoch, host, is_dead_);
    own_->take_over();
  }
  // The caller owns that seat, `parts` + its number, under `epoch`; it has no part yet.
  void take_seat(uint32_t holder, uint64_t epoch, uint64_t host) {
    auto seat = std::make_unique<Seat<Memory>>(memory_, geometry_, holder, epoch, host);
    seat->take_over();
    seat_ = std::move(seat);
  }
  void forget_owner() {
    own_.reset();
    seat_.reset();
  }
  Seat<Memory>* seat() { return seat_.get(); }
  // Of the seat or part that is owned: a holder that had a seat before it got a part pins from the seat still.
  PinTable<Memory>& pins() { return seat_ ? seat_->pins() : own_->pins(); }

  // Returns done, gone, raced, corrupt. Tentative tensors are not there yet.
  Outcome find(std::string_view name, Located* found) {
    const uint64_t hash = name_hash(name);
    Outcome worst = Outcome::gone;
    for (uint32_t part = 0; part < geometry_.parts; ++part) {
      uint64_t word = 0;
      const Outcome outcome = reader_.find(part, hash, name, found, &word);
      if (outcome == Outcome::done && !has(word, layout::word_tentative)) return outcome;
      if (outcome != Outcome::done && outcome != Outcome::gone) worst = outcome;
    }
    return worst;
  }

  // A name is unique: each creator first makes its own tentative record visible, then looks at all other parts.
  // Of two that meet, at least one sees the other, and who sees another withdraws: maybe both. `placed` is told
  // of the tensor before anybody can find it, for who keeps books. Returns done, exists, raced (another creator
  // was met: again, after a moment of one's own length), full,
  // crowded, disowned (also who has no part).
  template <typename Placed>
  Outcome create(std::string_view name, const layout::TensorShape& planned, Located* created, Placed placed) {
    if (own_ == nullptr) return Outcome::disowned;
    if (find(name, created) == Outcome::done) return Outcome::exists;
    const Outcome room = own_->place(name, planned, created);
    if (room != Outcome::done) return room;
    placed(*created);
    const Outcome others = memory_.performs(Step::create_look) ? look_at_others(name) : Outcome::done;
    if (others != Outcome::done) {
      own_->withdraw(*created);
      return others;
    }
    own_->confirm(*created);
    return Outcome::done;
  }

  Outcome create(std::string_view name, const layout::TensorShape& planned, Located* created) {
    return create(name, planned, created, [](const Located&) {});
  }

  // Pins the newest version. Returns done, writing, blank, gone, raced, corrupt, full (no pin left).
  Outcome pin(const Located& tensor, uint32_t* pin, uint64_t* version, std::span<const std::byte>* bytes) {
    const Look seen = reader_.look(tensor);
    if (seen.outcome != Outcome::done) return seen.outcome;
    const uint32_t slot = slot_of(seen.version, tensor.shape.slot_count);
    const std::optional<uint32_t> held = pins().hold(pin_word(tensor.part, tensor.record, slot));
    if (!held) return Outcome::full;
    memory_.full_barrier(Step::pin_before_recheck);
    Outcome outcome = Outcome::raced;
    if (reader_.holds_after_pin(tensor, seen.version, is_dead_))
      outcome = reader_.open_in_place(tensor, seen.version, bytes);
    if (outcome != Outcome::done) pins().drop(*held);
    *pin = *held;
    *version = seen.version;
    return outcome;
  }

 private:
  Outcome look_at_others(std::string_view name) {
    const uint64_t hash = name_hash(name);
    for (uint32_t part = 0; part < geometry_.parts; ++part) {
      if (part == own_->part()) continue;
      Located other;
      uint64_t word = 0;
      const Outcome outcome = reader_.find(part, hash, name, &other, &word);
      if (outcome == Outcome::gone || outcome == Outcome::corrupt) continue;
      if (outcome == Outcome::raced) return Outcome::raced;
      if (!has(word, layout::word_tentative)) return Outcome::exists;
      const Outcome left = tentative_left_by_dead(other, hash, name);
      if (left != Outcome::done) return left;
    }
    return Outcome::done;
  }

  // A tentative tensor of another part is in nobody's way once its creator is dead. The creator may have
  // confirmed it between the look and its death, so the look is done again when nothing changes any more.
  // Returns done, exists, raced.
  Outcome tentative_left_by_dead(const Located& tentative, uint64_t hash, std::string_view name) {
    if (!is_dead_(tentative.part, owner_epoch(tentative.part))) return Outcome::raced;
    Located now;
    uint64_t word = 0;
    const Outcome outcome = reader_.find(tentative.part, hash, name, &now, &word);
    if (outcome == Outcome::gone || outcome == Outcome::corrupt) return Outcome::done;
    if (outcome != Outcome::done) return Outcome::raced;
    if (!has(word, layout::word_tentative)) return Outcome::exists;
    // Another incarnation is the next owner's, who lives.
    return now.incarnation == tentative.incarnation ? Outcome::done : Outcome::raced;
  }

  uint64_t owner_epoch(uint32_t part) {
    const layout::PartOwner* const owner = geometry_.owner(part);
    memory_.invalidate(owner, sizeof *owner, Step::pins_invalidated);
    memory_.load_barrier(Step::pins_before_look);
    return memory_.load(&owner->epoch);
  }

  Memory memory_;
  const Geometry geometry_;
  Reader<Memory> reader_;
  const IsDead is_dead_;
  std::unique_ptr<OwnedPart<Memory>> own_;
  std::unique_ptr<Seat<Memory>> seat_;
};

}  // namespace terrace::coherence
