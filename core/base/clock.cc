// SPDX-License-Identifier: Apache-2.0
#include "core/base/clock.h"

#include <fstream>

#include "core/base/kernel_clock.h"

namespace terrace {

uint64_t SystemClock::now_ns() const {
  return boot_ns();
}

std::string Clock::boot_id() const {
  return read_boot_id();
}

std::string read_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

uint64_t wall_clock_ns() {
  return read_kernel_clock_ns(CLOCK_REALTIME);
}

}  // namespace terrace
