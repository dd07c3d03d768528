// SPDX-License-Identifier: Apache-2.0
// The bytes of a tensor space: named tensors in memory that several processes, on one or several hosts, write
// and read at once (a lease of mode shared_coherent).
//
//   0             header (256 bytes), written once
//   256           ownership line (64 bytes): the kind of owners of the space
//   seats_offset  seat_count seats: an owner line and pins each, for holders without a part that read in place
//   parts_offset  part_count parts of part_bytes each; every byte of a part is stored by its owner only
//   data_offset   data_bytes of data, 4 KiB aligned, in chunk_count chunks; each is stored to by the owner of the
//                 part that has it
//
//   part + 0      owner line (64 bytes)
//   part + 64     pins_per_part words of 8 bytes, up to a multiple of 64: tensors that the owner reads in place
//   ...           chunk_count words of 8 bytes, up to a multiple of 64: the chunks of the part
//   ...           records_per_part records of 256 bytes: a hash table by name, linear probing
//
// Offsets count from the header's first byte, in a record from the data's. Integers are little-endian. There
// are no pointers. docs/formats/tensor_space.md has the meaning of each field, docs/design/0015-coherence.md
// the protocol.
//
// Coherence domain  Memory that hosts share without coherent caches. A line of 64 bytes has one writer: the
//                   owner of the part or seat. The ownership line is stored to once, by the first owner (or by
//                   several who store the same). Nothing here needs an atomic operation between hosts, only
//                   aligned 8-byte loads and stores; what changes while others read is one word,
//                   TensorSlots::word.
//
// Invariants
//   N1  a part and a seat have one owner at a time; their epochs grow with each owner.
//   N2  the slot that a stable word names has its publisher's bytes, until the word changes; no holder stores
//       to a slot that is pinned by a living holder.
//   N3  one version of one incarnation never names two contents.
//   N4  extents of a part's live records do not overlap and lie in chunks that the part has.
//   N5  all owners of a space were made by one kind of source (except two kinds that are first in the same
//       moment on hosts without coherent caches).
//   N6  a chunk is one part's at a time: of two claim words of a chunk at most one says chunk_owned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace terrace::layout {

inline constexpr uint64_t space_magic = 0x3143505343525254ull;  // "TRRCSPC1" in memory order
inline constexpr uint16_t space_version_major = 2;
inline constexpr uint16_t space_version_minor = 0;

inline constexpr uint64_t cache_line_bytes = 64;
inline constexpr uint64_t space_part_alignment_bytes = 4096;
inline constexpr uint32_t space_parts_max = 64;          // a look-up asks each of them
inline constexpr uint32_t space_holders_max = 64;        // parts and seats: who stores asks each for pins
inline constexpr uint32_t space_records_max = 1u << 22;  // a part: 1 GiB of records
inline constexpr uint32_t space_pins_max = 1u << 16;     // a part
inline constexpr uint32_t space_uses_max = 1u << 16;     // a holder
inline constexpr uint32_t space_chunks_max = 256;        // who claims one reads so many words of each part
inline constexpr uint32_t space_dimensions_max = 8;
inline constexpr uint32_t space_name_bytes_max = 1024;

// Bits of SpaceHeader::features. A reader refuses bits that it does not know.
inline constexpr uint32_t space_feature_checksums = 1;  // data has checksums, which readers compare
inline constexpr uint32_t space_feature_holders = 4;    // there is an ownership line, and maybe seats
inline constexpr uint32_t space_feature_blocks = 8;     // a KV space: blocks in place of tensors (kv_space.h)
inline constexpr uint32_t space_features_known =
    space_feature_checksums | space_feature_holders | space_feature_blocks;

enum class SpaceMode : uint32_t {
  coherent = 1,     // the hardware keeps the hosts' caches coherent
  noncoherent = 2,  // it does not: explicit write-back and invalidate
};

