// SPDX-License-Identifier: Apache-2.0
// The errors that both kinds of device give in the same words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace terrace::device {

// "'weights' needs 4096 bytes in tier hbm: CUDA device 0 has 1024 of 8589934592 bytes free, 3072 short; ..."
Error not_enough_memory(std::string_view what, uint64_t needed_bytes, uint64_t free_bytes,
                        uint64_t capacity_bytes, const std::string& where_text);
Error no_bytes(std::string_view what);
Error nothing_to_register();

}  // namespace terrace::device
