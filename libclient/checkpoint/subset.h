// SPDX-License-Identifier: Apache-2.0
// Some tensors of a checkpoint's file: read by the chunks in which they lie, each compared with its checksum.
//
// Place     Behind restore() and export_file() of some names; the whole file goes other ways (restore.cc,
//           chunks.cc), straight to where it belongs.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/os/io/block_io.h"
#include "libclient/checkpoint/manifest.h"
#include "libclient/io/safetensors_file.h"

namespace terrace::checkpoint {

// A piece of the tensor entries[index], from its byte `offset` on.
using UsePiece = std::function<Status(size_t index, uint64_t offset, std::span<const std::byte> bytes)>;

// Reads the chunks of the header and of `entries`, which are in the order of their bytes, and no others. `use`
// hears of every piece before its checksum is compared: what it made of them counts only without an error.
//
// Errors    corrupt, saying which bytes of the file; those of `use` and of read_blocks
Result<BlockIoReport> read_some(const SafetensorsFile& file, const std::string& path, const Manifest& manifest,
                                std::span<const SafetensorsEntry> entries, const TransferOptions& options,
                                const UsePiece& use);

// As choose_entries; where names are missing the header is compared with its checksums first, since it may be
// damage that they are. Errors: corrupt, and those of both.
Result<std::vector<SafetensorsEntry>> choose_checked(const SafetensorsFile& file, const std::string& path,
                                                     const Manifest& manifest,
                                                     const std::vector<std::string>& names);

// That chunk of the file is not what it was. `path` names the file.
Error damaged_chunk(const std::string& path, const Manifest& manifest, uint64_t number);

// Their bytes as a safetensors file of its own, with the metadata of the whole one; `file_bytes` is its length.
Status write_some(const SafetensorsFile& file, const std::string& path, const Manifest& manifest,
                  std::span<const SafetensorsEntry> entries, const std::string& target, bool replace,
                  const TransferOptions& options, uint64_t& file_bytes);

}  // namespace terrace::checkpoint
