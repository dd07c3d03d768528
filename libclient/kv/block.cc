// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/block.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "core/base/crc32c.h"
#include "libclient/coherence/word.h"
#include "terrace/kv_space.h"

namespace terrace::kv {

using layout::BlockName;
using layout::BlockRecord;

namespace {

constexpr uint64_t line = layout::cache_line_bytes;
constexpr uint64_t offset_mask = (uint64_t{1} << layout::block_place_bits) - 1;

uint64_t round_up(uint64_t value) {
  return (value + line - 1) / line * line;
}

uint32_t checksum_of(const BlockRecord& record) {
  const uint64_t words[] = {record.word & (layout::word_version_mask | layout::block_word_summed),
                            record.key[0],
                            record.key[1],
                            record.place,
                            uint64_t{record.data_bytes} << 32 | record.data_checksum,
                            record.parent,
                            uint64_t{record.expires_unix_s} << 32 | record.name_space};
  return crc32c(std::as_bytes(std::span(words)));
}

}  // namespace

uint64_t namespace_hash(std::string_view name_space) {
  return XXH3_64bits(name_space.data(), name_space.size());
}

BlockKey key_of(uint64_t namespace_hash, std::string_view key) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(key.data(), key.size(), namespace_hash);
  return {.low = hash.low64 == 0 ? 1 : hash.low64, .high = hash.high64};
}

uint64_t Block::name_offset() const {
  return offset + round_up(bytes);
}

uint64_t extent_bytes(uint64_t bytes, std::string_view name_space, std::string_view key) {
  return round_up(bytes) + round_up(sizeof(BlockName) + name_space.size() + key.size());
}

std::vector<std::byte> name_bytes(std::string_view name_space, std::string_view key) {
  const BlockName head{.magic = layout::block_name_magic,
                       .name_space_bytes = static_cast<uint16_t>(name_space.size()),
                       .key_bytes = static_cast<uint16_t>(key.size())};
  std::vector<std::byte> bytes(round_up(sizeof head + name_space.size() + key.size()));
  std::memcpy(bytes.data(), &head, sizeof head);
  if (!name_space.empty()) std::memcpy(bytes.data() + sizeof head, name_space.data(), name_space.size());
  std::memcpy(bytes.data() + sizeof head + name_space.size(), key.data(), key.size());
  return bytes;
}

std::optional<Names> names_of(std::span<const std::byte> name) {
  BlockName head;
  if (name.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, name.data(), sizeof head);
  if (head.magic != layout::block_name_magic || head.name_space_bytes > kv_namespace_bytes_max ||
      head.key_bytes == 0 || head.key_bytes > kv_key_bytes_max ||
      name.size() < sizeof head + head.name_space_bytes + head.key_bytes)
    return std::nullopt;
  const char* const text = reinterpret_cast<const char*>(name.data()) + sizeof head;
  return Names{.name_space = {text, head.name_space_bytes},
               .key = {text + head.name_space_bytes, head.key_bytes}};
}

bool has_names(std::span<const std::byte> name, std::string_view name_space, std::string_view key) {
  BlockName head;
  if (name.size() < sizeof head + name_space.size() + key.size()) return false;
  std::memcpy(&head, name.data(), sizeof head);
  const std::byte* const text = name.data() + sizeof head;
  return head.magic == layout::block_name_magic && head.name_space_bytes == name_space.size() &&
         head.key_bytes == key.size() &&
         (name_space.empty() || std::memcmp(text, name_space.data(), name_space.size()) == 0) &&
         std::memcmp(text + name_space.size(), key.data(), key.size()) == 0;
}

std::optional<Block> block_of(const BlockRecord& copy, const coherence::Geometry& geometry) {
  if (copy.checksum != checksum_of(copy) || copy.key[0] == 0) return std::nullopt;
  const Block block{.word = copy.word,
                    .key = {copy.key[0], copy.key[1]},
                    .offset = (copy.place & offset_mask) * line,
                    .extent_bytes = (copy.place >> layout::block_place_bits) * line,
                    .bytes = copy.data_bytes,
                    .parent = copy.parent,
                    .data_checksum = copy.data_checksum,
                    .expires_unix_s = copy.expires_unix_s,
                    .used_unix_s = copy.used_unix_s,
                    .name_space = copy.name_space};
  // The extent lies in one chunk, and has room for the bytes and the shortest name.
  const uint64_t least = round_up(block.bytes) + line;
  if (block.extent_bytes < least || block.extent_bytes > least + name_bytes_max + line) return std::nullopt;
  if (block.offset >= geometry.data_bytes || block.extent_bytes > geometry.data_bytes - block.offset)
    return std::nullopt;
  const uint64_t in_chunk = block.offset % geometry.chunk_bytes;
  if (block.extent_bytes > geometry.chunk_bytes - in_chunk) return std::nullopt;
  return block;
}

bool is_of(const BlockRecord& copy, const Block& block) {
  constexpr uint64_t constant = layout::word_live | layout::block_word_summed | layout::word_version_mask;
  return (copy.word & constant) == (block.word & constant) && copy.key[0] == block.key.low &&
         copy.key[1] == block.key.high && (copy.place & offset_mask) * line == block.offset &&
         (copy.place >> layout::block_place_bits) * line == block.extent_bytes &&
         copy.data_bytes == block.bytes && copy.data_checksum == block.data_checksum &&
         copy.parent == block.parent && copy.expires_unix_s == block.expires_unix_s &&
         copy.name_space == block.name_space;
}

BlockRecord record_of(const Block& block, uint64_t version) {
  BlockRecord record{};
  record.word = layout::word_live | layout::word_linked | (block.word & layout::block_word_summed) | version;
  record.key[0] = block.key.low;
  record.key[1] = block.key.high;
  record.place = block.offset / line | (block.extent_bytes / line) << layout::block_place_bits;
  record.data_bytes = static_cast<uint32_t>(block.bytes);
  record.data_checksum = block.data_checksum;
  record.parent = block.parent;
  record.expires_unix_s = block.expires_unix_s;
  record.used_unix_s = block.used_unix_s;
  record.name_space = block.name_space;
  record.checksum = checksum_of(record);
  return record;
}

}  // namespace terrace::kv
