// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/spill/spill_map.h"

#include <algorithm>

namespace terrace::kv {

uint32_t SpillMap::slots_used() const {
  return static_cast<uint32_t>(
      std::min<uint64_t>(os::load_or_zero(at(layout::spill_slots_used_offset)), layout::spill_slots));
}

void SpillMap::set_slot_used(uint32_t slot) {
  uint64_t* const used = at(layout::spill_slots_used_offset);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const uint64_t before = os::load_or_zero(used);
    if (before > slot || os::LossyAccesses::lost_address() != nullptr) return;
    os::replace_or_drop(used, before, slot + 1);
  }
}

uint32_t SpillMap::slots_open() const {
  uint32_t open = 0;
  for (uint32_t slot = 0; slot < slots_used(); ++slot) open += is_open(slot) ? 1 : 0;
  return open;
}

std::vector<SpillSegment> SpillMap::segments_of(std::optional<uint32_t> slot) const {
  std::vector<SpillSegment> found;
  for (uint32_t index = 0; index < geometry_.segments; ++index) {
    const uint64_t value = os::load_or_zero(word(index));
    if (owner_in(value) == slot) found.push_back({index, value});
  }
  if (slot)
    std::stable_sort(found.begin(), found.end(), [](const SpillSegment& left, const SpillSegment& right) {
      return left.age_ms() < right.age_ms();
    });
  return found;
}

bool SpillMap::claim(const SpillSegment& free, uint32_t slot, uint64_t now_ms) {
  return replace_word(word(free.index), free.word, word_of(slot, now_ms));
}

bool SpillMap::renew(uint32_t segment, uint32_t slot, uint64_t now_ms) {
  const uint64_t before = os::load_or_zero(word(segment));
  return owner_in(before) == slot && replace_word(word(segment), before, word_of(slot, now_ms));
}

bool SpillMap::somebody_wants(uint32_t me, uint64_t now_ms) const {
  constexpr uint64_t counts_ms = 5'000;
  for (uint32_t other = 0; other < slots_used(); ++other) {
    const uint64_t wants_ms = os::load_or_zero(&slot(other)->wants_ms);
    if (other != me && wants_ms != 0 && wants_ms <= now_ms && now_ms - wants_ms < counts_ms) return true;
  }
  return false;
}

// Whoever was faster: it has grown since this began.
void SpillMap::count_up(uint64_t* word) {
  const uint64_t before = os::load_or_zero(word);
  while (os::load_or_zero(word) == before && os::LossyAccesses::lost_address() == nullptr)
    os::replace_or_drop(word, before, before + 1);
}

}  // namespace terrace::kv
