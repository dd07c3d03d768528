// From a checkpoint's file to a pool's tensors, checked against the manifest on the way.
#pragma once

#include <string>

#include "libclient/checkpoint/manifest.h"
#include "terrace/transfer.h"

namespace terrace::checkpoint {

// As CheckpointDirectory::restore.
Result<PoolImport> restore(const std::string& path, const Manifest& manifest, TensorPool& pool,
                           const PoolImportOptions& options);

}  // namespace terrace::checkpoint
