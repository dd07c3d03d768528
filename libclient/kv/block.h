// SPDX-License-Identifier: Apache-2.0
// Blocks of a KV space: keys, records and names as bytes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libclient/coherence/geometry.h"

namespace terrace::kv {

// XXH3 of 128 bits of a key, with that of its namespace as the seed. Two keys that share it are not told apart by
// a look-up; who reads a block compares the names.
struct BlockKey {
  uint64_t low = 0;  // never 0
  uint64_t high = 0;
  bool operator==(const BlockKey&) const = default;
};
uint64_t namespace_hash(std::string_view name_space);
BlockKey key_of(uint64_t namespace_hash, std::string_view key);

// A record that was found: a private copy of numbers that were checked.
struct Block {
  uint32_t part = 0;
  uint32_t record = 0;
  uint64_t word = 0;
  BlockKey key;
  uint64_t offset = 0;        // of its extent, in the space's data; the block's bytes come first
  uint64_t extent_bytes = 0;  // a multiple of 64
  uint64_t bytes = 0;
  uint64_t parent = 0;
  uint32_t data_checksum = 0;
  uint32_t expires_unix_s = 0;
  uint32_t used_unix_s = 0;
  uint32_t name_space = 0;

  bool has_checksum() const { return (word & layout::block_word_summed) != 0; }
  uint64_t name_offset() const;
  uint64_t name_bytes() const { return extent_bytes - (name_offset() - offset); }  // and zeros behind them
  bool is_expired(uint64_t now_unix_s) const { return expires_unix_s != 0 && expires_unix_s <= now_unix_s; }
};

// The bytes that a block takes of the data, its name with it.
uint64_t extent_bytes(uint64_t bytes, std::string_view name_space, std::string_view key);
// What lies behind a block's bytes.
std::vector<std::byte> name_bytes(std::string_view name_space, std::string_view key);
inline constexpr size_t name_bytes_max = sizeof(layout::BlockName) + 255 + 512;

struct Names {
  std::string name_space, key;
};
// From what lies behind a block's bytes; nothing when it makes no sense.
std::optional<Names> names_of(std::span<const std::byte> name);
bool has_names(std::span<const std::byte> name, std::string_view name_space, std::string_view key);

// A live record's copy as a block; nothing when its numbers contradict themselves or the geometry.
std::optional<Block> block_of(const layout::BlockRecord& copy, const coherence::Geometry& geometry);
// Whether a live record's copy is of this very block: its version, and all that never changes.
bool is_of(const layout::BlockRecord& copy, const Block& block);
// The record of a block, under a live word of `version`; its checksum is set.
layout::BlockRecord record_of(const Block& block, uint64_t version);

}  // namespace terrace::kv