struct SpaceHeader {
  uint64_t magic;  // stored last
  uint16_t version_major;
  uint16_t version_minor;
  uint32_t header_bytes;  // 256
  uint64_t total_bytes;   // of the header, all parts and the data
  uint64_t parts_offset;  // a multiple of 4096
  uint64_t part_bytes;    // a multiple of 4096
  uint64_t data_bytes;    // of all chunks, a multiple of 4096
  uint32_t part_count;
  uint32_t records_per_part;  // a power of two
  uint32_t pins_per_part;     // a multiple of 8
  uint32_t mode;              // SpaceMode
  uint32_t features;
  uint32_t record_bytes;  // 256; of blocks 64
  uint64_t lease_epoch;   // of the lease that was formatted; 0: unknown
  uint64_t created_unix_s;
  uint64_t seats_offset;     // a multiple of 64; this and seat_count with space_feature_holders
  uint32_t seat_count;       // with the parts at most space_holders_max
  uint32_t chunk_count;      // data_bytes / chunk_bytes, rounded up
  uint64_t chunk_bytes;      // a multiple of 64; the last chunk may be shorter
  uint64_t data_offset;      // a multiple of 4096, behind the parts
  uint32_t uses_per_holder;  // of blocks: words behind the pins, a multiple of 8; else 0
  uint8_t reserved[128];
  uint32_t checksum;  // crc32c of bytes 0 to 251
};

// Who makes holders the owners of parts and seats. Two kinds know nothing of each other's owners, so a space
// has one: what it was formatted with, or else its first owner's.
enum class OwnershipKind : uint64_t {
  unsaid = 0,  // nobody owned a part yet
  manager = 1,
  hosts = 2,  // fixed parts for each host
  locks = 3,
  program = 4,  // a source of the program's own
};

inline constexpr uint64_t space_ownership_offset = 256;
struct alignas(64) SpaceOwnership {
  uint64_t kind;  // OwnershipKind; once it is not 0 it stays
  uint64_t reserved[7];
};

enum class PartState : uint64_t {
  free = 0,       // never owned, or given back: its records are whole
  repairing = 1,  // its owner is taking it over
  owned = 2,
};

// Of a part, or of a seat.
struct alignas(64) PartOwner {
  uint64_t epoch;      // of the owner, or of the last one
  uint64_t host;       // for people
  uint64_t state;      // PartState
  uint64_t pins_used;  // pins at and beyond this index were never used under this epoch
  uint64_t uses;       // of blocks: words that were ever written to the ring behind the pins
  uint64_t reserved[3];
};

// One word of the pin table: 0, or what its owner reads in place, or (pin_asks_removal) a tensor that it asks
// the owner of another part to remove. Who looks for pins passes over the latter, and over what else it does not
// know.
inline constexpr uint64_t pin_used = 1ull << 63;
inline constexpr uint64_t pin_asks_removal = 1ull << 62;

// A claim word: what its part has of one chunk. Any other number counts as a claim of a part that is not asked.
enum class ChunkClaim : uint64_t {
  none = 0,
  wanted = 1,  // its owner still looks whether the chunk is free
  owned = 2,
};

// TensorSlots::word: flags, and the version in the rest.
inline constexpr uint64_t word_live = 1ull << 63;       // there is a tensor
inline constexpr uint64_t word_linked = 1ull << 62;     // probing goes on behind this record
inline constexpr uint64_t word_retiring = 1ull << 61;   // being removed: no new pins
inline constexpr uint64_t word_blank = 1ull << 60;      // no content was published yet, or it was lost
inline constexpr uint64_t word_tentative = 1ull << 59;  // its creator still looks whether the name is free
inline constexpr uint64_t word_version_mask = (1ull << 56) - 1;

// Line 0 of a record: what the protocol reads and writes.
struct alignas(64) TensorSlots {
  uint64_t word;            // even version: stable; odd: the next one is being written
  uint64_t incarnation;     // grows with each tensor that this record is given to
  uint64_t name_hash;       // FNV-1a of the name, 64 bits
  uint64_t owner_epoch;     // under which the word changed last
  uint64_t data_checksums;  // crc32c of slot 0's data_bytes; of slot 1's in the upper half
  uint64_t reserved[3];
};

