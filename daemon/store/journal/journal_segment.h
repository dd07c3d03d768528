// SPDX-License-Identifier: Apache-2.0
// One file of the journal: a header block, then records one after the other, each in blocks of its own.
//
// A block is 4096 bytes on a disk: the unit that a disk may tear. A record shares none with another one, so
// that a torn write leaves the records before it untouched, with any bytes in its own blocks. In a memory file
// system, where nothing outlives the kernel, a block is 64 bytes.
//
// The file is written out in full when it is made and never grows: an append changes no metadata, and cannot
// run out of space.
//
// Threads   One at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/store/journal/delta_codec.h"

namespace terrace::daemon {

// A record as it lies in its segment: this, the payload (delta_codec.h), zeros up to the next block.
struct RecordHeader {
  char magic[8];
  uint32_t payload_bytes;
  uint32_t crc;  // crc32c of this header without its crc, then the payload
  uint64_t store_id;
  uint64_t sequence;  // of the commit that the payload is
};
static_assert(sizeof(RecordHeader) == 32);

struct FoundRecord {
  uint64_t sequence = 0;
  std::span<const std::byte> payload;
};

// Fills in the header in front of a payload: `record` begins with sizeof(RecordHeader) bytes for it.
void seal_record(ByteBuffer& record, uint64_t store_id, uint64_t sequence);

// The record at the start of `bytes`, if there is a whole one of this store.
std::optional<FoundRecord> find_record(std::span<const std::byte> bytes, uint64_t store_id);

// Every whole record of a store in a segment's bytes, by position, whatever is damaged between them; they point into
// `file`. And whose segment it is, if its header is whole.
std::vector<FoundRecord> find_records(std::span<const std::byte> file, uint64_t store_id);
std::optional<uint64_t> store_of_segment(std::span<const std::byte> file);

class JournalSegment {
 public:
  static constexpr uint64_t header_bytes = 4096;  // the first block(s) of every segment

  JournalSegment() = default;

  // Makes `path` with zeros, whole or not at all, in place of what was there.
  // Errors    capacity_exhausted  no room for it; io_error
  static Result<JournalSegment> create(const std::string& path, uint64_t bytes, uint64_t store_id);

  // Opens what create() made; nullopt: there is none.
  // Errors    corrupt            it is no journal, or another store's, or has lost bytes
  //           version_mismatch   of a newer Terrace
  static Result<std::optional<JournalSegment>> open(const std::string& path, uint64_t store_id);

  // Appends `record`, sealed as `sequence` and padded to whole blocks, behind the last one. Not yet durable.
  // Errors    io_error   nothing is known about what is in the file
  Status append(ByteBuffer& record, uint64_t sequence);
  Status sync();

  bool fits(size_t record_bytes) const { return padded(record_bytes) <= bytes_ - end_; }
  bool ever_fits(size_t record_bytes) const { return padded(record_bytes) <= bytes_ - header_bytes; }
  bool empty() const { return end_ == header_bytes; }
  uint64_t room_bytes() const { return bytes_ - std::min(bytes_, header_bytes); }  // for records, all told
  uint64_t used_bytes() const { return end_ - header_bytes; }
  uint64_t newest() const { return newest_; }  // the sequence of the last append
  // Everything in it is in the database: begins again at its start.
  void rewind() { end_ = header_bytes; }
  // Whether create() would make the same file again.
  bool made_for(uint64_t bytes) const;

  // Every whole record of this store in the file, by position; they point into `memory`. `all`: also those that
  // were left from earlier rounds, behind the last append.
  Result<std::vector<FoundRecord>> read(std::vector<std::byte>& memory, bool all) const;

  // Whether the file lies in memory: a commit is a copy.
  bool in_memory() const { return in_memory_; }
  const std::string& path() const { return path_; }

 private:
  Status read_header();
  Status use_direct_io();
  uint64_t padded(uint64_t bytes) const { return (bytes + block_bytes_ - 1) / block_bytes_ * block_bytes_; }

  std::string path_;
  UniqueFd file_;
  uint64_t store_id_ = 0;
  uint64_t bytes_ = 0;
  uint64_t block_bytes_ = 0;
  uint64_t end_ = header_bytes;  // where the next record goes
  uint64_t newest_ = 0;
  bool in_memory_ = false;
};

}  // namespace terrace::daemon
