// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/capacity_errors.h"

#include "terrace/tensor.h"

namespace terrace::device {

Error not_enough_memory(std::string_view what, uint64_t needed_bytes, uint64_t free_bytes,
                        uint64_t capacity_bytes, const std::string& where_text) {
  std::string text = quoted_name(what) + " needs " + std::to_string(needed_bytes) +
                     " bytes in tier hbm: " + where_text + " has " + std::to_string(free_bytes) + " of " +
                     std::to_string(capacity_bytes) + " bytes free";
  // With enough bytes free no single range, or no whole grain, was.
  text += free_bytes < needed_bytes ? ", " + std::to_string(needed_bytes - free_bytes) + " short"
                                    : ", but not in one piece";
  return {ErrorCode::capacity_exhausted, 0, "DeviceMemory::allocate", text};
}

Error no_bytes(std::string_view what) {
  return {ErrorCode::invalid_argument, 0, "DeviceMemory::allocate",
          quoted_name(what) + ": no bytes to allocate"};
}

Error nothing_to_register() {
  return {ErrorCode::invalid_argument, 0, "DeviceMemory::register_host", "no memory to register"};
}

}  // namespace terrace::device
