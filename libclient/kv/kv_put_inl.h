// SPDX-License-Identifier: Apache-2.0
// KvSpaceOf: putting blocks, and making room for them.
#pragma once

namespace terrace {

template <typename Memory>
Status KvSpaceOf<Memory>::put(const KvNamespace& name_space, const KvPut& put) {
  uint64_t waited_ns = 0;
  return put_one(name_space, put, &waited_ns);
}

template <typename Memory>
Status KvSpaceOf<Memory>::put_one(const KvNamespace& name_space, const KvPut& put, uint64_t* waited_ns) {
  TERRACE_ASSIGN_OR_RETURN(KvWrite writing,
                           begin_unspilled(name_space, put.key, put.bytes.size(), put.options, waited_ns));
  Memory().write(writing.bytes().data(), put.bytes.data(), put.bytes.size());
  return writing.publish();
}

template <typename Memory>
std::vector<Status> KvSpaceOf<Memory>::put_many(const KvNamespace& name_space, std::span<const KvPut> puts) {
  std::vector<Status> results;
  results.reserve(puts.size());
  uint64_t waited_ns = 0;
  for (const KvPut& one : puts) results.push_back(put_one(name_space, one, &waited_ns));
  return results;
}

template <typename Memory>
Result<KvWrite> KvSpaceOf<Memory>::begin_here(const KvNamespace& name_space, std::string_view key,
                                              uint64_t bytes, const KvPutOptions& options, uint64_t* waited_ns,
                                              RoomFrom from) {
  TERRACE_RETURN_IF_ERROR(check_key(key));
  if (forked()) return in_child();
  const uint64_t seed = kv::namespace_hash(name_space.name());
  auto state = std::make_unique<KvWrite::State>();
  Block& block = state->block;
  block.key = kv::key_of(seed, key);
  const uint64_t most =
      std::min(kv_block_bytes_limit, geometry_.chunk_bytes - layout::space_part_alignment_bytes);
  if (bytes > most)
    return refuse(ErrorCode::limit_exceeded, who(key) + " has " + std::to_string(bytes) +
                                                 " bytes, and this space takes " + std::to_string(most) +
                                                 " at most; format it with a larger max_block_bytes");
  TERRACE_RETURN_IF_ERROR(take_part());
  if (!policy_known_.load(std::memory_order_relaxed) && policy_mutex_.try_lock()) {
    load_policy();
    policy_mutex_.unlock();
  }
  Block other;
  if (find(block.key, &other) == Outcome::done)
    return refuse(ErrorCode::already_exists, who(key) + " is there already");
  // The room of one that has expired; it stays while it is read in place.
  if (reader_.find(own()->part(), block.key, 0, &other) == Outcome::done) (void)remove_own(other, false);
  const uint64_t extent = kv::extent_bytes(bytes, name_space.name(), key);
  if (!is_own_block(block))
    TERRACE_RETURN_IF_ERROR(fit_budgets(name_space.name(), static_cast<uint32_t>(seed), key, extent));
  const Outcome room = from == RoomFrom::what_is_free
                           ? reserve(extent, &state->room)
                           : make_room(extent, &state->room, options.wait_ns, waited_ns);
  if (room != Outcome::done) {
    if (room == Outcome::disowned) return error_of(room, key);
    if (from == RoomFrom::anywhere) add(counts_.puts_refused);
    if (room == Outcome::no_record) return error_of(room, key);
    return refuse(ErrorCode::capacity_exhausted, who(key) + ": no room for its " + std::to_string(extent) +
                                                     " bytes now: what there is is read in place or kept, or "
                                                     "belongs to holders that live and give none");
  }
  const uint64_t now_s = now_unix_s();
  block.bytes = bytes;
  block.parent = options.parent.empty() ? 0 : kv::key_of(seed, options.parent).low;
  block.used_unix_s = static_cast<uint32_t>(now_s);
  if (options.ttl_s != 0)
    block.expires_unix_s = static_cast<uint32_t>(now_s + std::min<uint64_t>(options.ttl_s, UINT32_MAX - now_s));
  block.name_space = static_cast<uint32_t>(seed);
  block.word = options.checksum.value_or(geometry_.checksums()) ? layout::block_word_summed : 0;
  std::byte* const at = geometry_.data() + state->room.offset;
  const std::vector<std::byte> name = kv::name_bytes(name_space.name(), key);
  Memory().write(at + (extent - name.size()), name.data(), name.size());
  state->space = this;
  state->bytes = {at, bytes};
  state->memory = {geometry_.base, geometry_.total_bytes};
  state->key = key;
  add(handles_);
  return KvWrite(std::move(state));
}

template <typename Memory>
Status KvSpaceOf<Memory>::finish_write(KvWrite::State& write) {
  if (forked()) return in_child();
  const HandleEnds ends(handles_);
  Block& block = write.block;
  if (block.has_checksum()) {
    block.offset = write.room.offset;
    block.data_checksum = reader_.checksum_in_place(block);
  }
  // Another holder may have put it since begin_put(). Who does so in this very moment makes a second one.
  Block other;
  if (find(block.key, &other) == Outcome::done) {
    own()->cancel(write.room);
    return refuse(ErrorCode::already_exists, who(write.key) + " is there already");
  }
  const Outcome outcome = own()->publish(write.room, &block, now_unix_s());
  if (outcome == Outcome::exists)
    return refuse(ErrorCode::already_exists, who(write.key) + " is there already");
  if (outcome == Outcome::no_record) add(counts_.puts_refused);
  if (outcome != Outcome::done) return error_of(outcome, write.key);
  add(counts_.puts);
  add(counts_.put_bytes, block.bytes);
  const MutexLock lock(order_mutex_);
  into_order(block);
  return {};
}

template <typename Memory>
void KvSpaceOf<Memory>::into_order(const Block& block) {
  if (!is_own_block(block)) order_.insert(block, rules_of(block).budgets);
}

// Who gives chunks to others claims none above its share meanwhile.
template <typename Memory>
coherence::Outcome KvSpaceOf<Memory>::reserve(uint64_t bytes, kv::Room* room) {
  const uint64_t yields_until_ns = yields_until_ns_.load(std::memory_order_relaxed);
  const bool may_claim =
      yields_until_ns == 0 || clock_.now_ns() >= yields_until_ns || own()->chunks_owned() < fair_share();
  Outcome outcome = own()->reserve(bytes, room, may_claim);
  for (int attempt = 0; attempt < 1000 && outcome == Outcome::crowded; ++attempt) {
    std::this_thread::sleep_for(std::chrono::microseconds(20 * (own()->part() + 1)));
    outcome = own()->reserve(bytes, room, may_claim);
  }
  return outcome;
}

// Room from the own chunks or free ones; else from parts that nobody owns; else, for who has less than its share, from
// others; else from the worst of the own blocks. Where the directory is full only the last one helps.
template <typename Memory>
coherence::Outcome KvSpaceOf<Memory>::make_room(uint64_t bytes, kv::Room* room, uint64_t wait_ns,
                                                uint64_t* waited_ns) {
  Outcome outcome = reserve(bytes, room);
  if (outcome == Outcome::full && own()->chunks_owned() < fair_share()) {
    while (outcome == Outcome::full && free_what_nobody_owns()) outcome = reserve(bytes, room);
    if (outcome == Outcome::full) outcome = ask_for_room(bytes, room, wait_ns, waited_ns);
  }
  uint64_t evicted = 0;
  while ((outcome == Outcome::full || outcome == Outcome::no_record) && evict_one(&evicted))
    outcome = reserve(bytes, room);
  return outcome;
}

// Those who have more than their share see the wish at their next tend(). Who stopped gives nothing: it is not asked
// again for a second.
template <typename Memory>
coherence::Outcome KvSpaceOf<Memory>::ask_for_room(uint64_t bytes, kv::Room* room, uint64_t wait_ns,
                                                   uint64_t* waited_ns) {
  constexpr uint64_t pause_after_silence_ns = 1'000'000'000;
  const uint64_t begin_ns = clock_.now_ns();
  const uint64_t left_ns = wait_ns - std::min(wait_ns, *waited_ns);
  if (left_ns == 0 || begin_ns < ask_again_at_ns_.load(std::memory_order_relaxed)) return Outcome::full;
  const std::optional<uint32_t> wish =
      pins().hold(layout::pin_asks_room | (now_unix_ms() & layout::pin_room_mask));
  if (!wish) return Outcome::full;
  Outcome outcome = Outcome::full;
  while (outcome != Outcome::done && outcome != Outcome::disowned && clock_.now_ns() - begin_ns < left_ns &&
         os::LossyAccesses::lost_address() == nullptr) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    outcome = reserve(bytes, room);
  }
  pins().drop(*wish);
  *waited_ns += clock_.now_ns() - begin_ns;
  if (outcome == Outcome::full)
    ask_again_at_ns_.store(clock_.now_ns() + pause_after_silence_ns, std::memory_order_relaxed);
  return outcome;
}

