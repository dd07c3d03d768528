// SPDX-License-Identifier: Apache-2.0
// KvSpaceOf: what a space of several members asks of each of them (member_space.h).
#pragma once

namespace terrace {

template <typename Memory>
Result<KvWrite> KvSpaceOf<Memory>::begin_put_in_free_room(const KvNamespace& name_space, std::string_view key,
                                                          uint64_t bytes, const KvPutOptions& options) {
  uint64_t waited_ns = 0;
  return begin_here(name_space, key, bytes, options, &waited_ns, RoomFrom::what_is_free);
}

template <typename Memory>
std::optional<std::string> KvSpaceOf<Memory>::read_own_block(const kv::BlockKey& key) {
  std::string bytes;
  for (int attempt = 0; attempt < 4; ++attempt) {
    Block block;
    if (find(key, &block) != Outcome::done || block.bytes > kv::policy_text_max) return std::nullopt;
    bytes.resize(block.bytes);
    std::byte name[64];
    if (reader_.copy(block, std::as_writable_bytes(std::span(bytes.data(), bytes.size())),
                     std::span(name).first(sizeof(layout::BlockName))) == Outcome::done)
      return bytes;
  }
  return std::nullopt;
}

template <typename Memory>
std::optional<std::string> KvSpaceOf<Memory>::read_own(std::string_view key) {
  return read_own_block(kv::key_of(kv::namespace_hash(kv::own_name_space), key));
}

template <typename Memory>
bool KvSpaceOf<Memory>::other_has_own(std::string_view key) {
  const kv::BlockKey hash = kv::key_of(kv::namespace_hash(kv::own_name_space), key);
  for (uint32_t part = 0; part < geometry_.parts; ++part) {
    Block block;
    if ((own() != nullptr && part == own()->part()) || !in_use(part)) continue;
    if (find_in(part, hash, &block) == Outcome::done && owner_lives(part)) return true;
  }
  return false;
}

// Who lives is asked only where few were given back.
template <typename Memory>
uint32_t KvSpaceOf<Memory>::parts_without_owner() {
  constexpr size_t enough = 2;
  const size_t spare = claims_.spare_parts().size();
  if (spare >= enough) return static_cast<uint32_t>(spare);
  uint32_t without = 0;
  for (uint32_t part = 0; part < geometry_.parts; ++part) without += owner_lives(part) ? 0 : 1;
  return without;
}

template <typename Memory>
uint32_t KvSpaceOf<Memory>::other_holders() {
  uint32_t others = 0;
  for (uint32_t holder = 0; holder < geometry_.holders(); ++holder) {
    const bool mine =
        (own() != nullptr && own()->part() == holder) || (seat() != nullptr && seat()->holder() == holder);
    others += !mine && owner_lives(holder) ? 1 : 0;
  }
  return others;
}

template <typename Memory>
uint64_t KvSpaceOf<Memory>::budget_bytes(size_t budget) const {
  const uint64_t bytes = rules_.policy().budgets[budget].bytes,
                 all = all_data_bytes_.load(std::memory_order_relaxed);
  if (all <= geometry_.data_bytes) return bytes;
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(bytes) * geometry_.data_bytes / all);
}

template <typename Memory>
std::vector<kv::Block> KvSpaceOf<Memory>::blocks_by_worth() {
  std::vector<Block> kept, others;
  each_block([&](const Block& block) {
    (is_kept(block) ? kept : others).push_back(block);
    return true;
  });
  const auto used_later = [](const Block& one, const Block& other) {
    return one.used_unix_s > other.used_unix_s;
  };
  std::stable_sort(others.begin(), others.end(), used_later);
  kept.insert(kept.end(), others.begin(), others.end());
  return kept;
}

template <typename Memory>
std::optional<kv::Names> KvSpaceOf<Memory>::copy_out(const Block& block, std::vector<std::byte>* bytes) {
  std::byte name[kv::name_bytes_max + 64];
  const std::span<std::byte> there(
      name, std::min<uint64_t>(sizeof name, block.extent_bytes - (block.name_offset() - block.offset)));
  bytes->resize(block.bytes);
  if (reader_.copy(block, *bytes, there) != Outcome::done) return std::nullopt;
  std::optional<kv::Names> said = kv::names_of(there);
  if (!said || kv::key_of(kv::namespace_hash(said->name_space), said->key) != block.key) return std::nullopt;
  return said;
}

template <typename Memory>
Status KvSpaceOf<Memory>::put_copy(const kv::Names& said, const Block& of, std::span<const std::byte> bytes) {
  TERRACE_ASSIGN_OR_RETURN(const KvNamespace name_space, KvNamespace::of(said.name_space));
  TERRACE_ASSIGN_OR_RETURN(KvWrite writing,
                           begin_put_in_free_room(name_space, said.key, bytes.size(),
                                                  {.checksum = of.has_checksum() || geometry_.checksums()}));
  Block& block = writing.state_->block;
  block.parent = of.parent;
  block.expires_unix_s = of.expires_unix_s;
  block.used_unix_s = of.used_unix_s;
  Memory().write(writing.bytes().data(), bytes.data(), bytes.size());
  return writing.publish();
}

}  // namespace terrace
