// SPDX-License-Identifier: Apache-2.0
// KvSpaceOf: what the owner of a part does while it makes no calls.
#pragma once

#include <system_error>

#include "core/base/signals_blocked.h"

namespace terrace {

// Under holder_mutex_, once.
template <typename Memory>
void KvSpaceOf<Memory>::start_tending() {
  constexpr auto pause = std::chrono::milliseconds(5);
  if (!options_.tends_itself) return;
  const SignalsBlocked blocked;
  auto tender = std::make_unique<Tender>();
  const auto body = [this, pause, &state = *tender] {
    for (;;) {
      {
        const MutexLock lock(state.mutex);
        if (!state.ends) state.wakes.wait_for(state.mutex, pause);
        if (state.ends) return;
      }
      const os::LossyAccesses accesses;
      tend();
      if (os::LossyAccesses::lost_address() != nullptr) return;
    }
  };
  try {
    tender->thread = std::thread(body);
    tender_ = std::move(tender);
  } catch (const std::system_error&) {
    // No thread to be had: as with tends_itself = false.
  }
}

template <typename Memory>
void KvSpaceOf<Memory>::tend() {
  constexpr uint32_t records_a_tick = 4096;
  constexpr uint64_t expiry_every = 16, policy_every = 200;
  if (own() == nullptr || forked()) return;
  const MutexLock lock(tend_mutex_);
  do_removals();
  read_uses();
  (void)give_room();
  if (++ticks_ % expiry_every == 0) drop_expired(records_a_tick);
  if (ticks_ % policy_every == 0 && policy_mutex_.try_lock()) {
    load_policy();
    policy_mutex_.unlock();
  }
  if (has_rules_.load(std::memory_order_relaxed)) count_budgets(records_a_tick);
  const MutexLock order_lock(order_mutex_);
  if (order_filled_ < geometry_.records) fill_order(records_a_tick);
}

template <typename Memory>
void KvSpaceOf<Memory>::do_removals() {
  const uint32_t part = own()->part();
  for (const coherence::Removal& asked : coherence::removals_asked(Memory(), geometry_, part)) {
    Block block;
    if (reader_.describe(part, asked.record, &block) != Outcome::done) continue;
    if (coherence::asked_incarnation(coherence::version_of(block.word)) == asked.incarnation)
      (void)remove_own(block, false);
  }
}

// For one that asks, if this holder has more than its share: a chunk. A wish says when it was made: who stopped or died
// over it asks for nothing any more.
template <typename Memory>
bool KvSpaceOf<Memory>::give_room() {
  constexpr uint64_t wish_ms = 5'000, pause_ns = 100'000'000;
  const uint32_t me = holder();
  const uint64_t now_ms = now_unix_ms() & layout::pin_room_mask, now_ns = clock_.now_ns();
  const bool asked = coherence::any_pin(Memory(), geometry_, [&](uint32_t holder, uint64_t pin) {
    constexpr uint64_t kinds = layout::pin_used | layout::pin_asks_removal | layout::pin_asks_room;
    if ((pin & kinds) != layout::pin_asks_room || holder == me) return false;
    const uint64_t made_ms = pin & layout::pin_room_mask;
    return (made_ms > now_ms ? made_ms - now_ms : now_ms - made_ms) < wish_ms && owner_lives(holder);
  });
  if (!asked || now_ns < gives_again_at_ns_ || own()->chunks_owned() <= fair_share()) return false;
  yields_until_ns_.store(now_ns + pause_ns, std::memory_order_relaxed);
  const std::optional<uint32_t> chunk = worst_chunk();
  if (!chunk) return false;
  own()->set_closed(*chunk, true);
  (void)clear_chunk(*own(), *chunk);
  if (!own()->owns(*chunk)) {
    add(counts_.chunks_given);
    return true;
  }
  own()->set_closed(*chunk, false);  // something in it is read in place, or being filled
  gives_again_at_ns_ = now_ns + pause_ns;
  return false;
}

// That of the block that should go next. It is passed over for a while afterwards, in case it stays.
template <typename Memory>
std::optional<uint32_t> KvSpaceOf<Memory>::worst_chunk() {
  const MutexLock lock(order_mutex_);
  fill_order(geometry_.records);
  for (int stale = 0; stale < 64; ++stale) {
    const std::optional<uint32_t> victim = order_.victim();
    if (!victim) break;
    Block block;
    if (reader_.describe(own()->part(), *victim, &block) == Outcome::done) {
      order_.skip(*victim);
      return own()->chunk_of(block);
    }
    order_.drop(*victim, false);
  }
  return std::nullopt;
}

// What others used of this part since the last look; of more than a ring has, the last ones.
template <typename Memory>
void KvSpaceOf<Memory>::read_uses() {
  if (geometry_.uses == 0) return;
  Memory memory;
  const auto now = static_cast<uint32_t>(now_unix_s());
  for (uint32_t holder = 0; holder < geometry_.holders(); ++holder) {
    if (holder == this->holder()) continue;
    const layout::PartOwner* const owner = geometry_.owner(holder);
    memory.invalidate(owner, sizeof *owner, Step::none);
    memory.load_barrier(Step::none);
    const uint64_t end = memory.load(&owner->uses);
    uint64_t& seen = last_uses_[holder];
    if (end == seen) continue;
    if (end < seen || end - seen > geometry_.uses) seen = end > geometry_.uses ? end - geometry_.uses : 0;
    memory.invalidate(geometry_.use(holder, 0), uint64_t{geometry_.uses} * sizeof(uint64_t), Step::none);
    memory.load_barrier(Step::none);
    for (; seen < end; ++seen) {
      const coherence::Removal used = coherence::removal_of(
          memory.load(geometry_.use(holder, static_cast<uint32_t>(seen % geometry_.uses))));
      Block block;
      if (used.part != own()->part() || used.record >= geometry_.records ||
          reader_.describe(used.part, used.record, &block) != Outcome::done ||
          coherence::asked_incarnation(coherence::version_of(block.word)) != used.incarnation)
        continue;
      own()->note_use(block, now);
      const MutexLock lock(order_mutex_);
      order_.use(block.record);
    }
  }
}

template <typename Memory>
void KvSpaceOf<Memory>::drop_expired(uint32_t records) {
  const uint64_t now = now_unix_s();
  const uint32_t end =
      static_cast<uint32_t>(std::min<uint64_t>(geometry_.records, uint64_t{expiry_cursor_} + records));
  own()->each_block(expiry_cursor_, end, [&](const Block& block) {
    if (block.is_expired(now) && remove_own(block, false) == Outcome::done) add(counts_.expired);
  });
  expiry_cursor_ = end == geometry_.records ? 0 : end;
}

}  // namespace terrace
