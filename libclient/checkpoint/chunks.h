// Whole files in chunks, each with its checksum: copied, or only read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/result.h"
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

}  // namespace terrace::checkpoint
