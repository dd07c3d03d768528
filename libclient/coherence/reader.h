// SPDX-License-Identifier: Apache-2.0
// The operations of any holder on any part: find a tensor by name, get its version, copy it, read it in place.
// One attempt each; the caller waits. Every number from the space is copied and checked before use as a place.
// So a hostile writer can make an answer wrong, but never make a read leave the space.
//
// Threads   Any number.
#pragma once

#include <cstring>
#include <functional>
#include <span>
#include <string_view>

#include "core/base/crc32c.h"
#include "libclient/coherence/geometry.h"
#include "libclient/coherence/memory/memory.h"
#include "libclient/coherence/word.h"

namespace terrace::coherence {

// A tensor that was found: private copies of numbers that were checked.
struct Located {
  uint32_t part = 0;
  uint32_t record = 0;
  uint64_t incarnation = 0;
  layout::TensorShape shape{};
};

// Whether the owner of `part` under `epoch` is shut out for good: it stores nothing any more, and nothing that
// it stored is still in a cache. false while that is not sure.
using IsDead = std::function<bool(uint32_t part, uint64_t epoch)>;

struct Look {
  Outcome outcome = Outcome::gone;
  uint64_t word = 0;
  uint64_t version = 0;  // when outcome is done
};

template <CoherenceMemory Memory>
class Reader {
 public:
  Reader(Memory memory, const Geometry& geometry) : memory_(memory), geometry_(geometry) {}

  layout::TensorSlots* slots(const Located& tensor) const {
    return &geometry_.record(tensor.part, tensor.record)->slots;
  }
  std::byte* data(const Located& tensor, uint32_t slot) const {
    return geometry_.data() + tensor.shape.data_offset + slot * tensor.shape.slot_stride_bytes;
  }

  // The newest published version.
  Look look(const Located& tensor) {
    const layout::TensorSlots* const line = slots(tensor);
    drop_line(line, Step::record_invalidated, Step::record_before_look);
    return judge(tensor, memory_.load(&line->word));
  }

  // Whether `version` is the newest, by one load where the hardware is coherent.
  bool is_current(const Located& tensor, uint64_t version) {
    const layout::TensorSlots* const line = slots(tensor);
    drop_line(line, Step::record_invalidated, Step::record_before_look);
    const uint64_t word = memory_.load(&line->word);
    if (word == (layout::word_live | layout::word_linked | version)) [[likely]]
      return true;
    const Look seen = judge(tensor, word);
    return seen.outcome == Outcome::done && seen.version == version;
  }

  // Copies the newest version into `into` (data_bytes long), unless it is `known`.
  // Returns done, current, writing, blank, gone; raced: it was overwritten meanwhile; corrupt: a checksum.
  Outcome read(const Located& tensor, std::span<std::byte> into, uint64_t known, uint64_t* version) {
    const Look seen = look(tensor);
    if (seen.outcome != Outcome::done) return seen.outcome;
    *version = seen.version;
    if (seen.version == known) return Outcome::current;
    const uint32_t slot = slot_of(seen.version, tensor.shape.slot_count);
    const std::byte* const from = data(tensor, slot);
    memory_.invalidate(from, tensor.shape.data_bytes, Step::data_invalidated);
    memory_.load_barrier(Step::data_before_read);
    memory_.read(into.data(), from, tensor.shape.data_bytes);
    const uint32_t sum = checksum_of(tensor, slot);
    if (!recheck(tensor, seen.version)) return Outcome::raced;
    if (geometry_.checksums() && in_place_checksum(into) != sum) return Outcome::corrupt;
    return Outcome::done;
  }

  // After a pin is in place: whether `version` is still whole, and nobody decided before to overwrite it. A
  // mark of one who died over it is nobody's: the next owner looks at the pins again.
  bool holds_after_pin(const Located& tensor, uint64_t version, const IsDead& is_dead) {
    if (!memory_.performs(Step::pin_recheck)) return true;
    const layout::TensorSlots* const line = slots(tensor);
    drop_line(line, Step::recheck_invalidated, Step::recheck_before_look);
    const uint64_t word = memory_.load(&line->word);
    if (!still_holds(word, version, tensor.shape.slot_count)) return false;
    if (!has(word, layout::word_retiring)) return true;
    if (!is_dead(tensor.part, memory_.load(&line->owner_epoch))) return false;
    // It may have finished the removal before it died: seen for sure only now. Every next owner sees the pin.
    drop_line(line, Step::recheck_invalidated, Step::recheck_before_look);
    const uint64_t left = memory_.load(&line->word);
    return still_holds(left, version, tensor.shape.slot_count) &&
           (left == word || !has(left, layout::word_retiring));
  }

  // Makes a pinned slot readable in place; corrupt when it does not have its checksum.
  Outcome open_in_place(const Located& tensor, uint64_t version, std::span<const std::byte>* bytes) {
    const uint32_t slot = slot_of(version, tensor.shape.slot_count);
    *bytes = {data(tensor, slot), tensor.shape.data_bytes};
    memory_.invalidate(bytes->data(), bytes->size(), Step::data_invalidated);
    memory_.load_barrier(Step::data_before_read);
    if (!geometry_.checksums()) return Outcome::done;
    return in_place_checksum(*bytes) == checksum_of(tensor, slot) ? Outcome::done : Outcome::corrupt;
  }

