// SPDX-License-Identifier: Apache-2.0
// The users of a device that is about to be taken over or taken apart: processes that have it mapped or open,
// mounts, the kernel. Changes by a file system or another process during the check are not seen: this is for
// messages to people.
//
// Place     daemon/memory/pmem; reads /proc and /sys only.
// Threads   Any.
// Errors    as os_error, if a check failed for want of descriptors or memory: the answer then is unknown, which
//           must not be taken for "no users"
#pragma once

#include <string>

#include "daemon/memory/pmem/pmem_kernel.h"

namespace terrace::daemon {

// Of a namespace's device: "process 12 (vllm)", "mounted at /mnt"; empty: nobody that can be seen. `root` is
// put before /proc and /sys.
Result<std::string> pmem_users(const PmemNamespace& one, const std::string& root = "");

// Of the dax devices that lie in that range of physical addresses: "dax0.1: process 12 (vllm)", "dax0.0: the
// kernel, as memory of node 1"; empty: nobody that can be seen.
Result<std::string> dax_users(uint64_t start, uint64_t bytes, const std::string& root = "");

}  // namespace terrace::daemon