// Lines 1 to 3: written before the word says live, constant until it no longer does.
struct TensorShape {
  uint64_t extent_offset;  // of all that belongs to the tensor, in the space's data; the name comes first
  uint64_t extent_bytes;
  uint64_t data_offset;  // of slot 0, in the space's data
  uint64_t data_bytes;
  uint64_t slot_stride_bytes;
  uint32_t slot_count;  // 1 or 2
  uint32_t name_bytes;
  uint8_t dtype;  // terrace::DType
  uint8_t rank;
  uint8_t hint;       // terrace::TensorHint
  uint8_t flags;      // terrace::TensorFlags
  uint32_t checksum;  // crc32c: incarnation, name hash, this struct with a checksum of 0, name
  uint64_t reserved;
  uint64_t shape[space_dimensions_max];
  int64_t strides[space_dimensions_max];
};

struct alignas(64) SpaceRecord {
  TensorSlots slots;
  TensorShape shape;
};

inline constexpr uint64_t space_header_checked_bytes = 252;

static_assert(std::is_trivially_copyable_v<SpaceHeader> && std::is_standard_layout_v<SpaceHeader>);
static_assert(sizeof(SpaceHeader) == 256 && offsetof(SpaceHeader, checksum) == space_header_checked_bytes);
static_assert(offsetof(SpaceHeader, version_major) == 8 && offsetof(SpaceHeader, version_minor) == 10);
static_assert(offsetof(SpaceHeader, header_bytes) == 12 && offsetof(SpaceHeader, total_bytes) == 16);
static_assert(offsetof(SpaceHeader, parts_offset) == 24 && offsetof(SpaceHeader, part_bytes) == 32);
static_assert(offsetof(SpaceHeader, data_bytes) == 40 && offsetof(SpaceHeader, part_count) == 48);
static_assert(offsetof(SpaceHeader, records_per_part) == 52 && offsetof(SpaceHeader, pins_per_part) == 56);
static_assert(offsetof(SpaceHeader, mode) == 60 && offsetof(SpaceHeader, features) == 64);
static_assert(offsetof(SpaceHeader, record_bytes) == 68 && offsetof(SpaceHeader, lease_epoch) == 72);
static_assert(offsetof(SpaceHeader, created_unix_s) == 80);
static_assert(offsetof(SpaceHeader, seats_offset) == 88 && offsetof(SpaceHeader, seat_count) == 96);
static_assert(offsetof(SpaceHeader, chunk_count) == 100 && offsetof(SpaceHeader, chunk_bytes) == 104);
static_assert(offsetof(SpaceHeader, data_offset) == 112 && offsetof(SpaceHeader, uses_per_holder) == 120);
static_assert(sizeof(SpaceOwnership) == 64 && space_ownership_offset == sizeof(SpaceHeader));
static_assert(std::is_trivially_copyable_v<PartOwner> && sizeof(PartOwner) == 64);
static_assert(offsetof(PartOwner, host) == 8 && offsetof(PartOwner, state) == 16);
static_assert(offsetof(PartOwner, pins_used) == 24 && offsetof(PartOwner, uses) == 32);
static_assert(std::is_trivially_copyable_v<TensorSlots> && sizeof(TensorSlots) == 64);
static_assert(offsetof(TensorSlots, incarnation) == 8 && offsetof(TensorSlots, name_hash) == 16);
static_assert(offsetof(TensorSlots, owner_epoch) == 24 && offsetof(TensorSlots, data_checksums) == 32);
static_assert(std::is_trivially_copyable_v<TensorShape> && sizeof(TensorShape) == 192);
static_assert(offsetof(TensorShape, extent_bytes) == 8 && offsetof(TensorShape, data_offset) == 16);
static_assert(offsetof(TensorShape, data_bytes) == 24 && offsetof(TensorShape, slot_stride_bytes) == 32);
static_assert(offsetof(TensorShape, slot_count) == 40 && offsetof(TensorShape, name_bytes) == 44);
static_assert(offsetof(TensorShape, dtype) == 48 && offsetof(TensorShape, flags) == 51);
static_assert(offsetof(TensorShape, checksum) == 52 && offsetof(TensorShape, shape) == 64);
static_assert(offsetof(TensorShape, strides) == 128);
static_assert(sizeof(SpaceRecord) == 256 && offsetof(SpaceRecord, shape) == 64);

}  // namespace terrace::layout
