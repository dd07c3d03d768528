// SPDX-License-Identifier: Apache-2.0
// The bytes of a tensor catalog: named tensors inside one lease, readable by any process that maps it.
//
//   0                header (256 bytes, four cache lines)
//   records_offset   record_count records of 256 bytes
//   names_offset     names, UTF-8, one after the other, not terminated
//   metadata_offset  metadata entries: u32 key bytes, u32 value bytes, key, value
//   data_offset      tensor bytes; 4 KiB aligned, each tensor 64-byte aligned
//   total_bytes      end; the lease may be longer
//
// All offsets count from the header's first byte. Integers are little-endian. There are no pointers. The
// document docs/formats/tensor_catalog.md shows every byte of an example.
//
// Coherence domain  Line 3 of the header and line 0 of each record are hot lines: they change while others
//                   read. All else is written once, between `building` and `published`, and checksummed.
// Threads           header.state is stored with release and loaded with acquire: it pairs a publisher's data
//                   with a reader's. A reader copies, then checks the copy: writers are not trusted.
//
// Invariants
//   C1  state is `published` only if every byte that the checksums cover was written before.
//   C2  no two tensors' slots share a byte, and all lie inside [data_offset, total_bytes).
//   C3  names are unique, non-empty, valid UTF-8 without NUL.
//   C4  the generation grows with each publication in the same memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace terrace::layout {

inline constexpr uint64_t catalog_magic = 0x31474c5443525254ull;  // "TRRCTLG1" in memory order
inline constexpr uint16_t catalog_version_major = 1;              // readers refuse another one
inline constexpr uint16_t catalog_version_minor = 0;              // readers accept any

inline constexpr uint64_t catalog_data_alignment_bytes = 4096;  // the data region: a page, a disk block
inline constexpr uint64_t tensor_alignment_bytes = 64;          // a tensor: a cache line, an AVX-512 register
inline constexpr uint32_t tensor_rank_max = 8;                  // two lines hold shape and strides
inline constexpr uint32_t tensor_name_bytes_max = 1024;         // several times the longest seen in models
inline constexpr uint32_t catalog_records_max = 1u << 20;       // 256 MiB of records; large models have 10^4
inline constexpr uint32_t catalog_metadata_entries_max = 1u << 16;
inline constexpr uint64_t catalog_names_bytes_max = 1ull << 30;
inline constexpr uint64_t catalog_metadata_bytes_max = 100'000'000;  // the safetensors header's own bound
inline constexpr uint32_t tensor_slots_max = 2;                      // the second one is for double-buffering

enum class CatalogState : uint32_t {
  empty = 0,
  building = 1,   // a writer is at work, or died at it: nothing below may be used
  published = 2,  // complete
};

enum class TensorState : uint32_t {
  empty = 0,
  stable = 1,   // readable at the slot that the record names
  writing = 2,  // coherent leases only: a new version is being written to another slot
  retired = 3,  // coherent leases only: the name is free
};

// Bits of features_required: a reader refuses bits that it does not know. None are defined in version 1.
inline constexpr uint32_t catalog_features_required_known = 0;

struct alignas(64) CatalogHeader {
  // line 0
  uint64_t magic;
  uint16_t version_major;
  uint16_t version_minor;
  uint32_t header_bytes;  // 256
  uint64_t total_bytes;
  uint32_t record_bytes;  // 256
  uint32_t record_count;
  uint64_t records_offset;
  uint64_t names_offset;
  uint64_t names_bytes;
  uint64_t data_offset;
  // line 1
  uint64_t data_bytes;
  uint64_t metadata_offset;
  uint64_t metadata_bytes;
  uint32_t metadata_entries;
  uint32_t features_required;
  uint32_t features_optional;
  uint32_t records_checksum;   // crc32c of lines 1 to 3 of every record, in order
  uint32_t names_checksum;     // crc32c of the names
  uint32_t metadata_checksum;  // crc32c of the metadata entries
  uint64_t created_unix_s;     // for people; no decision rests on it
  uint64_t owner_lease_epoch;  // of the lease the writer held; 0 when unknown
  // line 2
  uint64_t generation;
  uint8_t reserved_line2[52];
  uint32_t header_checksum;  // crc32c of bytes 0 to 187 (all of lines 0 to 2 before this field)
  // line 3, hot
  uint32_t state;  // CatalogState
  uint8_t reserved_line3[60];
};

