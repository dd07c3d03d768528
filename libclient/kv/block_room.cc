// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/block_room.h"

#include <algorithm>

#include "core/base/check.h"

namespace terrace::kv {

constexpr uint64_t line_bytes = 64;

void BlockRoom::own(uint32_t chunk) {
  Chunk& at = chunks_[chunk];
  TERRACE_CHECK(!at.owned, "a chunk is owned once");
  at = Chunk();
  at.owned = true;
  ++owned_;
}

bool BlockRoom::note(uint64_t offset, uint64_t bytes, uint32_t record) {
  const uint32_t chunk = chunk_of(offset);
  Chunk& at = chunks_[chunk];
  if (!at.owned) return false;
  notes_.push_back({.begin = static_cast<uint32_t>((offset - chunk * chunk_bytes_) / line_bytes),
                    .lines = static_cast<uint32_t>(bytes / line_bytes),
                    .record = record,
                    .next = at.noted});
  at.noted = static_cast<uint32_t>(notes_.size() - 1);
  ++at.notes;
  ++notes_left_;
  at.used_bytes += bytes;
  return true;
}

void BlockRoom::disown(uint32_t chunk) {
  chunks_[chunk] = Chunk();
  --owned_;
}

void BlockRoom::build(uint32_t chunk, std::vector<uint32_t>* bad) {
  Chunk& at = chunks_[chunk];
  if (at.built) return;
  at.built = true;
  std::vector<Extent> extents;
  extents.reserve(at.notes);
  for (uint32_t note = at.noted; note != none; note = notes_[note].next) extents.push_back(notes_[note]);
  notes_left_ -= at.notes;
  if (notes_left_ == 0) notes_ = {};
  // Of two in one place that of the first record stays.
  std::sort(extents.begin(), extents.end(), [](const Extent& left, const Extent& right) {
    return left.begin != right.begin ? left.begin < right.begin : left.record < right.record;
  });
  uint64_t free_from = chunk * chunk_bytes_;
  for (const Extent& extent : extents) {
    const uint64_t offset = chunk * chunk_bytes_ + extent.begin * line_bytes;
    if (offset < free_from) {
      bad->push_back(extent.record);
      at.used_bytes -= extent.lines * line_bytes;
      continue;
    }
    if (offset > free_from) at.holes.give(free_from, offset - free_from);
    free_from = offset + extent.lines * line_bytes;
  }
  const uint64_t end = (chunk + uint64_t{1}) * chunk_bytes_;
  if (free_from < end) at.holes.give(free_from, end - free_from);
  at.noted = none;
}

std::optional<uint64_t> BlockRoom::take(uint64_t bytes, std::vector<uint32_t>* bad) {
  const auto count = static_cast<uint32_t>(chunks_.size());
  for (uint32_t step = 0; step < count; ++step) {
    const uint32_t chunk = (last_ + step) % count;
    Chunk& at = chunks_[chunk];
    if (!at.owned || at.closed || chunk_bytes_ - std::min(at.used_bytes, chunk_bytes_) < bytes) continue;
    build(chunk, bad);
    const std::optional<uint64_t> offset = at.holes.take(bytes);
    if (!offset) continue;
    at.used_bytes += bytes;
    last_ = chunk;
    return offset;
  }
  return std::nullopt;
}

void BlockRoom::give(uint64_t offset, uint64_t bytes, uint32_t record, std::vector<uint32_t>* bad) {
  const uint32_t chunk = chunk_of(offset);
  build(chunk, bad);
  if (std::find(bad->begin(), bad->end(), record) != bad->end()) return;  // it never had this room
  chunks_[chunk].holes.give(offset, bytes);
  chunks_[chunk].used_bytes -= bytes;
}

uint64_t BlockRoom::free_bytes() const {
  uint64_t bytes = 0;
  for (const Chunk& chunk : chunks_)
    if (chunk.owned) bytes += chunk_bytes_ - std::min(chunk.used_bytes, chunk_bytes_);
  return bytes;
}

}  // namespace terrace::kv
