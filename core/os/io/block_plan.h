// SPDX-License-Identifier: Apache-2.0
// Cuts one bulk transfer between a file range and a list of memory segments into chunks that the kernel can
// do in one call each. Pure: no file is touched here, so that the cutting is tested without one.
//
// Place     core/os/io/block_io.cc drives it.
// Direct    With O_DIRECT, file offset, length and address must be multiples of the alignment. Where memory
//           and file are congruent a chunk is `straight` (the device writes into the caller's memory); where
//           they are not it is `staged` through an aligned buffer; what a direct write cannot express (an
//           unaligned head or tail) goes through the page cache as `buffered`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace terrace::block_plan {

struct Segment {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
};

enum class Kind : uint8_t { straight, staged, buffered };

// `offset`, `bytes`: what the caller asked for. `io_offset`, `io_bytes`: what the kernel is asked for, wider
// than that only for staged reads. `segment`, `segment_offset`: where the caller's bytes begin.
struct Chunk {
  Kind kind = Kind::buffered;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t io_offset = 0;
  uint64_t io_bytes = 0;
  size_t segment = 0;
  uint64_t segment_offset = 0;
};

struct Geometry {
  uint64_t block_bytes = 0;      // the largest chunk; a multiple of alignment_bytes
  uint64_t alignment_bytes = 0;  // 0: no O_DIRECT, all chunks are buffered
  bool write = false;
};

class Planner {
 public:
  // Neighbouring segments that touch in memory are merged, empty ones dropped.
  Planner(uint64_t file_offset, const std::vector<Segment>& segments, Geometry geometry)
      : geometry_(geometry), position_(file_offset) {
    for (const Segment& segment : segments) {
      if (segment.bytes == 0) continue;
      total_bytes_ += segment.bytes;
      if (!segments_.empty() && segments_.back().data + segments_.back().bytes == segment.data) {
        segments_.back().bytes += segment.bytes;
      } else {
        segments_.push_back(segment);
      }
    }
    end_ = position_ + total_bytes_;
  }

  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t position() const { return position_; }
  bool done() const { return position_ == end_; }

  // From the next chunk on, nothing goes through O_DIRECT.
  void give_up_direct() { geometry_.alignment_bytes = 0; }

  // Requires !done().
  Chunk next() {
    Chunk chunk = cut();
    position_ += chunk.bytes;
    skip(chunk.bytes);
    return chunk;
  }

  // Calls `each(memory, staged_offset, bytes)` for the pieces of memory that a chunk covers, in order;
  // staged_offset counts from the chunk's io_offset.
  template <typename Each>
  void for_each_piece(const Chunk& chunk, Each each) const {
    uint64_t staged_offset = chunk.offset - chunk.io_offset;
    uint64_t left = chunk.bytes;
    uint64_t within = chunk.segment_offset;
    for (size_t index = chunk.segment; left > 0; ++index, within = 0) {
      const uint64_t available = segments_[index].bytes - within;
      const uint64_t bytes = left < available ? left : available;
      each(segments_[index].data + within, staged_offset, bytes);
      staged_offset += bytes;
      left -= bytes;
    }
  }

  std::byte* address(const Chunk& chunk) const { return segments_[chunk.segment].data + chunk.segment_offset; }

 private:
  static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

  Chunk cut() const {
    const uint64_t block = geometry_.block_bytes;
    const uint64_t align = geometry_.alignment_bytes;
    const uint64_t in_segment = segments_[segment_].bytes - segment_offset_;
    const uint64_t in_block = smaller(end_ - position_, block - position_ % block);
    Chunk chunk{.offset = position_, .segment = segment_, .segment_offset = segment_offset_};
    if (align == 0) return buffered(chunk, smaller(in_segment, in_block));

    const bool position_aligned = position_ % align == 0;
    const auto address = reinterpret_cast<uintptr_t>(segments_[segment_].data + segment_offset_);
    const uint64_t straight = smaller(in_segment, in_block) / align * align;
    if (position_aligned && address % align == 0 && straight > 0) {
      chunk.kind = Kind::straight;
      chunk.bytes = chunk.io_bytes = straight;
      chunk.io_offset = position_;
      return chunk;
    }
    if (geometry_.write) {
      if (!position_aligned) {
        return buffered(chunk, smaller(smaller(in_segment, in_block), align - position_ % align));
      }
      const uint64_t whole = in_block / align * align;
      if (whole == 0) return buffered(chunk, smaller(in_segment, in_block));
      chunk.kind = Kind::staged;
      chunk.bytes = chunk.io_bytes = whole;
      chunk.io_offset = position_;
      return chunk;
    }
    chunk.kind = Kind::staged;
    chunk.bytes = in_block;
    chunk.io_offset = position_ / align * align;
    chunk.io_bytes = (position_ + in_block + align - 1) / align * align - chunk.io_offset;
    return chunk;
  }

  static Chunk buffered(Chunk chunk, uint64_t bytes) {
    chunk.kind = Kind::buffered;
    chunk.bytes = chunk.io_bytes = bytes;
    chunk.io_offset = chunk.offset;
    return chunk;
  }

  void skip(uint64_t bytes) {
    while (bytes > 0) {
      const uint64_t step = smaller(bytes, segments_[segment_].bytes - segment_offset_);
      segment_offset_ += step;
      bytes -= step;
      if (segment_offset_ == segments_[segment_].bytes) {
        ++segment_;
        segment_offset_ = 0;
      }
    }
  }

  Geometry geometry_;
  std::vector<Segment> segments_;
  uint64_t position_ = 0;
  uint64_t end_ = 0;
  uint64_t total_bytes_ = 0;
  size_t segment_ = 0;
  uint64_t segment_offset_ = 0;
};

}  // namespace terrace::block_plan
