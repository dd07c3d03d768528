// SPDX-License-Identifier: Apache-2.0
// Shared by import, export and verify.
#pragma once

#include <string>

#include "core/os/io/block_io.h"
#include "terrace/safetensors.h"

namespace terrace {

// The block I/O options that the caller's transfer options stand for.
BlockIoOptions block_io_options(const TransferOptions& options);

// How many of `entries`, of which there is one at least, lie behind each other in the file.
size_t run_length(std::span<const SafetensorsEntry> entries);

void fill_in(TransferReport& report, const BlockIoReport& io);

Error cancelled_error(const char* where, const std::string& path);
// The memory of the tensors went away meanwhile.
Error memory_gone(const char* where, const std::string& path);

}  // namespace terrace
