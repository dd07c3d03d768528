// SPDX-License-Identifier: Apache-2.0
// The true state of each block, beside Terrace: one word a block, in memory that all workers share and that
// outlives each of them. A writer records each step before it, and its end afterwards. So a reader that looks
// before and after a read knows the right answers.
//
//   phase        of generation g means                              right answers of a read meanwhile
//   none         never made                                         not there
//   creating     being made as g                                    not there, no content yet, g
//   published    g was published                                    g
//   rewriting    g is being published over g - 1                    g - 1, g
//   removing     g is being removed                                 g, not there
//   removed      g is gone                                          not there
//
// A reader that gets g while g is being made, or published over g - 1, records that g was published: from then
// on g may not be lost, even if its writer dies. A killed worker leaves creating, rewriting or removing behind;
// the successor that takes its part over finds out the result, and records it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

namespace terrace::bench {

enum class Phase : uint8_t { none, creating, published, rewriting, removing, removed };

struct Fact {
  Phase phase = Phase::none;
  uint64_t generation = 0;
  bool operator==(const Fact&) const = default;

  // The oldest generation that a read which begins now may give.
  uint64_t oldest() const {
    if (phase == Phase::removed) return generation + 1;
    return phase == Phase::rewriting ? generation - 1 : generation;
  }
};

class Truth {
 public:
  explicit Truth(std::span<std::atomic<uint64_t>> words) : words_(words) {}

  Fact of(uint32_t block) const { return unpacked(words_[block]); }
  bool change(uint32_t block, Fact from, Fact to) {
    uint64_t expected = packed(from);
    return words_[block].compare_exchange_strong(expected, packed(to));
  }
  // The caller has read all of `generation`, and then found `fact`.
  void seen(uint32_t block, Fact fact, uint64_t generation) {
    const bool under_way = fact.phase == Phase::creating || fact.phase == Phase::rewriting;
    if (under_way && fact.generation == generation) change(block, fact, {Phase::published, generation});
  }
  // Of the tensor that the caller has just created.
  Fact begin_creating(uint32_t block) {
    for (;;) {
      const Fact before = of(block);
      const Fact creating{Phase::creating, before.generation + 1};
      if (change(block, before, creating)) return creating;
    }
  }

 private:
  static uint64_t packed(Fact fact) {
    return uint64_t{static_cast<uint8_t>(fact.phase)} << 56 | fact.generation;
  }
  static Fact unpacked(uint64_t word) {
    return {static_cast<Phase>(word >> 56), word & ((uint64_t{1} << 56) - 1)};
  }
  std::span<std::atomic<uint64_t>> words_;
};

}  // namespace terrace::bench
