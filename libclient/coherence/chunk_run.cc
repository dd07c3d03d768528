// SPDX-License-Identifier: Apache-2.0
#include "libclient/coherence/chunk_run.h"

#include <algorithm>
#include <tuple>

namespace terrace::coherence {
namespace {

std::vector<uint32_t> free_under(uint64_t offset, uint64_t bytes, const FreeChunks& free_chunks,
                                 const Geometry& geometry) {
  std::vector<uint32_t> chunks;
  for (uint64_t chunk = offset / geometry.chunk_bytes; chunk <= (offset + bytes - 1) / geometry.chunk_bytes;
       ++chunk)
    if (free_chunks[chunk]) chunks.push_back(static_cast<uint32_t>(chunk));
  return chunks;
}

}  // namespace

FreeSpace with_chunks(const FreeSpace& own, const FreeChunks& free_chunks, const Geometry& geometry) {
  FreeSpace possible = own;
  for (uint32_t chunk = 0; chunk < geometry.chunks; ++chunk)
    if (free_chunks[chunk])
      possible.give(geometry.chunk_begin(chunk), geometry.chunk_end(chunk) - geometry.chunk_begin(chunk));
  return possible;
}

std::optional<std::vector<uint32_t>> chunks_for(uint64_t bytes, const FreeSpace& own,
                                                const FreeChunks& free_chunks, uint32_t home,
                                                const Geometry& geometry) {
  struct Place {
    std::vector<uint32_t> chunks;
    std::tuple<size_t, bool, uint64_t, int> cost;
  };
  std::optional<Place> best;
  const FreeSpace possible = with_chunks(own, free_chunks, geometry);
  for (const auto& hole : possible.holes()) {
    const uint64_t begin = hole.first, length = hole.second;
    if (length < bytes) continue;
    const uint64_t last = begin + length - bytes, at_home = geometry.chunk_begin(home);
    const uint64_t middle = std::max(begin, (begin + last) / 2 / geometry.chunk_bytes * geometry.chunk_bytes);
    const auto consider = [&](uint64_t at, int rank) {
      std::vector<uint32_t> chunks = free_under(at, bytes, free_chunks, geometry);
      const bool new_place =
          free_chunks[at / geometry.chunk_bytes] && free_chunks[(at + bytes - 1) / geometry.chunk_bytes];
      const std::tuple cost(chunks.size(), new_place, ~length, rank);
      if (!best || cost < best->cost) best = Place{std::move(chunks), cost};
    };
    if (begin <= at_home && at_home <= last) consider(at_home, 0);
    consider(middle, 1);
    consider(begin, 2);
    consider(last, 3);
  }
  return best ? std::optional(std::move(best->chunks)) : std::nullopt;
}

}  // namespace terrace::coherence
