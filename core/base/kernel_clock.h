// SPDX-License-Identifier: Apache-2.0
// The kernel's clocks, read directly: for measuring and for pausing. What decides takes a Clock (clock.h).
//
// Units     Nanoseconds, comparable between processes, within one boot only.
#pragma once

#include <time.h>

#include <cstdint>

namespace terrace {

inline uint64_t read_kernel_clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Stands still while the machine sleeps.
inline uint64_t monotonic_ns() {
  return read_kernel_clock_ns(CLOCK_MONOTONIC);
}

// Goes on while the machine sleeps: what leases and ages are taken by.
inline uint64_t boot_ns() {
  return read_kernel_clock_ns(CLOCK_BOOTTIME);
}

}  // namespace terrace
