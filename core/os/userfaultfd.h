// SPDX-License-Identifier: Apache-2.0
// Opens a userfaultfd of this process, or says why that is not possible.
//
// Place     core/os; the library and `terrace doctor`. The engine inside unmodified programs has its own code.
// Threads   Any.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::os {

// A userfaultfd (O_CLOEXEC, O_NONBLOCK) that sees the kernel's faults as well, with its handshake done and at
// least `features` (UFFD_FEATURE_*) on. Of `device_fd`, an open /dev/userfaultfd, which Session's
// userfaultfd_device() gives to whoever may not open it; -1: by the system call, then by opening the device.
// Errors    permission_denied  this process may do neither; says what would help
//           unsupported        the kernel has no userfaultfd, or not all of the features; names those
//           io_error, limit_exceeded (no descriptor left)
Result<UniqueFd> open_userfaultfd(int device_fd, uint64_t features);

// The features that the kernel gives a new userfaultfd of `device_fd`, as UFFDIO_API answers.
// Errors    as above
Result<uint64_t> userfaultfd_features(int device_fd);

// The names of what is set in `features`, as in <linux/userfaultfd.h>: "EVENT_REMAP, WP_HUGETLBFS_SHMEM"; "bit
// 60" for one that this build does not know.
std::string userfaultfd_feature_names(uint64_t features);

}  // namespace terrace::os
