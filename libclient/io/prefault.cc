// SPDX-License-Identifier: Apache-2.0
#include "libclient/io/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <system_error>

#include "core/base/units.h"

namespace terrace {
namespace {

constexpr uint64_t page_bytes = 4096;
constexpr uint64_t step_bytes = 4 * mib;        // how soon the thread notices that it should end
constexpr uint64_t worthwhile_bytes = 8 * mib;  // less is read before a thread has started

void populate(const std::stop_token& stop, std::span<std::byte> memory) {
  while (!memory.empty() && !stop.stop_requested()) {
    const size_t bytes = std::min<size_t>(memory.size(), step_bytes);
    // A fenced lease gives an error here, not SIGBUS; the transfer then reports it.
    if (::madvise(memory.data(), bytes, MADV_POPULATE_WRITE) != 0) return;
    memory = memory.subspan(bytes);
  }
}

}  // namespace

Prefault::Prefault(std::span<std::byte> memory) : Prefault(std::span<const std::span<std::byte>>{&memory, 1}) {}

Prefault::Prefault(std::span<const std::span<std::byte>> parts) {
  std::vector<std::span<std::byte>> whole;  // of whole pages
  uint64_t bytes = 0;
  for (const std::span<std::byte> part : parts) {
    const uint64_t skip = (page_bytes - reinterpret_cast<uintptr_t>(part.data()) % page_bytes) % page_bytes;
    if (part.size() <= skip) continue;
    whole.push_back(part.subspan(skip));
    bytes += whole.back().size();
  }
  if (bytes < worthwhile_bytes) return;
  try {
    thread_ = std::jthread([whole](const std::stop_token& stop) {
      for (const std::span<std::byte> part : whole) populate(stop, part);
    });
  } catch (const std::system_error&) {
    // The transfer touches the pages itself.
  }
}

}  // namespace terrace
