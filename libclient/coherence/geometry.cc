// SPDX-License-Identifier: Apache-2.0
#include "libclient/coherence/geometry.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "core/base/crc32c.h"
#include "libclient/tensor/catalog_bytes.h"

namespace terrace::coherence {

using layout::SpaceHeader;
using layout::SpaceMode;
using layout::TensorShape;

namespace {

constexpr uint64_t page = layout::space_part_alignment_bytes;
constexpr uint64_t line = layout::cache_line_bytes;
constexpr uint64_t seats_from = layout::space_ownership_offset + sizeof(layout::SpaceOwnership);

constexpr uint8_t space_flags = TensorFlags::all | TensorFlags::peers_may_remove;

uint64_t round_up(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

Error refuse(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "TensorSpace", .detail = "tensor space: " + std::move(detail)};
}

Error corrupt(const char* what) {
  return refuse(ErrorCode::corrupt, std::string(what) + "; format it again");
}

uint32_t record_bytes_of(SpaceContent content) {
  return content == SpaceContent::blocks ? sizeof(layout::BlockRecord) : sizeof(layout::SpaceRecord);
}

uint32_t header_checksum(const SpaceHeader& header) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(layout::space_header_checked_bytes));
}

// Whether [offset, offset + bytes) lies in [begin, end).
bool inside(uint64_t offset, uint64_t bytes, uint64_t begin, uint64_t end) {
  return begin <= end && offset >= begin && offset <= end && bytes <= end - offset;
}

// Whether ownership line and seats, where there are any, lie between the header and the parts.
bool seats_fit(const SpaceHeader& header, const Geometry& geometry) {
  if (!geometry.says_ownership()) return true;
  return geometry.seats <= layout::space_holders_max - geometry.parts && geometry.seats_offset % line == 0 &&
         inside(geometry.seats_offset, geometry.seats * geometry.pins_end(), seats_from, header.parts_offset);
}

// Whether the data lies behind the parts and is divided into just these chunks.
bool data_fits(const SpaceHeader& header) {
  const uint64_t chunk = header.chunk_bytes;
  return header.data_offset % page == 0 && header.data_bytes % page == 0 && header.data_bytes != 0 &&
         inside(header.data_offset, header.data_bytes, 0, header.total_bytes) && chunk != 0 &&
         chunk % line == 0 && chunk <= header.data_bytes &&
         header.chunk_count == (header.data_bytes - 1) / chunk + 1;
}

// Bytes that strides reach; nothing when they are negative or beyond 2^64.
std::optional<uint64_t> reach_bits(const TensorShape& shape, uint32_t bits) {
  uint64_t last = 0;
  for (uint32_t index = 0; index < shape.rank; ++index) {
    if (shape.shape[index] == 0) return 0;
    uint64_t step = 0;
    if (shape.strides[index] < 0 ||
        __builtin_mul_overflow(shape.shape[index] - 1, static_cast<uint64_t>(shape.strides[index]), &step) ||
        __builtin_add_overflow(last, step, &last))
      return std::nullopt;
  }
  uint64_t reach = 0;
  if (__builtin_add_overflow(last, uint64_t{1}, &last) || __builtin_mul_overflow(last, uint64_t{bits}, &reach))
    return std::nullopt;
  return reach;
}

bool describes_its_bytes(const TensorShape& shape) {
  const std::optional<DType> dtype = dtype_from_number(shape.dtype);
  if (!dtype || !hint_from_number(shape.hint) || (shape.flags & ~space_flags) != 0) return false;
  if (shape.rank > layout::space_dimensions_max) return false;
  for (uint32_t index = shape.rank; index < layout::space_dimensions_max; ++index)
    if (shape.shape[index] != 0 || shape.strides[index] != 0) return false;
  const Result<Shape> dimensions = Shape::from(std::span(shape.shape).first(shape.rank));
  if (!dimensions.ok()) return false;
  const Result<uint64_t> bytes = tensor_bytes(*dtype, *dimensions);
  const std::optional<uint64_t> reach = reach_bits(shape, dtype_bits(*dtype));
  return bytes.ok() && *bytes == shape.data_bytes && reach &&
         *reach / 8 + (*reach % 8 != 0) <= shape.data_bytes;
}

}  // namespace

uint64_t name_hash(std::string_view name) {
  return catalog_bytes::name_hash(name);
}

