// SPDX-License-Identifier: Apache-2.0
// An opened and checked safetensors file, for import and verify.
#pragma once

#include <sys/stat.h>

#include <string>

#include "core/base/unique_fd.h"
#include "terrace/safetensors.h"

namespace terrace {

struct SafetensorsFile {
  UniqueFd fd;
  SafetensorsIndex index;
  struct stat status {};

  // Errors as for read_safetensors_index.
  static Result<SafetensorsFile> open(const std::string& path);

  // Also takes a GGUF file, whose tensors may have holes between them.
  static Result<SafetensorsFile> open_any(const std::string& path);

  // Refuses a file that was written to since open(), as far as its size and times tell.
  Status check_unchanged(const std::string& path) const;
  // The same for readers that compare every byte with a checksum: a file that was removed or renamed meanwhile
  // is as good as before.
  Status check_not_written(const std::string& path) const;
};

// As safetensors_header, of tensors in the order of their bytes; where they are in another file makes no
// difference.
Result<std::string> header_of_entries(std::span<const SafetensorsEntry> tensors,
                                      const TensorMetadata& metadata);

// Reads exactly `bytes.size()` bytes at `offset`. Errors: io_error; `path` is for the text.
Status read_exactly(int fd, const std::string& path, uint64_t offset, std::span<std::byte> bytes);

}  // namespace terrace
