// SPDX-License-Identifier: Apache-2.0
// Zeroed memory of exactly a given length, page-aligned, as a mapping would be; ASan guards its end.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

namespace terrace {

class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    if (::posix_memalign(&memory, 4096, bytes) != 0) std::abort();
    memory_.reset(static_cast<std::byte*>(memory));
    std::memset(memory, 0, bytes);
  }
  std::span<std::byte> span() { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_;
};

}  // namespace terrace