Result<SpaceHeader> plan_header(std::span<const std::byte> memory, const GeometryOptions& options) {
  const uint64_t bytes = memory.size();
  if (options.parts == 0 || options.parts > layout::space_parts_max)
    return refuse(ErrorCode::invalid_argument, "parts must be 1 to " + std::to_string(layout::space_parts_max));
  if (options.records == 0 || options.records > layout::space_records_max)
    return refuse(ErrorCode::invalid_argument,
                  "records a part must be 1 to " + std::to_string(layout::space_records_max));
  if (options.pins > layout::space_pins_max)
    return refuse(ErrorCode::invalid_argument,
                  "pins a part must be at most " + std::to_string(layout::space_pins_max));
  if (options.seats > layout::space_holders_max - options.parts)
    return refuse(ErrorCode::invalid_argument,
                  std::to_string(options.seats) + " seats beside " + std::to_string(options.parts) +
                      " parts: both together are at most " + std::to_string(layout::space_holders_max));
  if (reinterpret_cast<uintptr_t>(memory.data()) % line != 0)
    return refuse(ErrorCode::invalid_argument, "the memory must begin at a multiple of 64");
  SpaceHeader header{};
  header.magic = layout::space_magic;
  header.version_major = layout::space_version_major;
  header.version_minor = layout::space_version_minor;
  header.header_bytes = sizeof(SpaceHeader);
  const bool blocks = options.content == SpaceContent::blocks;
  header.record_bytes = record_bytes_of(options.content);
  header.uses_per_holder = blocks ? static_cast<uint32_t>(round_up(options.uses, 8)) : 0;
  header.part_count = options.parts;
  header.records_per_part = std::bit_ceil(options.records);
  header.pins_per_part = static_cast<uint32_t>(round_up(std::max(options.pins, 1u), 8));
  header.mode = static_cast<uint32_t>(options.mode);
  header.features =
      options.features | layout::space_feature_holders | (blocks ? layout::space_feature_blocks : 0);
  header.lease_epoch = options.lease_epoch;
  Geometry sizes{.records = header.records_per_part,
                 .pins = header.pins_per_part,
                 .uses = header.uses_per_holder,
                 .record_bytes = header.record_bytes};
  header.seats_offset = seats_from;
  header.seat_count = options.seats;
  header.parts_offset = round_up(header.seats_offset + options.seats * sizes.pins_end(), page);
  const uint64_t before = header.parts_offset;
  // Claims for as many chunks as there would be if parts took nothing.
  const uint64_t left = bytes < before ? 0 : (bytes - before) / page * page;
  header.chunk_bytes = options.chunk_bytes != 0
                           ? options.chunk_bytes
                           : std::max(page, round_up(left / layout::space_chunks_max, page));
  sizes.chunks =
      static_cast<uint32_t>(std::clamp<uint64_t>(left / header.chunk_bytes + 1, 1, layout::space_chunks_max));
  header.part_bytes = round_up(sizes.records_end(), page);
  const uint64_t needed = options.parts * header.part_bytes + (blocks ? header.chunk_bytes : page);
  if (left < needed)
    return refuse(ErrorCode::capacity_exhausted,
                  std::to_string(bytes) + " bytes are too few: " + std::to_string(options.parts) +
                      " parts of " + std::to_string(header.records_per_part) + " records need at least " +
                      std::to_string(before + needed));
  header.data_offset = before + options.parts * header.part_bytes;
  header.data_bytes = std::min(left - options.parts * header.part_bytes, sizes.chunks * header.chunk_bytes);
  header.chunk_bytes = std::min(header.chunk_bytes, header.data_bytes);
  if (blocks) header.data_bytes -= header.data_bytes % header.chunk_bytes;
  header.chunk_count = static_cast<uint32_t>((header.data_bytes + header.chunk_bytes - 1) / header.chunk_bytes);
  header.total_bytes = header.data_offset + header.data_bytes;
  header.checksum = header_checksum(header);
  return header;
}

Result<Geometry> check_header(const SpaceHeader& header, std::span<std::byte> memory, SpaceContent content) {
  if (header.magic != layout::space_magic) return refuse(ErrorCode::not_found, "there is none in this memory");
  if (header.version_major != layout::space_version_major)
    return refuse(ErrorCode::version_mismatch,
                  "format version " + std::to_string(header.version_major) + ", this program reads version " +
                      std::to_string(layout::space_version_major) + ": format the space anew");
  if (header.checksum != header_checksum(header)) return corrupt("the header does not have its checksum");
  if ((header.features & ~layout::space_features_known) != 0)
    return refuse(ErrorCode::version_mismatch, "it needs features unknown to this program");
  const bool blocks = (header.features & layout::space_feature_blocks) != 0;
  if (blocks != (content == SpaceContent::blocks))
    return refuse(
        ErrorCode::version_mismatch,
        blocks ? "this memory has a KV space (terrace kv), no tensor space; format it anew to change that"
               : "this memory has a tensor space, no KV space; format it anew to change that");
  if (header.header_bytes != sizeof(SpaceHeader) || header.record_bytes != record_bytes_of(content) ||
      (header.mode != static_cast<uint32_t>(SpaceMode::coherent) &&
       header.mode != static_cast<uint32_t>(SpaceMode::noncoherent)))
    return corrupt("header size, record size or mode is not one of version 2");
  if (header.part_count == 0 || header.part_count > layout::space_parts_max || header.records_per_part == 0 ||
      header.records_per_part > layout::space_records_max || !std::has_single_bit(header.records_per_part) ||
      header.pins_per_part == 0 || header.pins_per_part > layout::space_pins_max ||
      header.pins_per_part % 8 != 0 || header.chunk_count == 0 || header.chunk_count > layout::space_chunks_max)
    return corrupt("more parts, records, pins or chunks than the format allows");
  if (header.uses_per_holder > (blocks ? layout::space_uses_max : 0) || header.uses_per_holder % 8 != 0 ||
      (blocks && header.data_bytes % std::max<uint64_t>(header.chunk_bytes, 1) != 0))
    return corrupt("its uses or chunks are not what blocks have");
  Geometry geometry{.base = memory.data(),
                    .total_bytes = header.total_bytes,
                    .parts_offset = header.parts_offset,
                    .part_bytes = header.part_bytes,
                    .data_offset = header.data_offset,
                    .data_bytes = header.data_bytes,
                    .chunk_bytes = header.chunk_bytes,
                    .chunks = header.chunk_count,
                    .parts = header.part_count,
                    .records = header.records_per_part,
                    .pins = header.pins_per_part,
                    .uses = header.uses_per_holder,
                    .record_bytes = header.record_bytes,
                    .features = header.features,
                    .mode = static_cast<SpaceMode>(header.mode),
                    .lease_epoch = header.lease_epoch};
  if (geometry.says_ownership()) {
    geometry.seats_offset = header.seats_offset;
    geometry.seats = header.seat_count;
  }
  const uint64_t total = header.total_bytes;
  if (!data_fits(header))
    return corrupt("its data overlaps its parts, leaves its memory, or its chunks do not make it");
  if (total > memory.size() || header.parts_offset % page != 0 || header.part_bytes % page != 0 ||
      header.part_bytes == 0 || header.parts_offset < sizeof(SpaceHeader) ||
      header.parts_offset > header.data_offset || !seats_fit(header, geometry) ||
      header.part_bytes > (header.data_offset - header.parts_offset) / header.part_count ||
      header.part_bytes < geometry.records_end())
    return corrupt("its parts overlap or leave its memory");
  return geometry;
}

