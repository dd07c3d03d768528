// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/guard_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/time_slice.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"

namespace terrace::daemon {
namespace {

bool leave_oom_killer() {
  constexpr char never[] = "-1000";
  const UniqueFd file(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  return file.valid() && ::write(file.get(), never, sizeof(never) - 1) == sizeof(never) - 1;
}

bool take_real_time() {
  sched_param parameters{};
  parameters.sched_priority = ::sched_get_priority_min(SCHED_FIFO);
  return ::sched_setscheduler(0, SCHED_FIFO, &parameters) == 0;
}

}  // namespace

std::vector<std::string> protect_guard() {
  std::vector<std::string> lacks;
  const auto lack = [&lacks](const char* what) {
    lacks.push_back(std::string(what) + ": " + std::strerror(errno));
  };
  // What was never touched has no memory to keep; what was stays.
  if (::mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0) lack("its memory may be swapped out");
  if (!leave_oom_killer()) lack("the kernel may end it when memory is short");
  if (!take_real_time()) {
    lack("it has no real-time priority");
    [[maybe_unused]] const Result<uint64_t> slice = take_short_slice();
  }
  return lacks;
}

void sleep_until_boot_ns(uint64_t at_ns) {
  timespec until{};
  until.tv_sec = static_cast<time_t>(at_ns / ns_per_s);
  until.tv_nsec = static_cast<long>(at_ns % ns_per_s);
  ::clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &until, nullptr);  // a signal: its caller looks again anyway
}

}  // namespace terrace::daemon
