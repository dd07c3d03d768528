// SPDX-License-Identifier: Apache-2.0
#include "core/base/time_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace terrace {
namespace {

// The kernel's struct sched_attr of its first version; Debian 12's headers have it where sched.h cannot see it.
struct SchedulerAttributes {
  uint32_t size = sizeof(SchedulerAttributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;
  uint64_t deadline = 0;
  uint64_t period = 0;
};

Result<SchedulerAttributes> attributes_in_force() {
  SchedulerAttributes attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0)
    return os_error(errno, "sched_getattr", "cannot read how this thread is scheduled");
  return attributes;
}

}  // namespace

Result<uint64_t> take_short_slice() {
  TERRACE_ASSIGN_OR_RETURN(SchedulerAttributes attributes, attributes_in_force());
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return uint64_t{0};
  if (attributes.runtime != 0 && attributes.runtime <= short_slice_ns) return attributes.runtime;
  attributes.size = sizeof(attributes);
  attributes.runtime = short_slice_ns;
  if (::syscall(SYS_sched_setattr, 0, &attributes, 0) != 0)
    return os_error(errno, "sched_setattr", "cannot ask for a short time slice");
  TERRACE_ASSIGN_OR_RETURN(attributes, attributes_in_force());
  return attributes.runtime;
}

Status take_usual_slice() {
  TERRACE_ASSIGN_OR_RETURN(SchedulerAttributes attributes, attributes_in_force());
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return {};
  attributes.size = sizeof(attributes);
  attributes.runtime = 0;
  if (::syscall(SYS_sched_setattr, 0, &attributes, 0) != 0)
    return os_error(errno, "sched_setattr", "cannot ask for the usual time slice");
  return {};
}

}  // namespace terrace
