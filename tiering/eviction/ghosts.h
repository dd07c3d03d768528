// SPDX-License-Identifier: Apache-2.0
// What is remembered of blocks that left: enough to count their reuse when they come back.
//
// Place     block_order.cc adds who was evicted and asks for who is inserted. Pure.
//
// Two tables, by the hash of the key: most keys are forgotten after about as many evictions as there are blocks, one in
// sixteen after sixteen times as many. A rate is reuses over waiting, so it is the same of some of the keys as of all, and
// loops that are much longer than the cache are seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace terrace::eviction {

struct Ghost {
  uint32_t last_use = 0;
  uint8_t block_class = 0;
  uint8_t uses = 0;  // 0: no ghost
};

class Ghosts {
 public:
  // `blocks`: how many there are now; the tables follow it.
  void add(uint32_t hash, const Ghost& ghost, size_t blocks, uint32_t now);
  std::optional<Ghost> take(uint32_t hash);
  void prefetch(uint32_t hash) {
    if (Table& table = table_of(hash); !table.slots.empty()) __builtin_prefetch(table.row(hash));
  }

  // Calls visit(ghost, slots_between_visits) for the next `count` slots of each table in turn.
  template <typename Visit>
  void visit_next(int count, Visit visit) {
    for (Table& table : tables_) {
      if (table.slots.empty()) continue;
      for (int step = 0; step < count; ++step) {
        if (table.hand >= table.slots.size()) table.hand = 0;
        const Slot& slot = table.slots[table.hand++];
        if (slot.uses() != 0) visit(slot.ghost(), table.slots.size() / static_cast<size_t>(count));
      }
    }
  }
  size_t memory_bytes() const;

 private:
  static constexpr size_t ways = 8;  // slots of a row: one cache line
  struct Slot {
    uint32_t last_use = 0;
    uint32_t tag = 0;  // 24 bits of the hash, 4 of the class, 4 of the uses
    uint8_t uses() const { return tag & 15; }
    Ghost ghost() const {
      return {.last_use = last_use, .block_class = static_cast<uint8_t>(tag >> 4 & 15), .uses = uses()};
    }
  };
  static_assert(sizeof(Slot) == 8);
  struct Table {
    std::vector<Slot> slots;
    size_t hand = 0;
    Slot* row(uint32_t hash) {
      const size_t rows = slots.size() / ways;
      return &slots[(uint64_t{hash * 0x9e3779b1u} * rows >> 32) * ways];
    }
  };

  Table& table_of(uint32_t hash) { return tables_[hash * 0x85ebca6bu >> 28 == 0 ? 1 : 0]; }

  Table tables_[2];
};

}  // namespace terrace::eviction
