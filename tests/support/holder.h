// SPDX-License-Identifier: Apache-2.0
// What the test clients that hold leases share: lines that are out before the next step begins, memory that
// is stamped page by page, and reads that survive the memory being taken away.
//
// Threads   say() from any thread; the others from the one that touches the memory.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "terrace/session.h"

namespace terrace::test {

inline constexpr size_t page_bytes = 4096;

// One line to stdout in one write(2), so that a driver that reads it knows it happened before anything later.
void say(const std::string& line);

// "emu:a:0:2097152,emu:b:4194304:2097152" (serial, offset, length)
std::string extents_text(const LeaseInfo& info);

// The first byte that is not zero, or the size when all are.
size_t first_nonzero(std::span<const std::byte> bytes);

// Writes a value made from `owner` and the page's number at the start of each page.
void stamp(std::span<std::byte> bytes, uint64_t owner);
// The offset of the first page that does not carry its stamp, or the size when all do.
size_t first_unstamped(std::span<const std::byte> bytes, uint64_t owner);

// From here on SIGBUS within touch() ends that touch() instead of the process; elsewhere it kills as usual.
void install_sigbus_guard();

namespace detail {
extern thread_local sigjmp_buf* guard;
}

// Runs `access`, which must own nothing (no destructors: it may be left by a jump).
// Returns   false when the memory was gone (SIGBUS).
template <typename Access>
bool touch(const Access& access) {
  sigjmp_buf here;
  detail::guard = &here;
  const bool survived = sigsetjmp(here, 1) == 0;
  if (survived) access();
  detail::guard = nullptr;
  return survived;
}

}  // namespace terrace::test
