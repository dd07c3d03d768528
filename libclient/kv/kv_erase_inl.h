// SPDX-License-Identifier: Apache-2.0
// KvSpaceOf: erasing blocks, of the own part or of others.
#pragma once

#include <map>

namespace terrace {

template <typename Memory>
coherence::Outcome KvSpaceOf<Memory>::remove_own(const Block& block, bool evicted) {
  if (evicted) offer_to_spill(block);
  const Outcome outcome = own()->remove(block);
  if (outcome != Outcome::done) return outcome;
  if (evicted) {
    add(counts_.evicted);
    add(counts_.evicted_bytes, block.bytes);
  }
  const MutexLock lock(order_mutex_);
  order_.erase(block, evicted);
  return outcome;
}

template <typename Memory>
Status KvSpaceOf<Memory>::erase(const KvNamespace& name_space, std::string_view key, uint64_t wait_ns) {
  TERRACE_RETURN_IF_ERROR(check_key(key));
  if (forked()) return in_child();
  if (options_.ownership == nullptr) return read_only();
  const kv::BlockKey hash = kv::key_of(kv::namespace_hash(name_space.name()), key);
  const bool spilled = erase_spilled(name_space, key);
  // Two that put it in one moment have made two of it.
  for (int copies = 0; copies < 64; ++copies) {
    Block block;
    const Outcome outcome = find(hash, &block);
    if (outcome == Outcome::gone && (erase_spilled(name_space, key) || spilled || copies != 0)) return {};
    if (outcome != Outcome::done) return error_of(outcome, key);
    if (erase_all({block}, wait_ns) != 1)
      return refuse(ErrorCode::busy, who(key) + " is read in place, or the owner of part " +
                                         std::to_string(block.part) + " has not erased it yet; wait longer");
  }
  return refuse(ErrorCode::busy, who(key) + " is put again all the time");
}

// Returns how many are gone. What a living owner has is asked for; what is read in place is tried again.
template <typename Memory>
uint64_t KvSpaceOf<Memory>::erase_all(std::vector<Block> blocks, uint64_t wait_ns) {
  constexpr auto pause = std::chrono::milliseconds(10);
  const uint64_t deadline_ns = deadline(wait_ns);
  std::map<uint32_t, std::vector<Block>> by_part;
  std::vector<Block> of_others;
  for (const Block& block : blocks) by_part[block.part].push_back(block);
  uint64_t gone = 0;
  for (;;) {
    for (auto& [part, of_part] : by_part) {
      if (own() == nullptr || part != own()->part())
        if (owner_lives(part)) {
          of_others.insert(of_others.end(), of_part.begin(), of_part.end());
          of_part.clear();
        }
      gone += remove_all(part, &of_part);
    }
    if (!of_others.empty()) gone += ask_and_wait(std::exchange(of_others, {}), deadline_ns);
    std::erase_if(by_part, [](const auto& one) { return one.second.empty(); });
    if (by_part.empty() || clock_.now_ns() >= deadline_ns || os::LossyAccesses::lost_address() != nullptr)
      break;
    std::this_thread::sleep_for(pause);
  }
  add(counts_.erased, gone);
  return gone;
}

// Of the own part, or of one that nobody owns. What is read in place stays in `blocks`.
template <typename Memory>
uint64_t KvSpaceOf<Memory>::remove_all(uint32_t part, std::vector<Block>* blocks) {
  if (blocks->empty()) return 0;
  uint64_t gone = 0;
  std::vector<Block> left;
  const auto sort_out = [&](const Block& block, Outcome outcome) {
    if (outcome == Outcome::done || outcome == Outcome::gone)
      ++gone;
    else
      left.push_back(block);
  };
  bool tried = true;
  if (own() != nullptr && part == own()->part())
    for (const Block& block : *blocks) sort_out(block, remove_own(block, false));
  else
    tried = adopt(part, [&](Part& adopted) {
      for (const Block& block : *blocks) sort_out(block, adopted.remove(block));
    });
  if (tried) *blocks = std::move(left);
  return gone;
}

// As many at once as there are pins for, and the next as soon as one is gone.
template <typename Memory>
uint64_t KvSpaceOf<Memory>::ask_and_wait(std::vector<Block> blocks, uint64_t deadline_ns) {
  constexpr size_t at_once = 512;
  struct Asked {
    Block block;
    uint32_t word = 0;
  };
  if (!can_hold().ok()) return 0;
  std::vector<Asked> asked;
  uint64_t gone = 0;
  size_t next = 0;
  for (;;) {
    while (next < blocks.size() && asked.size() < at_once) {
      const Block& block = blocks[next];
      const auto word =
          pins().hold(coherence::removal_word(block.part, block.record, coherence::version_of(block.word)));
      if (!word) break;
      asked.push_back({block, *word});
      ++next;
    }
    Memory().full_barrier(Step::none);
    if (asked.empty()) break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    std::erase_if(asked, [&](const Asked& one) {
      if (reader_.recheck(one.block)) return false;
      pins().drop(one.word);
      ++gone;
      return true;
    });
    if (clock_.now_ns() >= deadline_ns || os::LossyAccesses::lost_address() != nullptr) break;
  }
  for (const Asked& one : asked) pins().drop(one.word);
  return gone;
}

template <typename Memory>
Result<uint64_t> KvSpaceOf<Memory>::evict(uint64_t bytes) {
  if (forked()) return in_child();
  if (options_.ownership == nullptr) return read_only();
  TERRACE_RETURN_IF_ERROR(policy());
  std::vector<Block> blocks;
  each_block([&](const Block& block) {
    if (!is_kept(block)) blocks.push_back(block);
    return true;
  });
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& left, const Block& right) { return left.used_unix_s < right.used_unix_s; });
  uint64_t chosen = 0;
  size_t count = 0;
  for (; count < blocks.size() && chosen < bytes; ++count) chosen += blocks[count].bytes;
  blocks.resize(count);
  return erase_all(std::move(blocks), 5'000'000'000);
}

template <typename Memory>
Result<uint64_t> KvSpaceOf<Memory>::flush(const std::optional<KvNamespace>& name_space, uint64_t wait_ns) {
  if (forked()) return in_child();
  if (options_.ownership == nullptr) return read_only();
  uint64_t spilled = flush_spilled(name_space);
  std::vector<Block> blocks;
  const auto tag = static_cast<uint32_t>(kv::namespace_hash(name_space ? name_space->name() : ""));
  const auto add_block = [&](const Block& block) {
    if (name_space && block.name_space != tag) return true;
    if (name_space) {
      const std::optional<kv::Names> said = names(block);
      if (!said || said->name_space != name_space->name()) return true;
    }
    blocks.push_back(block);
    return true;
  };
  each_block(add_block, Expired::too);
  const uint64_t asked = blocks.size();
  const uint64_t gone = erase_all(std::move(blocks), wait_ns);
  spilled += flush_spilled(name_space);
  if (gone < asked)
    return refuse(ErrorCode::busy, "KV space: " + std::to_string(gone) + " blocks were erased and " +
                                       std::to_string(asked - gone) +
                                       " are left: they are read in place, or their owner does not answer; "
                                       "wait longer");
  return gone + spilled;
}

}  // namespace terrace