struct alignas(64) TensorRecord {
  // line 0, hot: what the coherence protocol reads and writes
  uint64_t name_hash;          // FNV-1a of the name, 64 bits
  uint32_t id;                 // the record's index
  uint32_t state;              // TensorState
  uint64_t version;            // even: stable; odd: being written. 2 after the first publication
  uint64_t owner_host;         // 0: nobody holds the right to write
  uint64_t owner_lease_epoch;  // the LeaseEpoch under which the owner writes
  uint32_t slot;               // which copy of the data `version` is
  uint32_t data_checksum;      // crc32c of that copy's data_bytes
  uint32_t line_checksum;      // crc32c of bytes 0 to 47 of this line
  uint8_t reserved_line0[12];
  // line 1
  uint64_t data_offset;  // of slot 0; slot s is at data_offset + s * slot_stride_bytes
  uint64_t data_bytes;
  uint64_t slot_stride_bytes;
  uint32_t slot_count;  // 1 or 2
  uint32_t name_bytes;
  uint64_t name_offset;  // from names_offset
  uint8_t dtype;         // terrace::DType
  uint8_t rank;
  uint8_t hint;   // terrace::TensorHint
  uint8_t flags;  // terrace::TensorFlags
  uint8_t reserved_line1[20];
  // line 2: elements a dimension; those at and beyond rank are 0
  uint64_t shape[tensor_rank_max];
  // line 3: elements between neighbours of a dimension
  int64_t strides[tensor_rank_max];
};

inline constexpr uint64_t catalog_header_checked_bytes = 188;
inline constexpr uint64_t tensor_line_checked_bytes = 48;
inline constexpr uint64_t tensor_record_cold_offset = 64;

static_assert(std::is_trivially_copyable_v<CatalogHeader> && std::is_standard_layout_v<CatalogHeader>);
static_assert(sizeof(CatalogHeader) == 256 && alignof(CatalogHeader) == 64);
static_assert(offsetof(CatalogHeader, version_major) == 8);
static_assert(offsetof(CatalogHeader, version_minor) == 10);
static_assert(offsetof(CatalogHeader, header_bytes) == 12);
static_assert(offsetof(CatalogHeader, total_bytes) == 16);
static_assert(offsetof(CatalogHeader, record_bytes) == 24);
static_assert(offsetof(CatalogHeader, record_count) == 28);
static_assert(offsetof(CatalogHeader, records_offset) == 32);
static_assert(offsetof(CatalogHeader, names_offset) == 40);
static_assert(offsetof(CatalogHeader, names_bytes) == 48);
static_assert(offsetof(CatalogHeader, data_offset) == 56);
static_assert(offsetof(CatalogHeader, data_bytes) == 64);
static_assert(offsetof(CatalogHeader, metadata_offset) == 72);
static_assert(offsetof(CatalogHeader, metadata_bytes) == 80);
static_assert(offsetof(CatalogHeader, metadata_entries) == 88);
static_assert(offsetof(CatalogHeader, features_required) == 92);
static_assert(offsetof(CatalogHeader, features_optional) == 96);
static_assert(offsetof(CatalogHeader, records_checksum) == 100);
static_assert(offsetof(CatalogHeader, names_checksum) == 104);
static_assert(offsetof(CatalogHeader, metadata_checksum) == 108);
static_assert(offsetof(CatalogHeader, created_unix_s) == 112);
static_assert(offsetof(CatalogHeader, owner_lease_epoch) == 120);
static_assert(offsetof(CatalogHeader, generation) == 128);
static_assert(offsetof(CatalogHeader, header_checksum) == catalog_header_checked_bytes);
static_assert(offsetof(CatalogHeader, state) == 192);

static_assert(std::is_trivially_copyable_v<TensorRecord> && std::is_standard_layout_v<TensorRecord>);
static_assert(sizeof(TensorRecord) == 256 && alignof(TensorRecord) == 64);
static_assert(offsetof(TensorRecord, id) == 8);
static_assert(offsetof(TensorRecord, state) == 12);
static_assert(offsetof(TensorRecord, version) == 16);
static_assert(offsetof(TensorRecord, owner_host) == 24);
static_assert(offsetof(TensorRecord, owner_lease_epoch) == 32);
static_assert(offsetof(TensorRecord, slot) == 40);
static_assert(offsetof(TensorRecord, data_checksum) == 44);
static_assert(offsetof(TensorRecord, line_checksum) == tensor_line_checked_bytes);
static_assert(offsetof(TensorRecord, data_offset) == tensor_record_cold_offset);
static_assert(offsetof(TensorRecord, data_bytes) == 72);
static_assert(offsetof(TensorRecord, slot_stride_bytes) == 80);
static_assert(offsetof(TensorRecord, slot_count) == 88);
static_assert(offsetof(TensorRecord, name_bytes) == 92);
static_assert(offsetof(TensorRecord, name_offset) == 96);
static_assert(offsetof(TensorRecord, dtype) == 104);
static_assert(offsetof(TensorRecord, flags) == 107);
static_assert(offsetof(TensorRecord, shape) == 128);
static_assert(offsetof(TensorRecord, strides) == 192);

}  // namespace terrace::layout
