// SPDX-License-Identifier: Apache-2.0
// The bytes of a spill folder: blocks of KV spaces in files, which all processes of one host share.
//
//   map            header, slots, counters of erases, segments: who has which piece of the data
//   slot-NN.index  the blocks that one slot has put: buckets of 15 lines
//   data           segments of equal length; a block's frame lies in one of them
//
// Coherence domain  The processes of one host, through the page cache: the files are mapped by all of them.
// Writers           Records and tags: the owner of the slot, which has its index file locked. Anybody may make a live
//                   record gone, by one compare-and-swap of its word. Segments and counters are changed by
//                   compare-and-swap only.
//
// Invariants
//   P1  a record's fields are constant while its word is live; the word's version never repeats in a record.
//   P2  a segment is written only by the owner of the slot that it belongs to.
//   P3  before a segment is written anew, no record of it is live.
//   None of them holds for certain after a power cut, or when somebody else has written to the files: so who reads a
//   block compares the frame's hash and the names behind the data, and what differs is not there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace terrace::layout {

inline constexpr uint64_t spill_magic = 0x314c4c4950535254;        // "TRSPILL1" in memory order
inline constexpr uint64_t spill_index_magic = 0x3158444e49535254;  // "TRSINDX1"
inline constexpr uint32_t spill_version = 1;
inline constexpr uint64_t spill_page_bytes = 4096;
inline constexpr uint32_t spill_slots = 64;
inline constexpr uint32_t spill_erase_counters = 512;
inline constexpr uint64_t spill_segments_max = 1ull << 16;
inline constexpr uint64_t spill_buckets_max = 1ull << 26;

// At 0 of the map; written once, before the file has its name.
struct SpillHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t features;       // 0; a program refuses bits that it does not know
  uint64_t folder_id[2];   // random: the index files of this map say it as well
  uint64_t segment_bytes;  // a multiple of 4096
  uint64_t segments;
  uint64_t buckets;                                     // of each index; a power of two
  uint64_t budget_bytes, block_bytes, max_block_bytes;  // as they were asked for
  uint32_t reserved;
  uint32_t checksum;  // crc32c of the fields above
};

// At 0 of an index file; the buckets begin at 4096.
struct SpillIndexHeader {
  uint64_t magic;
  uint64_t folder_id[2];
  uint64_t buckets;
  uint32_t slot;
  uint32_t checksum;  // crc32c of the fields above
};

// Where the pieces of the map are.
inline constexpr uint64_t spill_flushes_offset = 1024;     // u64: flushes ever
inline constexpr uint64_t spill_slots_used_offset = 1088;  // u64: slots from here on were never owned
inline constexpr uint64_t spill_slots_offset = 4096;
inline constexpr uint64_t spill_erases_offset = spill_slots_offset + spill_slots * 64ull;
inline constexpr uint64_t spill_segments_offset = spill_erases_offset + spill_erase_counters * 8ull;

// A line of the map; stored by who has the slot's index locked.
struct alignas(64) SpillSlot {
  uint64_t epoch;     // times it was owned; 0: never
  uint64_t open;      // 1: owned, or its owner died; 0: left in order
  uint64_t pid;       // of the owner, for people
  uint64_t wants_ms;  // Unix milliseconds: when it last had too few segments
};

// A segment's word: 0: free; else its slot + 1 in bits 48 to 63, below when it was begun, in Unix milliseconds.
inline constexpr uint32_t spill_segment_slot_shift = 48;
inline constexpr uint64_t spill_segment_age_mask = (1ull << spill_segment_slot_shift) - 1;

// A line of a bucket: the first one has tags, 14 records follow.
inline constexpr uint32_t spill_bucket_records = 14;
inline constexpr uint64_t spill_bucket_bytes = 64 * (1 + spill_bucket_records);
struct alignas(64) SpillTags {
  uint64_t uses;                        // four bits a record: reads since it was written, at most 15
  uint32_t tags[spill_bucket_records];  // the low half of key[1], 1 in the place of 0; 0: never used
};

inline constexpr uint64_t spill_word_live = 1ull << 63;
inline constexpr uint64_t spill_word_version_mask = (1ull << 56) - 1;
inline constexpr uint32_t spill_place_bits = 40;

struct alignas(64) SpillRecord {
  uint64_t word;    // live, and the version: one more when a block comes and when it goes
  uint64_t key[2];  // as BlockRecord::key
  uint64_t place;   // where the frame begins in the data, in pages of 4096, in bits 0 to 39; its pages above
  uint64_t hash;    // XXH3 of 64 bits of the frame's bytes up to the end of the names; its seed is key[0]
  uint64_t parent;  // key[0] of the block before it; 0: none
  uint32_t data_bytes;
  uint32_t name_space;      // XXH3 of the namespace, its low 32 bits
  uint32_t expires_unix_s;  // 0: never
  uint32_t checksum;        // crc32c of the version and the fields above
};

// A frame: the data, up to a multiple of 64; BlockName (kv_space.h), namespace and key, up to a multiple of 64; then
// anything up to a multiple of 4096.

static_assert(std::is_trivially_copyable_v<SpillHeader> && sizeof(SpillHeader) == 88);
static_assert(offsetof(SpillHeader, checksum) == 84 && sizeof(SpillIndexHeader) == 40);
static_assert(sizeof(SpillSlot) == 64 && sizeof(SpillTags) == 64 && sizeof(SpillRecord) == 64);
static_assert(offsetof(SpillRecord, hash) == 32 && offsetof(SpillRecord, data_bytes) == 48);
static_assert(offsetof(SpillRecord, checksum) == 60 && spill_segments_offset % 64 == 0);

}  // namespace terrace::layout
