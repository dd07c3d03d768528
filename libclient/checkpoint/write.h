// SPDX-License-Identifier: Apache-2.0
// A checkpoint on its way to the disk: the snapshot, and the thread that drains it.
#pragma once

#include <memory>
#include <string>

#include "libclient/checkpoint/folder.h"
#include "terrace/checkpoint.h"

namespace terrace::checkpoint {

// As CheckpointDirectory::checkpoint.
Result<std::unique_ptr<CheckpointWrite>> start_write(const std::string& directory, const std::string& name,
                                                     TensorPool& pool,
                                                     std::span<const std::shared_ptr<Tensor>> tensors,
                                                     const CheckpointOptions& options);

// The same of a space's tensors.
Result<std::unique_ptr<CheckpointWrite>> start_write(const std::string& directory, const std::string& name,
                                                     TensorSpace& space, std::span<const SharedTensor> tensors,
                                                     const SpaceCheckpointOptions& options);

}  // namespace terrace::checkpoint
