// SPDX-License-Identifier: Apache-2.0
// Time as a seam: code that decides takes `now_ns` as a value or a Clock by reference, never the kernel's.
//
// Units     Nanoseconds of CLOCK_BOOTTIME: monotonic, and it goes on during suspend, so that a lease
//           does not outlive its time on a laptop that slept. Comparable within one boot only.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t now_ns() const = 0;
  // The boot that its time belongs to; read_boot_id().
  virtual std::string boot_id() const;
};

// The kernel's clock. Threads: any.
class SystemClock final : public Clock {
 public:
  uint64_t now_ns() const override;
};

// A clock that a test or a simulation sets. Threads: one.
class ManualClock final : public Clock {
 public:
  uint64_t now_ns() const override { return now_ns_; }
  void advance_ns(uint64_t ns) { now_ns_ += ns; }

 private:
  uint64_t now_ns_ = 1;
};

// Identifies this boot of the kernel (/proc/sys/kernel/random/boot_id); empty when unreadable.
std::string read_boot_id();

// Wall-clock nanoseconds since 1970, for logs and records that people read; never for decisions.
uint64_t wall_clock_ns();

}  // namespace terrace
