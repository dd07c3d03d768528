// SPDX-License-Identifier: Apache-2.0
#include "terrace/visibility.h"

#include <cerrno>
#include <string_view>

#include "core/layout/tensor_space.h"
#include "libclient/coherence/memory/noncoherent_memory.h"

namespace {

using terrace::coherence::CoherentMemory;
using terrace::coherence::NonCoherentMemory;
using terrace::coherence::Step;

constexpr uint32_t publish = 1;
constexpr uint32_t acquire = 2;

template <typename Memory>
void carry_out(Memory memory, uint32_t operation, const void* at, size_t bytes) {
  if (operation == publish)
    memory.write_back(at, bytes, Step::none);
  else
    memory.invalidate(at, bytes, Step::none);
  memory.full_barrier(Step::none);
}

}  // namespace

extern "C" int lmcache_shared_l1_visibility_v1(const char* mode, uint32_t operation, int device_fd,
                                               void* mapped_address, uint64_t device_offset, size_t length,
                                               uint64_t /*generation*/) {
  constexpr uintptr_t line = terrace::layout::cache_line_bytes;
  if (mode == nullptr || (operation != publish && operation != acquire)) return -EINVAL;
  const std::string_view name(mode);
  const bool coherent = name == "coherent";
  if (!coherent && name != "software_fenced" && name != "noncoherent") return -EINVAL;
  if (device_fd < 0) return -EBADF;
  const auto address = reinterpret_cast<uintptr_t>(mapped_address);
  uintptr_t end = 0;
  if (address == 0 || address % line != 0 || device_offset % line != 0 ||
      __builtin_add_overflow(address, length, &end) || end > UINTPTR_MAX - line)
    return -EINVAL;
  if (coherent) {
    carry_out(CoherentMemory(), operation, mapped_address, length);
    return 0;
  }
  if (!NonCoherentMemory::supported()) return -ENOTSUP;
  carry_out(NonCoherentMemory(), operation, mapped_address, length);
  return 0;
}
