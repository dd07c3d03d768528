// SPDX-License-Identifier: Apache-2.0
// KvSpaceOf: erasing blocks, of the own part or of others.
#pragma once

#include <map>

namespace terrace {

template <typename Memory>
coherence::Outcome KvSpaceOf<Memory>::remove_own(const Block& block, bool evicted) {
  const Outcome outcome = own()->remove(block);
  if (outcome != Outcome::done) return outcome;
  if (evicted) {
    add(counts_.evicted);
    add(counts_.evicted_bytes, block.bytes);
  }
  const MutexLock lock(order_mutex_);
  if (order_.contains(block.record)) order_.erase(block.record, evicted);
  return outcome;
}

template <typename Memory>
Status KvSpaceOf<Memory>::erase(const KvNamespace& name_space, std::string_view key, uint64_t wait_ns) {
  TERRACE_RETURN_IF_ERROR(check_key(key));
  if (forked()) return in_child();
  if (options_.ownership == nullptr) return read_only();
  Block block;
  const Outcome outcome = find(kv::key_of(kv::namespace_hash(name_space.name()), key), &block);
  if (outcome != Outcome::done) return error_of(outcome, key);
  if (erase_all({block}, wait_ns) == 1) return {};
  return refuse(ErrorCode::busy, who(key) + " is read in place, or the owner of part " +
                                     std::to_string(block.part) + " has not erased it yet; wait longer");
}

// Returns how many are gone. Those of parts that somebody owns are asked for.
template <typename Memory>
uint64_t KvSpaceOf<Memory>::erase_all(std::vector<Block> blocks, uint64_t wait_ns) {
  const uint64_t deadline_ns = clock_.now_ns() + wait_ns;
  std::map<uint32_t, std::vector<Block>> by_part;
  for (Block& block : blocks) by_part[block.part].push_back(block);
  uint64_t gone = 0;
  for (auto& [part, of_part] : by_part) {
    std::vector<Block> left = of_part;
    const auto remove_from = [&](auto remove) {
      std::vector<Block> pinned;
      for (const Block& block : left) {
        const Outcome outcome = remove(block);
        if (outcome == Outcome::pinned || outcome == Outcome::disowned)
          pinned.push_back(block);
        else
          gone += 1;
      }
      left = std::move(pinned);
    };
    do {
      if (own() != nullptr && part == own()->part())
        remove_from([&](const Block& block) { return remove_own(block, false); });
      else if (!adopt(part, [&](Part& adopted) {
                 remove_from([&](const Block& block) { return adopted.remove(block); });
               })) {
        gone += ask_and_wait(left, deadline_ns);
        break;
      }
      if (!left.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (!left.empty() && clock_.now_ns() < deadline_ns && os::LossyAccesses::lost_address() == nullptr);
  }
  add(counts_.erased, gone);
  return gone;
}

template <typename Memory>
uint64_t KvSpaceOf<Memory>::ask_and_wait(std::span<const Block> blocks, uint64_t deadline_ns) {
  constexpr size_t at_once = 64;
  uint64_t gone = 0;
  if (!can_hold().ok()) return 0;
  while (!blocks.empty()) {
    std::vector<uint32_t> words;  // as many as there are pins for, at most
    for (const Block& block : blocks.first(std::min(at_once, blocks.size()))) {
      const auto word =
          pins().hold(coherence::removal_word(block.part, block.record, coherence::version_of(block.word)));
      if (!word) break;
      words.push_back(*word);
    }
    if (words.empty()) break;
    const auto group = blocks.first(words.size());
    Memory().full_barrier(Step::none);
    size_t left = group.size();
    for (;;) {
      left = 0;
      for (const Block& block : group) left += reader_.recheck(block) ? 1 : 0;
      if (left == 0 || clock_.now_ns() >= deadline_ns || os::LossyAccesses::lost_address() != nullptr) break;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    for (const uint32_t word : words) pins().drop(word);
    gone += group.size() - left;
    if (left != 0) break;
    blocks = blocks.subspan(group.size());
  }
  return gone;
}

template <typename Memory>
Result<uint64_t> KvSpaceOf<Memory>::evict(uint64_t bytes) {
  if (forked()) return in_child();
  if (options_.ownership == nullptr) return read_only();
  std::vector<Block> blocks;
  each_block([&](const Block& block) {
    blocks.push_back(block);
    return true;
  });
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& left, const Block& right) { return left.used_unix_s < right.used_unix_s; });
  uint64_t chosen = 0;
  size_t count = 0;
  for (; count < blocks.size() && chosen < bytes; ++count) chosen += blocks[count].bytes;
  blocks.resize(count);
  const uint64_t gone = erase_all(std::move(blocks), 5'000'000'000);
  add(counts_.evicted, gone);
  return gone;
}

template <typename Memory>
Result<uint64_t> KvSpaceOf<Memory>::flush(const std::optional<KvNamespace>& name_space, uint64_t wait_ns) {
  if (forked()) return in_child();
  if (options_.ownership == nullptr) return read_only();
  std::vector<Block> blocks;
  const auto tag = static_cast<uint32_t>(kv::namespace_hash(name_space ? name_space->name() : ""));
  each_block([&](const Block& block) {
    if (name_space && block.name_space != tag) return true;
    if (name_space) {
      const std::optional<kv::Names> said = names(block);
      if (!said || said->name_space != name_space->name()) return true;
    }
    blocks.push_back(block);
    return true;
  });
  const uint64_t asked = blocks.size();
  const uint64_t gone = erase_all(std::move(blocks), wait_ns);
  if (gone < asked)
    return refuse(ErrorCode::busy, "KV space: " + std::to_string(gone) + " blocks were erased and " +
                                       std::to_string(asked - gone) +
                                       " are left: they are read in place, or their owner does not answer; "
                                       "wait longer");
  return gone;
}

}  // namespace terrace
