// SPDX-License-Identifier: Apache-2.0
// A checkpoint's manifest: length and checksums of its file. docs/formats/checkpoint.md describes the bytes.
//
// Threads   Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/units.h"

namespace terrace::checkpoint {

inline constexpr uint32_t manifest_version = 1;
inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* data_name = "tensors.safetensors";
inline constexpr uint64_t manifest_bytes_max = 64 * mib;
// Of the file, for each checksum. Written at once: long enough for a disk to work at its speed, short enough
// that it is written again at little cost when the program stored to it meanwhile.
inline constexpr uint64_t chunk_bytes = 16 * mib;

struct Manifest {
  std::string name;
  uint64_t created_unix_ns = 0;
  uint64_t tensors = 0, tensor_bytes = 0, file_bytes = 0;
  uint64_t chunk_bytes = checkpoint::chunk_bytes;
  std::vector<uint32_t> crc32c;  // of each chunk of the file; the last one is shorter
};

std::string write_manifest(const Manifest& manifest);

// `text` is hostile. Errors: corrupt, saying what is wrong; version_mismatch.
Result<Manifest> read_manifest(std::string_view text, std::string_view file);

// 1 to 128 of A-Z a-z 0-9 . _ -, the first one no dot.
Status check_name(std::string_view name);

}  // namespace terrace::checkpoint
