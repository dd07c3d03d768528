// SPDX-License-Identifier: Apache-2.0
// The places of a space's pieces in this process, and checks of numbers read from it. All is computed once,
// from a checked copy of the header; later stores of other holders do not change it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/result.h"
#include "core/layout/kv_space.h"
#include "core/layout/tensor_space.h"
#include "terrace/tensor.h"

namespace terrace::coherence {

struct Geometry {
  std::byte* base = nullptr;
  uint64_t total_bytes = 0;
  uint64_t parts_offset = 0;
  uint64_t part_bytes = 0;
  uint64_t data_offset = 0;
  uint64_t data_bytes = 0;  // of all chunks
  uint64_t chunk_bytes = 0;
  uint32_t chunks = 0;
  uint32_t parts = 0;
  uint32_t records = 0;  // of a part
  uint32_t pins = 0;     // of a part, and of a seat
  uint32_t uses = 0;     // words of their rings
  uint32_t record_bytes = sizeof(layout::SpaceRecord);
  uint32_t features = 0;
  layout::SpaceMode mode = layout::SpaceMode::coherent;
  uint64_t lease_epoch = 0;
  uint64_t seats_offset = 0;
  uint32_t seats = 0;

  // Who may have pins: holder i has part i, or seat i - parts.
  uint32_t holders() const { return parts + seats; }
  bool says_ownership() const { return (features & layout::space_feature_holders) != 0; }
  bool checksums() const { return (features & layout::space_feature_checksums) != 0; }
  std::byte* part_at(uint32_t part) const { return base + parts_offset + part * part_bytes; }
  layout::SpaceOwnership* ownership() const {
    return reinterpret_cast<layout::SpaceOwnership*>(base + layout::space_ownership_offset);
  }
  layout::PartOwner* owner(uint32_t holder) const {
    return reinterpret_cast<layout::PartOwner*>(
        holder < parts ? part_at(holder) : base + seats_offset + (holder - parts) * pins_end());
  }
  uint64_t* pin(uint32_t holder, uint32_t index) const {
    return reinterpret_cast<uint64_t*>(owner(holder) + 1) + index;
  }
  // Where a holder says which blocks of others it used.
  uint64_t* use(uint32_t holder, uint32_t index) const { return pin(holder, 0) + pins + index; }
  // Of a part, about one chunk: a layout::ChunkClaim.
  uint64_t* claim(uint32_t part, uint32_t chunk) const {
    return reinterpret_cast<uint64_t*>(part_at(part) + pins_end()) + chunk;
  }
  layout::SpaceRecord* record(uint32_t part, uint32_t index) const {
    return reinterpret_cast<layout::SpaceRecord*>(part_at(part) + records_offset()) + index;
  }
  layout::BlockRecord* block(uint32_t part, uint32_t index) const {
    return reinterpret_cast<layout::BlockRecord*>(part_at(part) + records_offset()) + index;
  }
  std::byte* data() const { return base + data_offset; }
  uint64_t chunk_begin(uint32_t chunk) const { return chunk * chunk_bytes; }  // from the data's first byte
  uint64_t chunk_end(uint32_t chunk) const { return std::min(data_bytes, (chunk + uint64_t{1}) * chunk_bytes); }

  // From a part's first byte to the end of its pins and uses, which is the size of a seat; of its
  // claims; of its records.
  uint64_t pins_end() const { return sizeof(layout::PartOwner) + (uint64_t{pins} + uses) * sizeof(uint64_t); }
  uint64_t records_offset() const {
    constexpr uint64_t line = layout::cache_line_bytes;
    return pins_end() + (chunks * sizeof(uint64_t) + line - 1) / line * line;
  }
  uint64_t records_end() const { return records_offset() + uint64_t{records} * record_bytes; }
  // The record where the probing for a name begins.
  uint32_t home(uint64_t name_hash) const {
    return static_cast<uint32_t>(name_hash ^ name_hash >> 32) & (records - 1);
  }
};

uint64_t name_hash(std::string_view name);

enum class SpaceContent : uint8_t {
  tensors,
  blocks,  // all chunks have their full length
};

struct GeometryOptions {
  uint32_t parts = 0;
  uint32_t records = 0;  // a part; rounded up to a power of two
  uint32_t pins = 0;     // a part and a seat; rounded up to a multiple of 8
  uint32_t seats = 0;
  uint32_t features = 0;
  layout::SpaceMode mode = layout::SpaceMode::coherent;
  uint64_t lease_epoch = 0;
  uint64_t chunk_bytes = 0;  // a multiple of 64; 0: pages, so that there are at most space_chunks_max
  SpaceContent content = SpaceContent::tensors;
  uint32_t uses = 0;  // a holder, of blocks; rounded up to a multiple of 8
};

// Divides `memory` and gives the header's bytes. Nothing is written.
// Errors    invalid_argument  numbers out of bounds, memory not aligned to 64 bytes
//           capacity_exhausted  the memory has no room for these records and a page of data
Result<layout::SpaceHeader> plan_header(std::span<const std::byte> memory, const GeometryOptions& options);

// Errors    not_found         no space here
//           version_mismatch  another format version, unknown features, or the other content
//           corrupt           it contradicts itself or leaves the memory
Result<Geometry> check_header(const layout::SpaceHeader& copy, std::span<std::byte> memory,
                              SpaceContent content = SpaceContent::tensors);

// Whether a record's copied description can be true: all of it lies in the data, dtype and shape make
// data_bytes. The checksum is apart: shape_checksum().
bool possible(const layout::TensorShape& shape, const Geometry& geometry);
uint32_t shape_checksum(layout::TensorShape shape, uint64_t incarnation, uint64_t hash, std::string_view name);

// The description of a tensor that is to be created, at an extent offset of 0.
// Errors    invalid_argument, limit_exceeded  name, dtype or shape
Result<layout::TensorShape> plan_shape(std::string_view name, DType dtype, const Shape& shape, TensorHint hint,
                                       uint8_t flags, uint32_t slot_count);

}  // namespace terrace::coherence