bool possible(const TensorShape& shape, const Geometry& geometry) {
  if (shape.name_bytes == 0 || shape.name_bytes > layout::space_name_bytes_max) return false;
  if (shape.slot_count == 0 || shape.slot_count > 2) return false;
  if (!inside(shape.extent_offset, shape.extent_bytes, 0, geometry.data_bytes)) return false;
  const uint64_t end = shape.extent_offset + shape.extent_bytes;
  if (shape.extent_offset % line != 0 || shape.extent_bytes % line != 0 || shape.data_offset % line != 0 ||
      shape.slot_stride_bytes % line != 0 || shape.slot_stride_bytes < shape.data_bytes)
    return false;
  if (shape.slot_stride_bytes > geometry.data_bytes) return false;  // so that twice it does not overflow
  return inside(shape.extent_offset, shape.name_bytes, shape.extent_offset, shape.data_offset) &&
         inside(shape.data_offset, shape.slot_count * shape.slot_stride_bytes, shape.extent_offset, end) &&
         describes_its_bytes(shape);
}

uint32_t shape_checksum(TensorShape shape, uint64_t incarnation, uint64_t hash, std::string_view name) {
  shape.checksum = 0;
  const uint64_t words[] = {incarnation, hash};
  uint32_t sum = crc32c(std::as_bytes(std::span(words)));
  sum = crc32c(std::as_bytes(std::span(&shape, 1)), sum);
  return crc32c(std::as_bytes(std::span(name.data(), name.size())), sum);
}

Result<TensorShape> plan_shape(std::string_view name, DType dtype, const Shape& dimensions, TensorHint hint,
                               uint8_t flags, uint32_t slot_count) {
  const std::string who = "tensor " + quoted_name(name);
  if (name.empty() || name.size() > layout::space_name_bytes_max || !is_utf8(name) ||
      name.find('\0') != std::string_view::npos)
    return refuse(ErrorCode::invalid_argument, who + ": a name is 1 to 1024 bytes of UTF-8 without NUL");
  if ((flags & ~space_flags) != 0 || slot_count == 0 || slot_count > 2)
    return refuse(ErrorCode::invalid_argument, who + ": unknown flags, or neither one slot nor two");
  TERRACE_ASSIGN_OR_RETURN(const uint64_t bytes, tensor_bytes(dtype, dimensions));
  if (bytes > uint64_t{1} << 56)
    return refuse(ErrorCode::limit_exceeded, who + ": " + std::to_string(bytes) + " bytes fit in no part");
  TensorShape shape{};
  shape.data_offset = round_up(name.size(), line);
  shape.data_bytes = bytes;
  shape.slot_stride_bytes = round_up(bytes, line);
  shape.slot_count = slot_count;
  shape.extent_bytes = shape.data_offset + slot_count * shape.slot_stride_bytes;
  shape.name_bytes = static_cast<uint32_t>(name.size());
  shape.dtype = static_cast<uint8_t>(dtype);
  shape.rank = static_cast<uint8_t>(dimensions.rank());
  shape.hint = static_cast<uint8_t>(hint);
  shape.flags = flags;
  std::copy(dimensions.dimensions().begin(), dimensions.dimensions().end(), shape.shape);
  const Strides strides = row_major_strides(dimensions);
  std::copy(strides.begin(), strides.end(), shape.strides);
  return shape;
}

}  // namespace terrace::coherence