// Evicts the worst block; after a chunk's worth that made no hole large enough, all of the worst one's chunk. false:
// there is nothing to evict.
template <typename Memory>
bool KvSpaceOf<Memory>::evict_one(uint64_t* evicted_bytes) {
  for (size_t stays = 0;; ++stays) {
    uint32_t victim = 0;
    {
      const MutexLock lock(order_mutex_);
      fill_order(geometry_.records);
      if (stays > order_.size()) return false;
      const std::optional<uint32_t> next = order_.victim();
      if (!next) return false;
      victim = *next;
    }
    Block block;
    if (reader_.describe(own()->part(), victim, &block) != Outcome::done) {
      const MutexLock lock(order_mutex_);
      order_.drop(victim, false);
      continue;
    }
    if (*evicted_bytes > geometry_.chunk_bytes) {
      *evicted_bytes = 0;
      if (clear_chunk(*own(), own()->chunk_of(block))) return true;
    }
    const Outcome outcome = is_kept(block) ? Outcome::pinned : remove_own(block, true);
    if (outcome == Outcome::pinned) {
      const MutexLock lock(order_mutex_);
      order_.skip(victim);
      continue;
    }
    *evicted_bytes += block.extent_bytes;
    return outcome == Outcome::done || outcome == Outcome::gone;
  }
}

