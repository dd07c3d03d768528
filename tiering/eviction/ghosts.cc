// SPDX-License-Identifier: Apache-2.0
#include "tiering/eviction/ghosts.h"

#include <algorithm>

namespace terrace::eviction {
namespace {

constexpr size_t slots_min = 256;

uint32_t tag_bits(uint32_t hash) {
  return hash << 8;
}

}  // namespace

void Ghosts::add(uint32_t hash, const Ghost& ghost, size_t blocks, uint32_t now) {
  Table& table = table_of(hash);
  const size_t wanted = std::max(blocks, slots_min);
  // Tables grow while the cache fills, which is before anything is evicted: they are empty then as a rule.
  if (table.slots.size() < wanted - wanted / 4) table.slots.assign((wanted + ways - 1) / ways * ways, Slot{});
  Slot* const row = table.row(hash);
  Slot* place = row;
  for (Slot* slot = row; slot < row + ways; ++slot) {
    if (slot->uses() == 0) {
      place = slot;
      break;
    }
    if (now - slot->last_use > now - place->last_use) place = slot;
  }
  *place = {.last_use = ghost.last_use,
            .tag = tag_bits(hash) | static_cast<uint32_t>(ghost.block_class << 4) | ghost.uses};
}

std::optional<Ghost> Ghosts::take(uint32_t hash) {
  Table& table = table_of(hash);
  if (table.slots.empty()) return std::nullopt;
  Slot* const row = table.row(hash);
  for (Slot* slot = row; slot < row + ways; ++slot) {
    if (slot->uses() == 0 || (slot->tag & ~uint32_t{255}) != tag_bits(hash)) continue;
    const Ghost ghost = slot->ghost();
    *slot = Slot{};
    return ghost;
  }
  return std::nullopt;
}

size_t Ghosts::memory_bytes() const {
  size_t bytes = 0;
  for (const Table& table : tables_) bytes += table.slots.capacity() * sizeof(Slot);
  return bytes;
}

}  // namespace terrace::eviction
