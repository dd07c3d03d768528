// SPDX-License-Identifier: Apache-2.0
// In which order a cache gives up its blocks: KV-cache blocks that follow one another in a prompt, or objects that know
// nothing of each other.
//
// Place     A block store calls it on each hit, insert and removal, and asks it for victims. tiering/sim runs it on traces
//           as "prefix-order". Pure: no kernel, no clock, no threads; it allocates. Time is the count of hits and inserts.
//
// Blocks are in lists by class (block_class.h): how often a block was used, and whether another ever followed it. In a
// list the longest unused is the oldest. ReuseRates counts how soon blocks of each class and age are used again; of the
// two ends of all lists the one with the lowest rate a byte is the victim. Ghosts remember blocks that left, so that
// their reuse is counted as well.
//
// Invariants
//   E1  A block is in exactly one list: of its class, of the parked, or of the skipped.
//   E2  A block with children is never the victim: it is parked when its turn comes, and comes back as the oldest of its
//       class when the last child goes. So of a chain the deepest goes first, and what is left is a prefix.
//   E3  A child was inserted after its parent, so there is no circle, and some block always has no children.
//
// Cost      O(1) each (amortized), 100 to 200 ns among a million blocks; about 60 bytes a block, ghosts included.
// Threads   One at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tiering/eviction/block_class.h"
#include "tiering/eviction/ghosts.h"
#include "tiering/eviction/key_index.h"
#include "tiering/eviction/reuse_rates.h"

namespace terrace::eviction {

struct NewBlock {
  uint64_t key = 0;     // what it holds: the same after it left and came back
  uint64_t parent = 0;  // key of the block before it in the prompt; 0: none, or unknown
  uint64_t bytes = 1;
};

class BlockOrder {
 public:
  explicit BlockOrder(uint32_t blocks_hint = 0);  // reserves memory for as many; more may come

  // `id`: not in the order, and small (below 2^24), since memory is as large as the largest. The parent counts if it is
  // in the order now.
  void insert(uint32_t id, const NewBlock& block);
  void use(uint32_t id);  // a hit
  // The block is gone. `evicted`: for want of room, so its key is remembered; else its content is worthless.
  // Children that are still there become first blocks of chains.
  void erase(uint32_t id, bool evicted);
  // Who should go next; it stays until erase(). The block of the last call of insert() or use() only if there is no
  // other. None: the order is empty.
  std::optional<uint32_t> victim();
  // The victim cannot go now (it is pinned): all others are offered before it, until a sixteenth of the blocks went.
  void skip(uint32_t id);

  size_t size() const { return live_; }
  bool contains(uint32_t id) const { return id < blocks_.size() && blocks_[id].list != list_none; }
  size_t memory_bytes() const;

 private:
  static constexpr uint8_t list_none = 255;
  static constexpr uint8_t list_parked = block_classes;
  static constexpr uint8_t list_skipped = block_classes + 1;

  struct Block {
    uint32_t hash = 0;
    uint32_t last_use = 0;
    uint32_t parent = nobody;
    uint32_t older = nobody, newer = nobody;
    uint32_t children = 0;
    uint16_t generation = 0;  // of this id; a child remembers its parent's
    uint16_t parent_generation = 0;
    ClassFacts facts;
    uint8_t list = list_none;
    uint8_t size = 0;  // bytes, as size_code() says
  };
  static_assert(sizeof(Block) == 36);

  struct Ends {
    uint32_t oldest = nobody, newest = nobody;
  };
  struct Candidate {
    uint32_t id = nobody;
    float worth = 0;
    bool oldest = false;
  };

  void link_parent(Block& block, const NewBlock& from);
  void note_child_of(uint32_t parent);
  void leave_parent(const Block& block);
  void unlink(uint32_t id);
  void push_newest(uint8_t list, uint32_t id);
  void push_oldest(uint8_t list, uint32_t id);
  void move_to_class(uint32_t id);
  void offer_skipped_again();
  void tick();
  void count_waiting();
  void consider(Candidate& best, uint32_t id, bool oldest) const;
  Candidate least_worthy() const;
  uint32_t age(const Block& block) const { return now_ - block.last_use; }

  std::vector<Block> blocks_;  // by id
  Ends ends_[block_classes + 2];
  KeyIndex index_;
  Ghosts ghosts_;
  ReuseRates rates_;
  size_t live_ = 0;
  uint32_t now_ = 0;
  uint32_t last_ = nobody;  // of the last insert() or use()
  uint32_t hand_ = 0;       // the next block whose waiting is counted
  uint32_t evictions_until_offer_ = 0;
};

}  // namespace terrace::eviction
