// SPDX-License-Identifier: Apache-2.0
// A spill folder: blocks of KV spaces in files of a local disk, to which a space gives what it evicts and where it
// looks for what it does not have (KvAttachOptions::spill). Also of use alone.
//
//   all processes of one host that open a folder find each other's blocks; their budget is one for the folder
//   puts are asynchronous and bounded: with a full queue, or a disk that fails, a block is dropped and counted
//   a block is found whole and under its name or not at all: after kill -9, a power cut, or damage to the files
//   blocks outlive the processes; a dead one's slot goes to the next that starts
//
// Data goes past the page cache by O_DIRECT, and by io_uring, where both are to be had.
//
// It is a cache: a block may be gone at the next call. Bytes: docs/formats/kv_spill.md. Design:
// docs/design/0048-kv-spill.md. Use: docs/kv.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "terrace/kv_space.h"

namespace terrace {

struct KvSpillOptions {
  // Of data in the folder, for all its processes together; the indexes come on top. 0: what the folder has. Where it
  // has another budget, and nobody uses it, the folder begins anew, empty.
  uint64_t bytes = 0;
  uint64_t block_bytes = 64 << 10;     // the size that most blocks have: it gives the length of the indexes
  uint64_t max_block_bytes = 0;        // 0: 16 MiB, or a 32nd of `bytes` if that is less
  uint32_t queue_depth = 32;           // requests to the disk at once
  uint64_t queue_bytes = 64 << 20;     // of blocks that wait to be written
  uint64_t prefetch_bytes = 64 << 20;  // of blocks that were read ahead
  bool puts = true;                    // false: it reads only, and takes no slot
  bool direct = true;                  // O_DIRECT
  bool io_uring = true;
};

struct KvSpillPut {
  std::string_view key;
  std::span<const std::byte> bytes;
  std::string_view parent = {};  // the key of the block before it in the prompt
  uint64_t expires_unix_s = 0;   // 0: never
};

struct KvSpillStat {
  uint64_t budget_bytes = 0;
  uint64_t segment_bytes = 0;
  uint64_t segments = 0, free_segments = 0;
  uint64_t index_bytes = 0;  // of one slot
  uint64_t max_block_bytes = 0;
  uint64_t blocks = 0, block_bytes = 0;
  uint32_t slots = 0, slots_open = 0;           // that were ever owned; that are owned, or whose owner died
  std::optional<uint32_t> slot = std::nullopt;  // of this process; none: it writes nothing
  uint64_t slot_segments = 0;
  bool direct = false, io_uring = false;
  std::string direct_reason = {}, io_uring_reason = {};  // why not
  std::string last_error = {};                           // of the disk; empty: none
};

// What this process did since it opened the folder.
struct KvSpillCounters {
  uint64_t hits = 0, misses = 0, hit_bytes = 0;
  uint64_t prefetch_hits = 0;  // of the hits, that had been read ahead
  uint64_t queued_hits = 0;    // of the hits, that were not written yet
  uint64_t written = 0, written_bytes = 0;
  uint64_t there_already = 0;  // puts of blocks that are there
  uint64_t dropped = 0;        // puts that found a full queue, no segment, or a disk that fails
  uint64_t write_errors = 0, read_errors = 0;
  uint64_t wrong = 0;  // frames that did not have their hash: gone since
  uint64_t segments_reused = 0, segments_taken = 0, segments_given = 0;  // own; of the dead; to others
  uint64_t kept = 0;  // blocks that were written on, as they had been read
};

// Threads    All calls from any thread.
// Errors     Of every call: unavailable in a forked child, after close(), or once the folder's map was cut off;
//            invalid_argument for a key that is empty or too long.
class KvSpill {
 public:
  // Makes the folder's files if there are none; the folder itself must be there.
  // Errors    invalid_argument   options, or a new folder and no budget
  //           permission_denied  the folder or its files belong to another user, or it is on a read-only disk
  //           not_found          no such folder
  //           capacity_exhausted no room for the map or the index
  //           busy               it has another budget, and others use it
  //           corrupt, version_mismatch  the folder's map; the text says what to do
  static Result<std::shared_ptr<KvSpill>> open(const std::string& folder, const KvSpillOptions& options = {});
  virtual ~KvSpill() = default;  // as close()

  // ok: it will be written, or is there already.
  // Errors    busy            dropped: see KvSpillCounters::dropped
  //           limit_exceeded  longer than max_block_bytes
  //           permission_denied  opened without `puts`
  virtual Status put(const KvNamespace& name_space, const KvSpillPut& put) = 0;
  // Copies the block; returns its length. After an error `into` may hold anything.
  // Errors    not_found; invalid_argument (`into` is shorter than the block)
  virtual Result<uint64_t> get(const KvNamespace& name_space, const KvGet& get) = 0;
  virtual Result<uint64_t> length(const KvNamespace& name_space, std::string_view key) = 0;
  // By the index only. found[i]: whether keys[i] is there. `found` is as long as `keys`.
  virtual Status exists(const KvNamespace& name_space, std::span<const std::string_view> keys,
                        std::span<bool> found) = 0;
  // Begins to read the blocks, first to last, as far as prefetch_bytes go; get() then waits for its block only.
  // Returns how many are read or about to be.
  virtual Result<uint64_t> prefetch(const KvNamespace& name_space, std::span<const std::string_view> keys) = 0;
  // Also what is on its way there, of any process. Errors: not_found
  virtual Status erase(const KvNamespace& name_space, std::string_view key) = 0;
  // All blocks of one namespace, or all. Returns how many.
  virtual Result<uint64_t> flush(const std::optional<KvNamespace>& name_space) = 0;

  // Waits until all that was put before is written or dropped.
  virtual Status drain() = 0;
  virtual Result<KvSpillStat> stat() = 0;
  virtual KvSpillCounters counters() const = 0;
  // Writes what is queued, then gives the slot back.
  virtual void close() = 0;
};

}  // namespace terrace
