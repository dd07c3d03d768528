// SPDX-License-Identifier: Apache-2.0
// GGUF files, as llama.cpp reads them: hostile input, checked as a whole before any memory is asked for. Tensors of
// quantised types become rows of bytes, blocks as they lie in the file; docs/formats/gguf.md has the rules.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "terrace/safetensors.h"

namespace terrace {

// Reads bytes of the file into all of the span.
using ReadAt = std::function<Status(uint64_t offset, std::span<std::byte> bytes)>;

// true: these are the first bytes of a GGUF file.
bool is_gguf(std::span<const std::byte> first_bytes);

// Checks the header against the length of the file. `file` names it in error texts.
//
// Errors    corrupt         the header contradicts itself, the file or the format
//           unsupported     a version, type or array that Terrace does not know; more than 4 dimensions
//           limit_exceeded  more than 2^20 tensors, 65,536 values, 1024 bytes of name, or 100 MB of values
// Threads   Pure but for `read_at`.
Result<SafetensorsIndex> read_gguf_header(const ReadAt& read_at, uint64_t file_bytes, const std::string& file);

}  // namespace terrace