// After a take-over the part's blocks come into the order piece by piece, or all at once when one must go.
template <typename Memory>
void KvSpaceOf<Memory>::fill_order(uint32_t records) {
  const uint32_t end =
      static_cast<uint32_t>(std::min<uint64_t>(geometry_.records, uint64_t{order_filled_} + records));
  own()->each_block(order_filled_, end,
                    [this](const Block& block) TERRACE_NO_THREAD_SAFETY_ANALYSIS { into_order(block); });
  order_filled_ = end;
}

// Whether all of their blocks went. `part`: the own one, or one that is adopted.
template <typename Memory>
bool KvSpaceOf<Memory>::clear_chunks(Part& part, const std::vector<bool>& chunks) {
  bool all = true;
  part.each_block(0, geometry_.records, [&](const Block& block) {
    if (!chunks[part.chunk_of(block)]) return;
    const bool mine = &part == own();
    const bool stays = is_kept(block);
    if (!mine && !stays) offer_to_spill(block);
    const Outcome outcome = stays ? Outcome::pinned : mine ? remove_own(block, true) : part.remove(block);
    if (!mine && outcome == Outcome::done) {
      add(counts_.evicted);
      add(counts_.evicted_bytes, block.bytes);
    }
    all = all && (outcome == Outcome::done || outcome == Outcome::gone);
  });
  return all;
}

template <typename Memory>
bool KvSpaceOf<Memory>::clear_chunk(Part& part, uint32_t chunk) {
  bool has_kept = false;
  part.each_block(0, geometry_.records, [&](const Block& block) {
    has_kept = has_kept || (part.chunk_of(block) == chunk && is_kept(block));
  });
  if (has_kept) return false;  // then nothing in it goes for its sake
  std::vector<bool> chunks(geometry_.chunks);
  chunks[chunk] = true;
  return clear_chunks(part, chunks);
}

template <typename Memory>
uint32_t KvSpaceOf<Memory>::chunks_of(uint32_t part) const {
  Memory memory;
  memory.invalidate(geometry_.claim(part, 0), uint64_t{geometry_.chunks} * sizeof(uint64_t), Step::none);
  memory.load_barrier(Step::none);
  uint32_t count = 0;
  for (uint32_t chunk = 0; chunk < geometry_.chunks; ++chunk)
    count +=
        memory.load(geometry_.claim(part, chunk)) == static_cast<uint64_t>(layout::ChunkClaim::owned) ? 1 : 0;
  return count;
}

