// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/spill/spill_format.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/crc32c.h"

namespace terrace::kv {

using layout::SpillHeader;
using layout::SpillRecord;

namespace {

constexpr uint64_t page = layout::spill_page_bytes;
constexpr uint64_t spill_line = 64;
constexpr uint64_t place_mask = (uint64_t{1} << layout::spill_place_bits) - 1;
constexpr uint64_t budget_bytes_least = 1 << 20;
constexpr uint64_t budget_bytes_most = 64ull << 40;
constexpr uint64_t segment_bytes_least = 64 << 10;
constexpr uint64_t segment_bytes_most = 1ull << 30;

uint64_t up_to(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

Error refuse_options(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument,
               .where = "KvSpill::open",
               .detail = "KV spill: " + std::move(detail)};
}

uint32_t record_checksum(const SpillRecord& record) {
  const uint64_t words[] = {record.word & layout::spill_word_version_mask,
                            record.key[0],
                            record.key[1],
                            record.place,
                            record.hash,
                            record.parent,
                            uint64_t{record.data_bytes} << 32 | record.name_space,
                            record.expires_unix_s};
  return crc32c(std::as_bytes(std::span(words)));
}

uint64_t longest_frame(uint64_t max_block_bytes) {
  return frame_bytes(up_to(max_block_bytes, spill_line) + up_to(name_bytes_max, spill_line));
}

template <typename Header>
uint32_t header_checksum(const Header& header) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, checksum)));
}

}  // namespace

Result<SpillGeometry> spill_geometry(const KvSpillOptions& options) {
  SpillGeometry geometry{.budget_bytes = options.bytes, .block_bytes = options.block_bytes};
  if (options.bytes < budget_bytes_least || options.bytes > budget_bytes_most)
    return refuse_options("a folder has 1 MiB to 64 TiB, not " + std::to_string(options.bytes) + " bytes");
  if (options.block_bytes < page || options.block_bytes > kv_block_bytes_limit)
    return refuse_options("block_bytes is 4 KiB to 64 MiB, not " + std::to_string(options.block_bytes));
  geometry.max_block_bytes =
      options.max_block_bytes != 0
          ? options.max_block_bytes
          : std::max(page, std::min<uint64_t>(16 << 20, options.bytes / 32 / page * page));
  if (geometry.max_block_bytes > kv_block_bytes_limit)
    return refuse_options("max_block_bytes is at most 64 MiB, not " + std::to_string(geometry.max_block_bytes));
  const uint64_t longest = longest_frame(geometry.max_block_bytes);
  geometry.segment_bytes =
      std::max({longest, segment_bytes_least, std::min(segment_bytes_most, options.bytes / 256 / page * page)});
  geometry.segments = options.bytes / geometry.segment_bytes;
  if (geometry.segments < 4)
    return refuse_options("blocks of " + std::to_string(geometry.max_block_bytes) + " bytes need a folder of " +
                          std::to_string(4 * geometry.segment_bytes) + " at least, not " +
                          std::to_string(options.bytes));
  // Each index has room for the blocks of the whole folder, half full on average.
  const uint64_t blocks = std::max<uint64_t>(64, geometry.data_bytes() / options.block_bytes);
  geometry.buckets = std::min(std::bit_ceil(up_to(blocks, spill_line) / (layout::spill_bucket_records / 2)),
                              layout::spill_buckets_max);
  return geometry;
}

SpillHeader spill_header(const SpillGeometry& geometry) {
  SpillHeader header{};
  header.magic = layout::spill_magic;
  header.version = layout::spill_version;
  header.folder_id[0] = geometry.folder_id[0];
  header.folder_id[1] = geometry.folder_id[1];
  header.segment_bytes = geometry.segment_bytes;
  header.segments = geometry.segments;
  header.buckets = geometry.buckets;
  header.budget_bytes = geometry.budget_bytes;
  header.block_bytes = geometry.block_bytes;
  header.max_block_bytes = geometry.max_block_bytes;
  header.checksum = header_checksum(header);
  return header;
}

