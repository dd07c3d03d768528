// Who uses the device of a namespace that is about to be taken over: processes that have it mapped or open, and
// mounts. What a file system or another process does meanwhile cannot be seen: this is for telling people.
//
// Place     daemon/backend; reads /proc and /sys only.
// Threads   Any.
#pragma once

#include <string>

#include "daemon/backend/pmem_kernel.h"

namespace terrace::daemon {

// "process 12 (vllm)", "mounted at /mnt"; empty: nobody that can be seen. `root` is put before /proc and /sys.
std::string pmem_users(const PmemNamespace& one, const std::string& root = "");

}  // namespace terrace::daemon
