// SPDX-License-Identifier: Apache-2.0
// From a checkpoint's file to a space's tensors: all slots are filled and checked, and published then.
#pragma once

#include <string>

#include "libclient/checkpoint/manifest.h"
#include "terrace/checkpoint.h"

namespace terrace::checkpoint {

// As CheckpointDirectory::restore.
Result<SpaceImport> restore(const std::string& path, const Manifest& manifest, TensorSpace& space,
                            const SpaceImportOptions& options);

}  // namespace terrace::checkpoint
