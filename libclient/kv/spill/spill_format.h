// SPDX-License-Identifier: Apache-2.0
// Numbers of a spill folder: made of options, and checked when they come from a file. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/layout/kv_spill.h"
#include "libclient/kv/block.h"
#include "terrace/kv_spill.h"

namespace terrace::kv {

struct SpillGeometry {
  uint64_t folder_id[2] = {};
  uint64_t segment_bytes = 0;
  uint64_t segments = 0;
  uint64_t buckets = 0;
  uint64_t budget_bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t max_block_bytes = 0;

  uint64_t data_bytes() const { return segment_bytes * segments; }
  uint64_t map_bytes() const {
    return (layout::spill_segments_offset + segments * 8 + layout::spill_page_bytes - 1) /
           layout::spill_page_bytes * layout::spill_page_bytes;
  }
  uint64_t index_bytes() const {
    return layout::spill_page_bytes + (buckets * layout::spill_bucket_bytes + layout::spill_page_bytes - 1) /
                                          layout::spill_page_bytes * layout::spill_page_bytes;
  }
  uint64_t records() const { return buckets * layout::spill_bucket_records; }
};

// Errors    invalid_argument  the options contradict each other, or the budget is too small
Result<SpillGeometry> spill_geometry(const KvSpillOptions& options);
layout::SpillHeader spill_header(const SpillGeometry& geometry);
// Of the first bytes of a map whose file has `file_bytes`. `name` is for the error's text.
// Errors    corrupt, version_mismatch
Result<SpillGeometry> check_spill_header(const layout::SpillHeader& header, uint64_t file_bytes,
                                         const std::string& name);
layout::SpillIndexHeader spill_index_header(const SpillGeometry& geometry, uint32_t slot);

// A record that was found: a private copy of numbers that were checked.
struct SpillBlock {
  uint32_t slot = 0;
  uint64_t record = 0;
  uint64_t word = 0;
  BlockKey key;
  uint64_t offset = 0;       // of the frame in the data
  uint64_t frame_bytes = 0;  // a multiple of 4096
  uint64_t bytes = 0;
  uint64_t hash = 0;
  uint64_t parent = 0;
  uint32_t name_space = 0;
  uint32_t expires_unix_s = 0;

  uint64_t name_offset() const;  // in the frame
  bool is_expired(uint64_t now_unix_s) const { return expires_unix_s != 0 && expires_unix_s <= now_unix_s; }
};

// A live record's copy as a block; nothing when its numbers contradict themselves or the geometry.
std::optional<SpillBlock> spill_block_of(const layout::SpillRecord& copy, const SpillGeometry& geometry);
// Under a live word of `version`; its checksum is set.
layout::SpillRecord spill_record_of(const SpillBlock& block, uint64_t version);

// `extent_bytes`: of data and names, as kv::extent_bytes() says.
uint64_t frame_bytes(uint64_t extent_bytes);
// Of data and names; their length follows from the names. Nothing: there are no names that make sense.
std::optional<uint64_t> frame_hash(const SpillBlock& block, std::span<const std::byte> frame);
// Whether the frame is that block's and has those names.
enum class FrameCheck : uint8_t { right, wrong, other_names };
FrameCheck check_frame(const SpillBlock& block, std::span<const std::byte> frame, std::string_view name_space,
                       std::string_view key);

}  // namespace terrace::kv