Result<SpillGeometry> check_spill_header(const SpillHeader& header, uint64_t file_bytes,
                                         const std::string& name) {
  const auto refuse = [&](ErrorCode code, const std::string& what) {
    return Error{
        .code = code,
        .where = "KvSpill::open",
        .detail = name + " " + what + "; once no process uses the folder, delete its files: they are a cache"};
  };
  if (header.magic != layout::spill_magic) return refuse(ErrorCode::corrupt, "is no map of a KV spill");
  if (header.version != layout::spill_version)
    return refuse(ErrorCode::version_mismatch, "has version " + std::to_string(header.version) +
                                                   ", this program knows " +
                                                   std::to_string(layout::spill_version));
  if (header.checksum != header_checksum(header))
    return refuse(ErrorCode::corrupt, "does not have its checksum");
  if (header.features != 0)
    return refuse(ErrorCode::version_mismatch, "has features that this program does not know");
  const SpillGeometry geometry{.folder_id = {header.folder_id[0], header.folder_id[1]},
                               .segment_bytes = header.segment_bytes,
                               .segments = header.segments,
                               .buckets = header.buckets,
                               .budget_bytes = header.budget_bytes,
                               .block_bytes = header.block_bytes,
                               .max_block_bytes = header.max_block_bytes};
  if (geometry.segments == 0 || geometry.segments > layout::spill_segments_max || geometry.segment_bytes == 0 ||
      geometry.segment_bytes % page != 0 || geometry.segment_bytes > 2 * segment_bytes_most ||
      geometry.buckets > layout::spill_buckets_max || !std::has_single_bit(geometry.buckets) ||
      geometry.max_block_bytes > kv_block_bytes_limit ||
      longest_frame(geometry.max_block_bytes) > geometry.segment_bytes)
    return refuse(ErrorCode::corrupt, "has numbers that contradict each other");
  if (file_bytes < geometry.map_bytes()) return refuse(ErrorCode::corrupt, "was cut off");
  return geometry;
}

layout::SpillIndexHeader spill_index_header(const SpillGeometry& geometry, uint32_t slot) {
  layout::SpillIndexHeader header{};
  header.magic = layout::spill_index_magic;
  header.folder_id[0] = geometry.folder_id[0];
  header.folder_id[1] = geometry.folder_id[1];
  header.buckets = geometry.buckets;
  header.slot = slot;
  header.checksum = header_checksum(header);
  return header;
}

uint64_t SpillBlock::name_offset() const {
  return up_to(bytes, spill_line);
}

std::optional<SpillBlock> spill_block_of(const SpillRecord& copy, const SpillGeometry& geometry) {
  if (copy.checksum != record_checksum(copy) || copy.key[0] == 0) return std::nullopt;
  const SpillBlock block{.word = copy.word,
                         .key = {copy.key[0], copy.key[1]},
                         .offset = (copy.place & place_mask) * page,
                         .frame_bytes = (copy.place >> layout::spill_place_bits) * page,
                         .bytes = copy.data_bytes,
                         .hash = copy.hash,
                         .parent = copy.parent,
                         .name_space = copy.name_space,
                         .expires_unix_s = copy.expires_unix_s};
  // The frame lies in one segment, and has room for the data and the shortest name, and not much more.
  const uint64_t least = block.name_offset() + spill_line;
  if (block.frame_bytes < least || block.frame_bytes > least + name_bytes_max + spill_line + page)
    return std::nullopt;
  if (block.offset >= geometry.data_bytes() || block.bytes > geometry.max_block_bytes) return std::nullopt;
  if (block.frame_bytes > geometry.segment_bytes - block.offset % geometry.segment_bytes) return std::nullopt;
  return block;
}

SpillRecord spill_record_of(const SpillBlock& block, uint64_t version) {
  SpillRecord record{};
  record.word = layout::spill_word_live | version;
  record.key[0] = block.key.low;
  record.key[1] = block.key.high;
  record.place = block.offset / page | (block.frame_bytes / page) << layout::spill_place_bits;
  record.hash = block.hash;
  record.parent = block.parent;
  record.data_bytes = static_cast<uint32_t>(block.bytes);
  record.name_space = block.name_space;
  record.expires_unix_s = block.expires_unix_s;
  record.checksum = record_checksum(record);
  return record;
}

uint64_t frame_bytes(uint64_t extent_bytes) {
  return up_to(extent_bytes, page);
}

std::optional<uint64_t> frame_hash(const SpillBlock& block, std::span<const std::byte> frame) {
  if (frame.size() < block.name_offset()) return std::nullopt;
  const std::optional<Names> names = names_of(frame.subspan(block.name_offset()));
  if (!names) return std::nullopt;
  const uint64_t hashed = extent_bytes(block.bytes, names->name_space, names->key);
  if (hashed > frame.size()) return std::nullopt;
  return XXH3_64bits_withSeed(frame.data(), hashed, block.key.low);
}

FrameCheck check_frame(const SpillBlock& block, std::span<const std::byte> frame, std::string_view name_space,
                       std::string_view key) {
  const std::optional<uint64_t> hash = frame_hash(block, frame);
  if (!hash || *hash != block.hash) return FrameCheck::wrong;
  return has_names(frame.subspan(block.name_offset()), name_space, key) ? FrameCheck::right
                                                                        : FrameCheck::other_names;
}

}  // namespace terrace::kv
