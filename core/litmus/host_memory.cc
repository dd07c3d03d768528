// SPDX-License-Identifier: Apache-2.0
#include "core/litmus/host_memory.h"

#include <sched.h>
#include <time.h>

#include <span>

#include "core/base/kernel_clock.h"
#include "core/os/erase.h"

namespace terrace::litmus {
namespace {

// The other side is a few microseconds away mostly; then the processor is somebody else's; and when it does not
// come at all, nothing is gained by looking all the time.
constexpr uint64_t turns_at_once = 200;
constexpr uint64_t turns_yielding = 20'000;
constexpr timespec nap{.tv_sec = 0, .tv_nsec = 200'000};

}  // namespace

// clflush drops a line also from where it is dirty, after writing it back: publish and refresh in one.
void HostMemory::flush(const uint64_t* at, size_t bytes) {
  os::flush({const_cast<std::byte*>(reinterpret_cast<const std::byte*>(at)), bytes});
}

bool HostMemory::wait(uint64_t turn) {
  if (turn == 0) began_ns_ = monotonic_ns();
  if (abandoned_ != nullptr && abandoned_->load(std::memory_order_relaxed)) return false;
  if (turn < turns_at_once) {
    pause();
    return true;
  }
  if (turn < turns_yielding) {
    ::sched_yield();
  } else {
    ::nanosleep(&nap, nullptr);
  }
  return monotonic_ns() - began_ns_ < patience_ns_;
}

void HostMemory::pause() const {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace terrace::litmus
