// SPDX-License-Identifier: Apache-2.0
// Files in chunks, each with its checksum: copied, or only read; all chunks, or a chosen part.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/os/io/block_io.h"
#include "terrace/safetensors.h"

namespace terrace::checkpoint {

struct ChunkFile {
  int fd = -1;
  std::string path;
};

// Reads `file_bytes` of `from` and hands each chunk's checksum to `each` (with its number), which may end it
// with an error; writes it to `to`, where that has a descriptor. One thread reads and writes, another one is at
// the checksums meanwhile.
Status for_each_chunk(const ChunkFile& from, const ChunkFile& to, uint64_t file_bytes, uint64_t chunk_bytes,
                      const TransferOptions& options,
                      const std::function<Status(uint64_t number, uint32_t crc32c)>& each);

// What is done with a chunk, on the calling thread: `use` with its bytes, before anybody knows whether they are
// right; `check` with its checksum. Either may end it with an error.
struct ChunkWork {
  std::function<Status(uint64_t begin, std::span<const std::byte> bytes)> use = {};
  std::function<Status(uint64_t number, uint32_t crc32c)> check;
};

// The same for the chunks of these numbers alone, which ascend. Says how they were read.
Result<BlockIoReport> for_chunks(const ChunkFile& from, uint64_t file_bytes, uint64_t chunk_bytes,
                                 std::span<const uint64_t> numbers, const TransferOptions& options,
                                 const ChunkWork& work);

}  // namespace terrace::checkpoint
