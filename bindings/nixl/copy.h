// SPDX-License-Identifier: Apache-2.0
// One copy, and what makes it right between hosts without coherent caches. Knows neither NIXL nor leases: a test runs it
// on emulated hosts (tests/coherence/nixl_copy_test.cc).
//
// The source's lines are dropped from this host's caches before they are read, the target's are written back after they
// were written. A line at the edge of a target, of which only a part is written, is dropped before: what is fetched
// then, and written back with the part, is the rest of it as it is in the memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::nixl {

inline constexpr uintptr_t cache_line_bytes = 64;

struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
  bool acquire = false;  // `from` is memory without coherent caches
  bool publish = false;  // `to` is
};

// Lines::acquire(at, bytes): this host's next loads of the lines of a range ask the memory.
// Lines::acquire_edge(at): the same of the one line there.
// Lines::publish(at, bytes): this host's stores to them have reached the memory.
// Lines::copy(to, from, bytes)
template <typename Lines>
void copy_by(const Lines& lines, const Copy& one) {
  if (one.bytes == 0) return;
  if (one.acquire) lines.acquire(one.from, one.bytes);
  if (one.publish) {
    const auto first = reinterpret_cast<uintptr_t>(one.to), end = first + one.bytes;
    if (first % cache_line_bytes != 0) lines.acquire_edge(one.to);
    if (end % cache_line_bytes != 0) lines.acquire_edge(one.to + one.bytes - 1);
  }
  lines.copy(one.to, one.from, one.bytes);
  if (one.publish) lines.publish(one.to, one.bytes);
}

}  // namespace terrace::nixl
