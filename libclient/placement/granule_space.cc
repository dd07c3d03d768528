// SPDX-License-Identifier: Apache-2.0
#include "libclient/placement/granule_space.h"

#include <algorithm>

#include "core/base/check.h"

namespace terrace::placement {

GranuleSpace::GranuleSpace(uint32_t granules, uint64_t granule_bytes)
    : granule_bytes_(granule_bytes),
      chunk_granules_(std::clamp(granules / 64, 1u, 4u)),
      free_granules_(granules) {
  if (granules > 0) free_[0] = granules;
}

std::optional<Place> GranuleSpace::take(uint64_t bytes, uint32_t heat_class,
                                        const std::function<bool(uint32_t)>& like) {
  Place place{.bytes = bytes, .heat_class = heat_class, .shared = shares(bytes)};
  if (!place.shared) {
    const uint64_t count = (bytes + granule_bytes_ - 1) / granule_bytes_;
    const auto first =
        count <= free_granules_ ? take_granules(static_cast<uint32_t>(count), like) : std::nullopt;
    if (!first) return std::nullopt;
    place.offset = *first * granule_bytes_;
    return place;
  }
  const uint64_t units = std::max<uint64_t>((bytes + unit_bytes - 1) / unit_bytes, 1);
  std::list<Chunk>& chunks = chunks_[heat_class];
  for (Chunk& chunk : chunks) {
    if (chunk.units.largest_free_units() < units) continue;
    const auto unit = chunk.units.take(units);
    TERRACE_CHECK(unit.has_value(), "P1: a chunk's longest free run is not free");
    place.offset = chunk.first * granule_bytes_ + *unit * unit_bytes;
    return place;
  }
  auto first = take_granules(chunk_granules_, like);
  if (!first) return std::nullopt;
  chunks.push_front({*first, client::GranuleAllocator(chunk_granules_ * granule_bytes_ / unit_bytes)});
  place.offset = *first * granule_bytes_ + *chunks.front().units.take(units) * unit_bytes;
  return place;
}

void GranuleSpace::give(const Place& place) {
  const auto first = static_cast<uint32_t>(place.offset / granule_bytes_);
  if (!place.shared) {
    give_granules(first, static_cast<uint32_t>((place.bytes + granule_bytes_ - 1) / granule_bytes_));
    return;
  }
  std::list<Chunk>& chunks = chunks_[place.heat_class];
  const auto chunk = std::find_if(chunks.begin(), chunks.end(), [&](const Chunk& one) {
    return first >= one.first && first < one.first + chunk_granules_;
  });
  TERRACE_CHECK(chunk != chunks.end(), "P1: a shared place lies in no chunk");
  const auto given = chunk->units.give((place.offset - chunk->first * granule_bytes_) / unit_bytes);
  TERRACE_CHECK(given.has_value(), "P1: a place is given back twice");
  if (chunk->units.taken_runs() > 0) return;
  give_granules(chunk->first, chunk_granules_);
  chunks.erase(chunk);
}

uint32_t GranuleSpace::longest_free_run() const {
  uint32_t longest = 0;
  for (const auto& run : free_) longest = std::max(longest, run.second);
  return longest;
}

bool GranuleSpace::is_free(uint32_t granule) const {
  auto run = free_.upper_bound(granule);
  if (run == free_.begin()) return false;
  --run;
  return granule < run->first + run->second;
}

std::optional<uint32_t> GranuleSpace::take_granules(uint32_t count, const std::function<bool(uint32_t)>& like) {
  uint32_t best = 0, best_liked = 0, best_gap = UINT32_MAX;
  bool found = false;
  for (const auto& run : free_) {
    if (run.second < count) continue;
    uint32_t liked = 0;
    for (uint32_t i = 0; i < run.second; ++i) {
      liked += like(run.first + i) ? 1 : 0;
      if (i + 1 < count) continue;
      if (i >= count) liked -= like(run.first + i - count) ? 1 : 0;
      if (found && (liked < best_liked || (liked == best_liked && run.second >= best_gap))) continue;
      found = true;
      best = run.first + i + 1 - count;
      best_liked = liked;
      best_gap = run.second;
    }
  }
  if (!found) return std::nullopt;
  auto run = std::prev(free_.upper_bound(best));
  const uint32_t first = run->first, end = run->first + run->second;
  free_.erase(run);
  if (best > first) free_[first] = best - first;
  if (best + count < end) free_[best + count] = end - best - count;
  free_granules_ -= count;
  return best;
}

void GranuleSpace::give_granules(uint32_t first, uint32_t count) {
  free_granules_ += count;
  auto next = free_.upper_bound(first);
  if (next != free_.begin()) {
    auto before = std::prev(next);
    TERRACE_CHECK(before->first + before->second <= first, "P1: granules are given back twice");
    if (before->first + before->second == first) {
      first = before->first;
      count += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && first + count == next->first) {
    count += next->second;
    free_.erase(next);
  }
  free_[first] = count;
}

}  // namespace terrace::placement
