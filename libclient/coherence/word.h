// SPDX-License-Identifier: Apache-2.0
// The meaning of a record's word, and the slot of a version. Pure.
#pragma once

#include <cstdint>

#include "core/layout/tensor_space.h"

namespace terrace::coherence {

inline constexpr uint64_t version_of(uint64_t word) {
  return word & layout::word_version_mask;
}
inline constexpr bool has(uint64_t word, uint64_t flag) {
  return (word & flag) != 0;
}

// Versions alternate between the slots, so that the word alone says where the bytes are.
inline constexpr uint32_t slot_of(uint64_t even_version, uint32_t slot_count) {
  return slot_count == 2 ? static_cast<uint32_t>(even_version >> 1) & 1 : 0;
}

enum class Outcome : uint8_t {
  done,
  current,    // the caller's version is the newest
  writing,    // a single-buffered tensor is being written (or its writer died at it); again later
  blank,      // nothing was published yet, or the content was lost with its writer
  gone,       // removed, or not found
  raced,      // it changed meanwhile; again
  pinned,     // somebody reads it in place; again later
  corrupt,    // the bytes contradict their checksum or themselves
  exists,     // the name is taken
  full,       // no record or no room
  crowded,    // others are claiming the same room; again
  disowned,   // the part has another owner by now
  no_record,  // the part's directory is full
};

struct Stable {
  Outcome outcome = Outcome::gone;
  uint64_t version = 0;  // even; when outcome is done
};

// What a reader may read now.
inline constexpr Stable stable_of(uint64_t word, uint32_t slot_count) {
  if (!has(word, layout::word_live) || has(word, layout::word_tentative)) return {Outcome::gone};
  if (has(word, layout::word_blank)) return {Outcome::blank};
  const uint64_t version = version_of(word);
  if (version < 2) return {Outcome::blank};  // no published version is 0, which callers say for none
  if (version % 2 == 0) return {Outcome::done, version};
  if (slot_count == 2) return {Outcome::done, version - 1};
  return {Outcome::writing};
}

// Whether the slot of `version` still holds it when the word is `word`. Of two slots the other one is written
// first: the slot is touched again only from version + 3 on. Removal and take-over skip 4, which ends it, too.
inline constexpr bool still_holds(uint64_t word, uint64_t version, uint32_t slot_count) {
  if (!has(word, layout::word_live) || has(word, layout::word_blank)) return false;
  return version_of(word) - version <= (slot_count == 2 ? 2 : 0);
}

inline constexpr uint64_t pin_word(uint32_t part, uint32_t record, uint32_t slot) {
  return layout::pin_used | uint64_t{part} << 40 | uint64_t{slot} << 32 | record;
}

// The word by which a holder asks for the removal of a tensor: part in bits 56 to 61, the low bits of the
// incarnation in 22 to 55, record below.
struct Removal {
  uint32_t part = 0;
  uint32_t record = 0;
  uint64_t incarnation = 0;  // its low bits
};
inline constexpr uint64_t asked_incarnation(uint64_t incarnation) {
  return incarnation & ((uint64_t{1} << 34) - 1);
}
inline constexpr uint64_t removal_word(uint32_t part, uint32_t record, uint64_t incarnation) {
  return layout::pin_asks_removal | uint64_t{part} << 56 | asked_incarnation(incarnation) << 22 | record;
}
static_assert(layout::space_parts_max <= 64 && layout::space_records_max <= 1u << 22);
inline constexpr Removal removal_of(uint64_t word) {
  return {.part = static_cast<uint32_t>(word >> 56) & 63,
          .record = static_cast<uint32_t>(word) & ((1u << 22) - 1),
          .incarnation = asked_incarnation(word >> 22)};
}

}  // namespace terrace::coherence
