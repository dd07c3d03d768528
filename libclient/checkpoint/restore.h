// SPDX-License-Identifier: Apache-2.0
// From a checkpoint's file to a pool's tensors, checked against the manifest on the way.
#pragma once

#include <string>

#include "libclient/checkpoint/manifest.h"
#include "libclient/io/safetensors_file.h"
#include "terrace/transfer.h"

namespace terrace::checkpoint {

// The data file, whose header agrees with the manifest. Errors: corrupt, and those of SafetensorsFile::open.
Result<SafetensorsFile> open_data(const std::string& path, const Manifest& manifest);

// As CheckpointDirectory::restore.
Result<PoolImport> restore(const std::string& path, const Manifest& manifest, TensorPool& pool,
                           const PoolImportOptions& options);

}  // namespace terrace::checkpoint