  // Of bytes in the space, which may be changing, or gone.
  uint32_t in_place_checksum(std::span<const std::byte> bytes) {
    std::byte piece[4096];
    uint32_t sum = 0;
    for (size_t at = 0; at < bytes.size(); at += sizeof piece) {
      const size_t length = std::min(sizeof piece, bytes.size() - at);
      memory_.read(piece, bytes.data() + at, length);
      memory_.load_barrier(Step::none);
      sum = crc32c({piece, length}, sum);
    }
    return sum;
  }

  // Looks for `name` in one part. `*word` is the record's when it was found: it may be tentative.
  // Returns done, gone, raced (it kept changing), corrupt (a record that should be it makes no sense).
  Outcome find(uint32_t part, uint64_t hash, std::string_view name, Located* found, uint64_t* word) {
    Outcome worst = Outcome::gone;
    uint32_t record = geometry_.home(hash);
    for (uint32_t probes = 0; probes < geometry_.records; ++probes) {
      const layout::TensorSlots* const line = &geometry_.record(part, record)->slots;
      drop_line(line, Step::record_invalidated, Step::record_before_look);
      *word = memory_.load(&line->word);
      if (!has(*word, layout::word_linked)) return worst;
      if (has(*word, layout::word_live) && memory_.load(&line->name_hash) == hash) {
        const Outcome described = describe(part, record, name, found, word);
        if (described == Outcome::done) return described;
        if (described != Outcome::gone) worst = described;
      }
      record = (record + 1) & (geometry_.records - 1);
    }
    return worst;
  }

  // Copies and checks a record's description. gone: it is not live, or another name's (an empty `name` takes
  // any, and leaves its bytes in `*found_name`).
  Outcome describe(uint32_t part, uint32_t record, std::string_view name, Located* found, uint64_t* word,
                   std::span<char> found_name = {}) {
    constexpr int attempts = 16;  // each failed one is a removal and a creation in this record meanwhile
    Outcome outcome = Outcome::raced;
    for (int attempt = 0; attempt < attempts && outcome == Outcome::raced; ++attempt)
      outcome = describe_once(part, record, name, found, word, found_name);
    return outcome;
  }

  Memory memory() const { return memory_; }
  const Geometry& geometry() const { return geometry_; }

 private:
  void drop_line(const void* line, Step invalidated, Step before_look) {
    memory_.invalidate(line, layout::cache_line_bytes, invalidated);
    memory_.load_barrier(before_look);
  }

  Look judge(const Located& tensor, uint64_t word) {
    // After the word: an incarnation is stored before the word says live, so that what matches is this one's.
    if (memory_.load(&slots(tensor)->incarnation) != tensor.incarnation) return {Outcome::gone, word};
    const Stable stable = stable_of(word, tensor.shape.slot_count);
    return {stable.outcome, word, stable.version};
  }

  bool recheck(const Located& tensor, uint64_t version) {
    if (!memory_.performs(Step::recheck)) return true;
    memory_.load_barrier(Step::read_before_recheck);
    const layout::TensorSlots* const line = slots(tensor);
    drop_line(line, Step::recheck_invalidated, Step::recheck_before_look);
    return still_holds(memory_.load(&line->word), version, tensor.shape.slot_count);
  }

  uint32_t checksum_of(const Located& tensor, uint32_t slot) {
    return static_cast<uint32_t>(memory_.load(&slots(tensor)->data_checksums) >> (slot * 32));
  }

  // The incarnation is read before the word and again at the end: a record is given to another tensor only
  // after it was not live, with the incarnation changed before its shape.
  Outcome describe_once(uint32_t part, uint32_t record, std::string_view name, Located* found, uint64_t* word,
                        std::span<char> found_name) {
    const layout::SpaceRecord* const at = geometry_.record(part, record);
    drop_line(&at->slots, Step::record_invalidated, Step::record_before_look);
    const uint64_t incarnation = memory_.load(&at->slots.incarnation);
    const uint64_t first = memory_.load(&at->slots.word);
    if (!has(first, layout::word_live)) return Outcome::gone;
    const uint64_t hash = memory_.load(&at->slots.name_hash);
    layout::TensorShape shape;
    memory_.invalidate(&at->shape, sizeof shape, Step::shape_invalidated);
    memory_.load_barrier(Step::shape_before_read);
    memory_.read(&shape, &at->shape, sizeof shape);
    memory_.load_barrier(Step::none);
    const bool sensible = possible(shape, geometry_);
    char text[layout::space_name_bytes_max];
    if (sensible) {
      const std::byte* const name_at = geometry_.data() + shape.extent_offset;
      memory_.invalidate(name_at, shape.name_bytes, Step::shape_invalidated);
      memory_.load_barrier(Step::shape_before_read);
      memory_.read(text, name_at, shape.name_bytes);
    }
    memory_.load_barrier(Step::read_before_recheck);
    drop_line(&at->slots, Step::recheck_invalidated, Step::recheck_before_look);
    *word = memory_.load(&at->slots.word);
    if (memory_.load(&at->slots.incarnation) != incarnation) return Outcome::raced;
    if (!has(*word, layout::word_live)) return Outcome::gone;
    const std::string_view seen(text, sensible ? shape.name_bytes : 0);
    if (!sensible || shape_checksum(shape, incarnation, hash, seen) != shape.checksum || !is_utf8(seen) ||
        hash != name_hash(seen))
      return Outcome::corrupt;
    if (!name.empty() && seen != name) return Outcome::gone;
    if (!found_name.empty()) std::memcpy(found_name.data(), text, std::min(found_name.size(), seen.size()));
    *found = {.part = part, .record = record, .incarnation = incarnation, .shape = shape};
    return Outcome::done;
  }

  Memory memory_;
  const Geometry geometry_;
};

}  // namespace terrace::coherence
