// SPDX-License-Identifier: Apache-2.0
// The bytes of a KV space: immutable blocks found by key, in memory that several processes, on one or several
// hosts, write and read at once. Header, owner lines, pins, claims, parts, seats and chunks are those of a tensor
// space (tensor_space.h, with space_feature_blocks); this file has what is different.
//
//   holder + 64 + pins   uses_per_holder words, a ring: blocks of other parts that the holder used
//   part + ...           records_per_part records of 64 bytes: a hash table by key, linear probing
//   a block's extent     its bytes, up to a multiple of 64; then its BlockName, namespace and key
//
// Coherence domain  As a tensor space: a line of 64 bytes has one writer, the owner of the part or seat.
//
// Invariants
//   K1  a record's numbers are constant while its word is live, but for used_unix_s; the word's version never
//       repeats in a record.
//   K2  the bytes of a live record's extent are constant, and are not given to another block while a living holder
//       has it pinned.
//   K3  extents of a part's live records do not overlap, and lie in one chunk each, which the part has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace terrace::layout {

// BlockRecord::word: word_live, word_linked, word_retiring and the version as TensorSlots::word has them, and
inline constexpr uint64_t block_word_summed = 1ull << 60;  // data_checksum is the data's

// BlockRecord::place: where the extent begins in the data, in lines of 64 bytes, below; its lines above.
inline constexpr uint32_t block_place_bits = 40;
inline constexpr uint64_t block_lines_max = (1ull << 24) - 1;

// One line: who finds it has all that is needed to read the block.
struct alignas(64) BlockRecord {
  uint64_t word;
  uint64_t key[2];  // XXH3 of 128 bits of the key; its seed is XXH3 of 64 bits of the namespace
  uint64_t place;
  uint32_t data_bytes;
  uint32_t data_checksum;   // crc32c of the data, with block_word_summed
  uint64_t parent;          // key[0] of the block before it; 0: none
  uint32_t expires_unix_s;  // 0: never
  uint32_t used_unix_s;     // not in the checksum: the owner renews it
  uint32_t name_space;      // XXH3 of the namespace, its low 32 bits
  uint32_t checksum;        // crc32c: version, summed or not, and the fields above but used_unix_s
};

// Behind the data in the extent, followed by the namespace's bytes and the key's.
struct BlockName {
  uint32_t magic;
  uint16_t name_space_bytes;
  uint16_t key_bytes;
};
inline constexpr uint32_t block_name_magic = 0x314e4b54;  // "TKN1" in memory order

// A word of the ring of uses: the part in bits 56 to 61, the low 34 bits of the version in 22 to 55, the record
// below, as a word that asks for a removal.

// A word of a pin table by which a holder asks the others for room: when, in Unix milliseconds, in bits 0 to 47. It
// orders nothing.
inline constexpr uint64_t pin_asks_room = 1ull << 61;
inline constexpr uint64_t pin_room_mask = (1ull << 48) - 1;

static_assert(std::is_trivially_copyable_v<BlockRecord> && sizeof(BlockRecord) == 64);
static_assert(offsetof(BlockRecord, key) == 8 && offsetof(BlockRecord, place) == 24);
static_assert(offsetof(BlockRecord, data_bytes) == 32 && offsetof(BlockRecord, data_checksum) == 36);
static_assert(offsetof(BlockRecord, parent) == 40 && offsetof(BlockRecord, expires_unix_s) == 48);
static_assert(offsetof(BlockRecord, used_unix_s) == 52 && offsetof(BlockRecord, name_space) == 56);
static_assert(offsetof(BlockRecord, checksum) == 60);
static_assert(sizeof(BlockName) == 8 && offsetof(BlockName, key_bytes) == 6);

}  // namespace terrace::layout