// Of the chunks, for each part that was not given back: one of the dead counts until it is adopted. As it was a tenth of a second ago, at most.
template <typename Memory>
uint32_t KvSpaceOf<Memory>::fair_share() {
  constexpr uint64_t kept_ns = 100'000'000;
  const uint64_t now_ns = clock_.now_ns();
  if (now_ns < share_at_ns_.load(std::memory_order_relaxed)) return share_.load(std::memory_order_relaxed);
  const uint32_t share = std::max(1u, geometry_.chunks / owners());
  share_.store(share, std::memory_order_relaxed);
  share_at_ns_.store(now_ns + kept_ns, std::memory_order_relaxed);
  return share;
}

// Where nobody can tell it lives. A source that waits for its manager is not asked again for a while.
template <typename Memory>
bool KvSpaceOf<Memory>::owner_lives(uint32_t holder) {
  constexpr uint64_t slow_ns = 50'000'000, pause_ns = 5'000'000'000;
  const LastOwner last = claims_.last_owner(holder);
  if (last.epoch == 0 || last.gave_back) return false;
  const uint64_t begin_ns = clock_.now_ns();
  if (begin_ns < owners_unknown_until_ns_.load(std::memory_order_relaxed)) return true;
  const bool dead = claims_.dead_check()(holder, last.epoch);
  const uint64_t end_ns = clock_.now_ns();
  if (!dead && end_ns - begin_ns > slow_ns)
    owners_unknown_until_ns_.store(end_ns + pause_ns, std::memory_order_relaxed);
  return !dead;
}

// Owns a part for a moment that nobody else owns. Its next owner finds it in order. false: it cannot be had.
template <typename Memory>
template <typename Body>
bool KvSpaceOf<Memory>::adopt(uint32_t part, Body body) {
  if (options_.ownership == nullptr || owner_lives(part)) return false;
  const MutexLock lock(adopt_mutex_);
  const auto claimed = claims_.claim_first({part});
  if (!claimed.ok()) return false;
  {
    Part adopted(Memory(), geometry_, part, claimed->epoch, options_.host, claims_.dead_check());
    adopted.take_over();
    body(adopted);
    adopted.release();
  }
  options_.ownership->release(part);
  add(counts_.parts_adopted);
  share_at_ns_.store(0, std::memory_order_relaxed);  // it counts no longer
  return true;
}

// Makes a quarter of the chunks of one such part free, those whose blocks were not used for longest. Whether one is.
// Where nothing could be freed it is not tried again for a second.
template <typename Memory>
bool KvSpaceOf<Memory>::free_what_nobody_owns() {
  constexpr uint64_t pause_ns = 1'000'000'000;
  if (clock_.now_ns() < adopt_again_at_ns_.load(std::memory_order_relaxed)) return false;
  for (uint32_t part = 0; part < geometry_.parts; ++part) {
    const uint32_t before = part == own()->part() ? 0 : chunks_of(part);
    if (before == 0) continue;
    const bool adopted = adopt(part, [&](Part& left) {
      std::vector<std::pair<uint64_t, uint64_t>> uses(geometry_.chunks);  // sum of times, blocks
      std::vector<bool> has_kept(geometry_.chunks);
      left.each_block(0, geometry_.records, [&](const Block& block) {
        if (is_kept(block)) has_kept[left.chunk_of(block)] = true;
        auto& [sum, blocks] = uses[left.chunk_of(block)];
        sum += block.used_unix_s;
        ++blocks;
      });
      std::vector<std::pair<uint64_t, uint32_t>> oldest;
      for (uint32_t chunk = 0; chunk < geometry_.chunks; ++chunk)
        if (uses[chunk].second != 0 && !has_kept[chunk])
          oldest.push_back({uses[chunk].first / uses[chunk].second, chunk});
      std::sort(oldest.begin(), oldest.end());
      std::vector<bool> enough(geometry_.chunks);
      for (size_t index = 0; index < (oldest.size() + 3) / 4; ++index) enough[oldest[index].second] = true;
      (void)clear_chunks(left, enough);
    });
    if (adopted && chunks_of(part) < before) return true;
  }
  adopt_again_at_ns_.store(clock_.now_ns() + pause_ns, std::memory_order_relaxed);
  return false;
}

}  // namespace terrace
