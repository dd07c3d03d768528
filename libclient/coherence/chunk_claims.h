// SPDX-License-Identifier: Apache-2.0
// The chunks of the data that a part has: one word a chunk in each part, stored by that part's owner only.
//
//   claiming                                              what a crash leaves
//   words := wanted, written back, full barrier           wanted: the next owner clears it
//   look at all other parts' words of these chunks        the same
//   one is not none: words := none again                  the same
//   those words' lines dropped once more                  the same
//   words := owned, written back                          wanted or owned, without a tensor: cleared
//
// As with names, each claimer stores first and looks afterwards: of two claimers of a chunk at least one sees
// the other and withdraws, maybe both. Chunks that a dead holder's part has, or wanted, stay with it until its
// take-over.
//
// An empty chunk is given back after the removals are written back. So a reader that copies the next part's
// bytes finds its own tensor gone at its second look.
//
// What a holder that died had stored into its chunks may still be in the caches of its host, on which the next owner of its part
// runs. Before such a chunk can be another part's, and so another host's, all of it is written back.
//
// Threads   One at a time: under the part's mutex.
#pragma once

#include <span>
#include <vector>

#include "libclient/coherence/chunk_run.h"
#include "libclient/coherence/memory/memory.h"
#include "libclient/coherence/reader.h"

namespace terrace::coherence {

template <CoherenceMemory Memory>
class ChunkClaims {
 public:
  ChunkClaims(Memory memory, const Geometry& geometry, uint32_t part, IsDead is_dead)
      : memory_(memory),
        geometry_(geometry),
        part_(part),
        is_dead_(std::move(is_dead)),
        known_free_(geometry.chunks, false),
        inherited_(geometry.chunks, false) {}

  // A new owner's first look: the chunks that its part has are given to `free`. One that another part has, too, which
  // no step of the protocol leaves, is not this part's: better lost tensors than two of them in one place.
  void take_over(FreeSpace* free);

  // Claims what `bytes` need to fit in one hole, and gives it to `free`.
  // Returns done, full (there is no such place), crowded (others are claiming: again, after a moment).
  Outcome make_room(uint64_t bytes, FreeSpace* free);
  // Gives back chunks between `offset` and `offset + bytes` in which nothing lies, out of `free`. What was in them is
  // gone, and that is written back.
  void give_back(uint64_t offset, uint64_t bytes, FreeSpace* free);

  // What make_room() could have of others by now.
  FreeChunks look_for_free() {
    bool crowded = false;
    return look_for_free(&crowded);
  }

 private:
  using Claim = layout::ChunkClaim;
  void set(uint32_t chunk, Claim claim, Step written_back) {
    memory_.store(geometry_.claim(part_, chunk), static_cast<uint64_t>(claim));
    memory_.write_back(geometry_.claim(part_, chunk), sizeof(uint64_t), written_back);
  }
  // Nothing of this host's caches reaches the chunk's data afterwards.
  void set_none(uint32_t chunk, Step written_back) {
    if (inherited_[chunk]) {
      const uint64_t begin = geometry_.chunk_begin(chunk);
      memory_.write_back(geometry_.data() + begin, geometry_.chunk_end(chunk) - begin, Step::dead_written_back);
      memory_.store_barrier(Step::dead_before_none);
      inherited_[chunk] = false;
    }
    set(chunk, Claim::none, written_back);
  }
  void drop_lines(uint32_t first, uint32_t last, Step invalidated, Step before_look);
  FreeChunks look_for_free(bool* crowded);
  Outcome claim(std::span<const uint32_t> chunks);
  Outcome look_at_others(std::span<const uint32_t> chunks);
  // Whether another part's word says that a chunk is not free; `*crowded` if it may be soon.
  bool is_taken(uint32_t part, uint32_t chunk, bool* crowded);

