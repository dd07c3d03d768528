// SPDX-License-Identifier: Apache-2.0
// The free bytes of the chunks that a part has. It exists in the owner's process only. At a take-over a chunk's
// extents are only noted; its holes are made when they are first asked for, as a part may have a million blocks. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "libclient/coherence/free_space.h"

namespace terrace::kv {

class BlockRoom {
 public:
  BlockRoom(uint64_t chunk_bytes, uint32_t chunks) : chunk_bytes_(chunk_bytes), chunks_(chunks) {}

  // An empty chunk is the part's from now on.
  void own(uint32_t chunk);
  // Once, before the first note(): so many at most.
  void expect(uint32_t extents) { notes_.reserve(extents); }
  // A live extent that was found at a take-over. Whether its chunk is the part's.
  bool note(uint64_t offset, uint64_t bytes, uint32_t record);
  void disown(uint32_t chunk);  // which is empty

  // Units: bytes, multiples of 64, at most a chunk. Records whose extents overlap another one's, as only a hostile
  // owner leaves them, are added to `bad`: they have no room from then on.
  std::optional<uint64_t> take(uint64_t bytes, std::vector<uint32_t>* bad);
  void give(uint64_t offset, uint64_t bytes, uint32_t record, std::vector<uint32_t>* bad);
  // Whether nothing of a chunk is in use. Of a noted chunk: whether nothing was noted.
  bool is_empty(uint32_t chunk) const { return chunks_[chunk].owned && chunks_[chunk].used_bytes == 0; }
  // take() passes over a closed chunk: its blocks are being removed so that it can be given away.
  void set_closed(uint32_t chunk, bool closed) { chunks_[chunk].closed = closed; }
  bool owns(uint32_t chunk) const { return chunks_[chunk].owned; }
  uint32_t owned() const { return owned_; }
  uint32_t chunk_of(uint64_t offset) const { return static_cast<uint32_t>(offset / chunk_bytes_); }
  uint64_t free_bytes() const;  // in the part's chunks

 private:
  static constexpr uint32_t none = ~0u;
  // In lines of 64 bytes, from the chunk's begin. A take-over notes a million of them, one behind the other: memory that is
  // touched for the first time costs it more than all else, and vectors that grow have twice as much of it.
  struct Extent {
    uint32_t begin = 0, lines = 0;
    uint32_t record = 0;
    uint32_t next = none;  // of the same chunk, in notes_
  };
  struct Chunk {
    bool owned = false;
    bool built = false;
    bool closed = false;
    uint64_t used_bytes = 0;
    uint32_t noted = none, notes = 0;
    coherence::FreeSpace holes;
  };
  void build(uint32_t chunk, std::vector<uint32_t>* bad);

  const uint64_t chunk_bytes_;
  std::vector<Chunk> chunks_;
  std::vector<Extent> notes_;
  uint32_t notes_left_ = 0;  // of chunks without holes yet
  uint32_t owned_ = 0;
  uint32_t last_ = 0;  // where there was room
};

}  // namespace terrace::kv
