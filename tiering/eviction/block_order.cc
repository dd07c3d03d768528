// SPDX-License-Identifier: Apache-2.0
#include "tiering/eviction/block_order.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/base/check.h"

namespace terrace::eviction {
namespace {

constexpr uint32_t visits_per_tick = 4;  // blocks, and slots of each table of ghosts, whose waiting is counted
constexpr uint32_t ticks_per_refresh_min = 512;  // a refresh takes some ten microseconds
constexpr uint32_t skipped_share = 16;

// Bytes in quarter octaves.
uint8_t size_code(uint64_t bytes) {
  if (bytes < 4) return static_cast<uint8_t>(bytes);
  const int octave = static_cast<int>(std::bit_width(bytes)) - 1;
  return static_cast<uint8_t>(4 * (octave - 1) + static_cast<int>(bytes >> (octave - 2) & 3));
}

// One over the bytes of each code.
std::array<float, 256> shares_of_bytes() {
  std::array<float, 256> shares{1, 1, 0.5f, 1 / 3.0f};
  for (size_t code = 4; code < shares.size(); ++code)
    shares[code] = std::ldexp(1 / static_cast<float>(4 + code % 4), 1 - static_cast<int>(code / 4));
  return shares;
}
const std::array<float, 256> share_of_bytes = shares_of_bytes();

}  // namespace

BlockOrder::BlockOrder(uint32_t blocks_hint) {
  blocks_.reserve(blocks_hint);
  index_.reserve(blocks_hint);
}

void BlockOrder::insert(uint32_t id, const NewBlock& from) {
  TERRACE_CHECK(id < KeyIndex::ids_max && !contains(id), "ids are small, and a block is inserted once");
  const uint32_t hash = hash_key(from.key);
  index_.prefetch(hash);
  ghosts_.prefetch(hash);
  tick();
  if (id >= blocks_.size()) blocks_.resize(id + size_t{1});
  const auto generation = static_cast<uint16_t>(blocks_[id].generation + 1);
  Block block;
  block.hash = hash;
  block.last_use = now_;
  block.generation = generation;
  block.size = size_code(std::max<uint64_t>(from.bytes, 1));
  if (const std::optional<Ghost> ghost = ghosts_.take(block.hash)) {
    rates_.count_reuse(ghost->block_class, now_ - ghost->last_use);
    block.facts.uses = std::min<uint8_t>(static_cast<uint8_t>(ghost->uses + 1), uses_max);
  }
  if (from.parent != 0) link_parent(block, from);
  const uint32_t parent = block.parent;
  blocks_[id] = block;
  index_.add(block.hash, id, [this](uint32_t other) { return blocks_[other].hash; });
  push_newest(block_class(block.facts), id);
  if (parent != nobody) note_child_of(parent);
  last_ = id;
  ++live_;
}

void BlockOrder::use(uint32_t id) {
  TERRACE_CHECK(contains(id), "a block that is used is there");
  tick();
  Block& block = blocks_[id];
  rates_.count_reuse(block_class(block.facts), age(block));
  block.facts.uses = std::min<uint8_t>(static_cast<uint8_t>(block.facts.uses + 1), uses_max);
  block.facts.used = true;
  block.last_use = now_;
  move_to_class(id);
  last_ = id;
}

void BlockOrder::erase(uint32_t id, bool evicted) {
  TERRACE_CHECK(contains(id), "a block that goes is there");
  Block& block = blocks_[id];
  unlink(id);
  block.list = list_none;
  index_.remove(block.hash, id, [this](uint32_t other) { return blocks_[other].hash; });
  leave_parent(block);
  if (last_ == id) last_ = nobody;
  if (evicted) {
    ghosts_.add(block.hash,
                {.last_use = block.last_use, .block_class = block_class(block.facts), .uses = block.facts.uses},
                live_, now_);
    if (evictions_until_offer_ > 0 && --evictions_until_offer_ == 0) offer_skipped_again();
  }
  --live_;
}

std::optional<uint32_t> BlockOrder::victim() {
  while (live_ > 0) {
    uint32_t id = least_worthy().id;
    if (id == nobody && ends_[list_skipped].oldest != nobody) {
      offer_skipped_again();
      id = least_worthy().id;
    }
    if (id == nobody) id = last_;
    TERRACE_CHECK(id != nobody && blocks_[id].list < block_classes, "some block has no children");
    if (blocks_[id].children == 0) {
      index_.prefetch(blocks_[id].hash);  // erase() comes next
      ghosts_.prefetch(blocks_[id].hash);
      return id;
    }
    unlink(id);
    push_newest(list_parked, id);
  }
  return std::nullopt;
}

void BlockOrder::skip(uint32_t id) {
  TERRACE_CHECK(contains(id), "a block that is skipped is there");
  if (blocks_[id].list == list_parked) return;  // its children keep it
  unlink(id);
  push_newest(list_skipped, id);
  if (evictions_until_offer_ == 0) evictions_until_offer_ = static_cast<uint32_t>(live_ / skipped_share) + 1;
}

size_t BlockOrder::memory_bytes() const {
  return sizeof(*this) + blocks_.capacity() * sizeof(Block) + index_.memory_bytes() + ghosts_.memory_bytes();
}

// A block that has not been used since its insert belongs to the run that is being inserted.
void BlockOrder::link_parent(Block& block, const NewBlock& from) {
  const uint32_t hash = hash_key(from.parent);
  const bool just_used =
      last_ != nobody && blocks_[last_].hash == hash;  // as a rule: blocks of a run come in order
  block.parent = just_used ? last_ : index_.find(hash, [this](uint32_t id) { return blocks_[id].hash; });
  if (block.parent == nobody) return;
  const Block& parent = blocks_[block.parent];
  block.parent_generation = parent.generation;
  if (parent.facts.used) {
    block.facts.branch = parent.facts.uses <= branch_uses_max;
  } else {
    block.facts.run = static_cast<uint8_t>(std::min(parent.facts.run + 1, int{run_max}));
    block.facts.branch = parent.facts.branch;
  }
}

void BlockOrder::note_child_of(uint32_t parent) {
  Block& block = blocks_[parent];
  ++block.children;
  if (block.facts.followed) return;
  block.facts.followed = true;
  if (block.list < block_classes) move_to_class(parent);
}

void BlockOrder::leave_parent(const Block& block) {
  if (block.parent == nobody) return;
  Block& parent = blocks_[block.parent];
  if (parent.list == list_none || parent.generation != block.parent_generation) return;
  if (--parent.children > 0 || parent.list != list_parked) return;
  unlink(block.parent);
  push_oldest(block_class(parent.facts), block.parent);
}

void BlockOrder::unlink(uint32_t id) {
  Block& block = blocks_[id];
  Ends& ends = ends_[block.list];
  (block.older == nobody ? ends.oldest : blocks_[block.older].newer) = block.newer;
  (block.newer == nobody ? ends.newest : blocks_[block.newer].older) = block.older;
}

void BlockOrder::push_newest(uint8_t list, uint32_t id) {
  Block& block = blocks_[id];
  Ends& ends = ends_[list];
  block.list = list;
  block.older = ends.newest;
  block.newer = nobody;
  (ends.newest == nobody ? ends.oldest : blocks_[ends.newest].newer) = id;
  ends.newest = id;
}

void BlockOrder::push_oldest(uint8_t list, uint32_t id) {
  Block& block = blocks_[id];
  Ends& ends = ends_[list];
  block.list = list;
  block.newer = ends.oldest;
  block.older = nobody;
  (ends.oldest == nobody ? ends.newest : blocks_[ends.oldest].older) = id;
  ends.oldest = id;
}

void BlockOrder::move_to_class(uint32_t id) {
  unlink(id);
  push_newest(block_class(blocks_[id].facts), id);
}

// The one skipped first becomes the oldest. Each skip() pays for one step here.
void BlockOrder::offer_skipped_again() {
  evictions_until_offer_ = 0;
  while (ends_[list_skipped].newest != nobody) {
    const uint32_t id = ends_[list_skipped].newest;
    unlink(id);
    push_oldest(block_class(blocks_[id].facts), id);
  }
}

// Time goes on by one. The count wraps after 2^32: a block unused for so long looks young once.
void BlockOrder::tick() {
  ++now_;
  count_waiting();
  if (now_ % std::max(ticks_per_refresh_min, std::bit_floor(static_cast<uint32_t>(live_ / 2 + 1))) == 0)
    rates_.refresh(live_);
}

// A hand goes round the blocks, and one round each table of ghosts. What it finds stands for all the
// time between two visits.
void BlockOrder::count_waiting() {
  const double weight = static_cast<double>(blocks_.size()) / visits_per_tick;
  for (uint32_t visit = 0; visit < visits_per_tick && !blocks_.empty(); ++visit) {
    if (hand_ >= blocks_.size()) hand_ = 0;
    const Block& block = blocks_[hand_++];
    if (block.list != list_none) rates_.count_waiting(block_class(block.facts), age(block), weight);
  }
  ghosts_.visit_next(visits_per_tick, [this](const Ghost& ghost, size_t apart) {
    rates_.count_waiting(ghost.block_class, now_ - ghost.last_use, static_cast<double>(apart));
  });
}

void BlockOrder::consider(Candidate& best, uint32_t id, bool oldest) const {
  const Block& block = blocks_[id];
  const float worth = rates_.worth(block.list, age(block)) * share_of_bytes[block.size];
  const bool older = oldest && best.oldest && worth == best.worth && age(block) > age(blocks_[best.id]);
  if (best.id == nobody || worth < best.worth || older) best = {.id = id, .worth = worth, .oldest = oldest};
}

BlockOrder::Candidate BlockOrder::least_worthy() const {
  Candidate best;
  for (uint8_t list = 0; list < block_classes; ++list) {
    const uint32_t oldest = ends_[list].oldest;
    if (oldest == nobody) continue;
    if (oldest != last_) consider(best, oldest, true);
    uint32_t newest = ends_[list].newest;
    if (newest == last_) newest = blocks_[newest].older;
    if (newest != nobody && newest != oldest && blocks_[newest].children == 0) consider(best, newest, false);
  }
  return best;
}

}  // namespace terrace::eviction