  Memory memory_;
  const Geometry geometry_;
  const uint32_t part_;
  const IsDead is_dead_;
  FreeChunks known_free_;        // at the last look; maybe not any more
  std::vector<bool> inherited_;  // which the part had before this owner
};

template <CoherenceMemory Memory>
void ChunkClaims<Memory>::take_over(FreeSpace* free) {
  drop_lines(0, geometry_.chunks - 1, Step::take_over_invalidated, Step::take_over_before_look);
  for (uint32_t chunk = 0; chunk < geometry_.chunks; ++chunk) {
    const uint64_t left = memory_.load(geometry_.claim(part_, chunk));
    if (left == static_cast<uint64_t>(Claim::none)) continue;
    inherited_[chunk] = true;
    bool mine = left == static_cast<uint64_t>(Claim::owned);
    for (uint32_t other = 0; other < geometry_.parts && mine; ++other)
      mine =
          other == part_ || memory_.load(geometry_.claim(other, chunk)) != static_cast<uint64_t>(Claim::owned);
    if (mine)
      free->give(geometry_.chunk_begin(chunk), geometry_.chunk_end(chunk) - geometry_.chunk_begin(chunk));
    else
      set_none(chunk, Step::take_over_written_back);
  }
}

template <CoherenceMemory Memory>
Outcome ChunkClaims<Memory>::make_room(uint64_t bytes, FreeSpace* free) {
  const uint32_t home = static_cast<uint32_t>(uint64_t{part_} * geometry_.chunks / geometry_.parts);
  bool crowded = false;
  // What was free at the last look may do; else look anew. Others may be as fast each time.
  for (int attempt = 0; attempt < 4; ++attempt) {
    if (attempt > 0) known_free_ = look_for_free(&crowded);
    const auto chunks = chunks_for(bytes, *free, known_free_, home, geometry_);
    if (!chunks && attempt > 0) return crowded ? Outcome::crowded : Outcome::full;
    if (!chunks || claim(*chunks) != Outcome::done) continue;
    for (const uint32_t chunk : *chunks) {
      known_free_[chunk] = false;
      free->give(geometry_.chunk_begin(chunk), geometry_.chunk_end(chunk) - geometry_.chunk_begin(chunk));
    }
    return Outcome::done;
  }
  return Outcome::crowded;
}

template <CoherenceMemory Memory>
Outcome ChunkClaims<Memory>::claim(std::span<const uint32_t> chunks) {
  for (const uint32_t chunk : chunks) set(chunk, Claim::wanted, Step::claim_written_back);
  memory_.full_barrier(Step::claim_before_look);
  const Outcome others = memory_.performs(Step::claim_look) ? look_at_others(chunks) : Outcome::done;
  if (others == Outcome::done) {
    // Before a tensor in it is live the barriers of its creation are behind this.
    for (const uint32_t chunk : chunks) set(chunk, Claim::owned, Step::owned_written_back);
    return others;
  }
  for (const uint32_t chunk : chunks) set(chunk, Claim::none, Step::claim_given_back);
  memory_.store_barrier(Step::claim_given_back);
  return others;
}

template <CoherenceMemory Memory>
Outcome ChunkClaims<Memory>::look_at_others(std::span<const uint32_t> chunks) {
  drop_lines(chunks.front(), chunks.back(), Step::claims_invalidated, Step::claims_before_look);
  bool taken = false, crowded = false;
  for (uint32_t other = 0; other < geometry_.parts; ++other)
    for (const uint32_t chunk : chunks) taken = is_taken(other, chunk, &crowded) || taken;
  if (taken) return crowded ? Outcome::crowded : Outcome::full;
  // What was given back may be so in this host's cache only. If that was lost with the host's power, two parts would
  // have the chunk.
  drop_lines(chunks.front(), chunks.back(), Step::claims_seen_kept, Step::claims_seen_kept);
  return Outcome::done;
}

template <CoherenceMemory Memory>
bool ChunkClaims<Memory>::is_taken(uint32_t part, uint32_t chunk, bool* crowded) {
  if (part == part_) return false;
  const uint64_t word = memory_.load(geometry_.claim(part, chunk));
  if (word == static_cast<uint64_t>(Claim::none)) return false;
  if (word != static_cast<uint64_t>(Claim::wanted) || *crowded) return true;
  const layout::PartOwner* const owner = geometry_.owner(part);
  memory_.invalidate(owner, sizeof *owner, Step::none);
  memory_.load_barrier(Step::none);
  *crowded = !is_dead_(part, memory_.load(&owner->epoch));
  return true;
}

template <CoherenceMemory Memory>
void ChunkClaims<Memory>::give_back(uint64_t offset, uint64_t bytes, FreeSpace* free) {
  bool any = false;
  for (uint64_t number = offset / geometry_.chunk_bytes; number <= (offset + bytes - 1) / geometry_.chunk_bytes;
       ++number) {
    const auto chunk = static_cast<uint32_t>(number);
    const uint64_t begin = geometry_.chunk_begin(chunk);
    if (!free->take_at(begin, geometry_.chunk_end(chunk) - begin)) continue;
    set_none(chunk, Step::claim_given_back);
    known_free_[chunk] = any = true;
  }
  if (any) memory_.store_barrier(Step::claim_given_back);
}

template <CoherenceMemory Memory>
FreeChunks ChunkClaims<Memory>::look_for_free(bool* crowded) {
  drop_lines(0, geometry_.chunks - 1, Step::none, Step::none);
  FreeChunks free_chunks(geometry_.chunks);
  for (uint32_t chunk = 0; chunk < geometry_.chunks; ++chunk) {
    free_chunks[chunk] = memory_.load(geometry_.claim(part_, chunk)) == static_cast<uint64_t>(Claim::none);
    for (uint32_t other = 0; other < geometry_.parts && free_chunks[chunk]; ++other)
      free_chunks[chunk] = !is_taken(other, chunk, crowded);
  }
  return free_chunks;
}

// Of all parts but this one: what it stores itself is nowhere newer.
template <CoherenceMemory Memory>
void ChunkClaims<Memory>::drop_lines(uint32_t first, uint32_t last, Step invalidated, Step before_look) {
  for (uint32_t other = 0; other < geometry_.parts; ++other)
    if (other != part_)
      memory_.invalidate(geometry_.claim(other, first), (last - first + 1) * sizeof(uint64_t), invalidated);
  memory_.load_barrier(before_look);
}

}  // namespace terrace::coherence
