// SPDX-License-Identifier: Apache-2.0
// The opened and checked files of a model, for import and verify: one safetensors or GGUF file, or several.
#pragma once

#include <string>
#include <vector>

#include "libclient/io/safetensors_file.h"

namespace terrace {

struct ModelFile {
  std::string path;
  SafetensorsFile file;
};

struct ModelFiles {
  std::vector<ModelFile> files;
  TensorMetadata metadata;  // of all files; the first one's value of a key

  // As read_safetensors_model.
  static Result<ModelFiles> open(const std::string& path);

  size_t tensors() const;
  // Refuses files that were written to since open().
  Status check_unchanged() const;
};

}  // namespace terrace
