// SPDX-License-Identifier: Apache-2.0
// KvSpaceOf: what there is.
#pragma once

namespace terrace {

// Every block there is, but for the space's own, until `each` returns false.
template <typename Memory>
template <typename Each>
void KvSpaceOf<Memory>::each_block(Each each, Expired expired) {
  const uint64_t now = expired == Expired::too ? 0 : now_unix_s();
  for (uint32_t part = 0; part < geometry_.parts; ++part)
    for (uint32_t index = 0; in_use(part) && index < geometry_.records; ++index) {
      Block block;
      if (reader_.describe(part, index, &block) != Outcome::done || block.is_expired(now) ||
          is_own_block(block))
        continue;
      if (!each(block)) return;
    }
}

template <typename Memory>
std::optional<kv::Names> KvSpaceOf<Memory>::names(const Block& block) {
  std::byte name[kv::name_bytes_max + 64];
  const std::span<std::byte> there(
      name, std::min<uint64_t>(sizeof name, block.extent_bytes - (block.name_offset() - block.offset)));
  if (reader_.copy_name(block, there) != Outcome::done) return std::nullopt;
  return kv::names_of(there);
}

template <typename Memory>
KvBlockInfo KvSpaceOf<Memory>::info_of(const Block& block, kv::Names names) {
  return {.name_space = std::move(names.name_space),
          .key = std::move(names.key),
          .bytes = block.bytes,
          .part = block.part,
          .expires_unix_s = block.expires_unix_s,
          .used_unix_s = block.used_unix_s,
          .has_parent = block.parent != 0,
          .has_checksum = block.has_checksum()};
}

template <typename Memory>
Status KvSpaceOf<Memory>::list(const std::function<bool(const KvBlockInfo&)>& each) {
  each_block([&](const Block& block) {
    std::optional<kv::Names> said = names(block);
    return !said || each(info_of(block, std::move(*said)));
  });
  return {};
}

template <typename Memory>
Result<KvStat> KvSpaceOf<Memory>::stat() {
  KvStat stat{.data_bytes = geometry_.data_bytes,
              .free_bytes = geometry_.data_bytes,
              .blocks_max = uint64_t{geometry_.records - geometry_.records / 4} * geometry_.parts,
              .max_block_bytes =
                  std::min(kv_block_bytes_limit, geometry_.chunk_bytes - layout::space_part_alignment_bytes),
              .coherence = Memory::coherent ? SpaceCoherence::coherent : SpaceCoherence::noncoherent,
              .checksums = geometry_.checksums()};
  if (local() != nullptr) {
    stat.local_blocks = local_share_->blocks.load(std::memory_order_relaxed);
    stat.local_bytes = local_share_->bytes.load(std::memory_order_relaxed);
    stat.local_max_bytes = local()->bytes_max();
  }
  for (uint32_t part = 0; part < geometry_.parts; ++part) {
    const LastOwner last = claims_.last_owner(part);
    KvPartInfo info{.part = part, .host = Memory().load(&geometry_.owner(part)->host)};
    info.state = last.epoch == 0                          ? "unused"
                 : last.gave_back                         ? "left"
                 : claims_.dead_check()(part, last.epoch) ? "dead"
                                                          : "owned";
    info.chunk_bytes = uint64_t{chunks_of(part)} * geometry_.chunk_bytes;
    stat.free_bytes -= std::min(stat.free_bytes, info.chunk_bytes);
    stat.parts.push_back(std::move(info));
  }
  TERRACE_ASSIGN_OR_RETURN(const KvPolicy of, policy());
  for (const KvBudget& budget : of.budgets) stat.budgets.push_back({.budget = budget});
  each_block([&](const Block& block) {
    if (is_kept(block)) stat.kept_bytes += block.extent_bytes;
    if (!of.budgets.empty()) {
      const MutexLock lock(order_mutex_);
      for (const uint16_t budget : rules_of(block).budgets)
        if (budget < stat.budgets.size()) stat.budgets[budget].used_bytes += block.extent_bytes;
    }
    ++stat.blocks;
    stat.block_bytes += block.bytes;
    ++stat.parts[block.part].blocks;
    stat.parts[block.part].block_bytes += block.bytes;
    return true;
  });
  stat.members.push_back({.where = "",
                          .state = "filling",
                          .data_bytes = stat.data_bytes,
                          .free_bytes = stat.free_bytes,
                          .blocks = stat.blocks,
                          .block_bytes = stat.block_bytes});
  return stat;
}

template <typename Memory>
KvCounters KvSpaceOf<Memory>::counters() const {
  const auto of = [](const std::atomic<uint64_t>& count) { return count.load(std::memory_order_relaxed); };
  return {.hits = of(counts_.hits),
          .misses = of(counts_.misses),
          .hit_bytes = of(counts_.hit_bytes),
          .puts = of(counts_.puts),
          .put_bytes = of(counts_.put_bytes),
          .puts_refused = of(counts_.puts_refused),
          .evicted = of(counts_.evicted),
          .evicted_bytes = of(counts_.evicted_bytes),
          .expired = of(counts_.expired),
          .erased = of(counts_.erased),
          .chunks_given = of(counts_.chunks_given),
          .parts_adopted = of(counts_.parts_adopted),
          .spilled = of(counts_.spilled),
          .spill_hits = of(counts_.spill_hits),
          .spill_dropped = of(counts_.spill_dropped),
          .local_hits = of(counts_.local_hits),
          .local_hit_bytes = of(counts_.local_hit_bytes),
          .local_copied = of(counts_.local_copied),
          .local_evicted = local_share_ == nullptr ? 0 : of(local_share_->evicted),
          .local_stale = of(counts_.local_stale)};
}

template <typename Memory>
Result<KvVerified> KvSpaceOf<Memory>::verify() {
  KvVerified verified;
  each_block([&](const Block& block) {
    const std::optional<kv::Names> said = names(block);
    const uint32_t sum = block.has_checksum() ? reader_.checksum_in_place(block) : 0;
    if (!reader_.recheck(block)) {
      ++verified.changed;
      return true;
    }
    const bool right_name = said && kv::key_of(kv::namespace_hash(said->name_space), said->key) == block.key;
    if (!right_name || (block.has_checksum() && sum != block.data_checksum))
      verified.wrong.push_back(info_of(block, said.value_or(kv::Names{})));
    verified.without_checksum += block.has_checksum() ? 0 : 1;
    ++verified.blocks;
    verified.bytes += block.bytes;
    return true;
  });
  return verified;
}

}  // namespace terrace
