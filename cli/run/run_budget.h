// SPDX-License-Identifier: Apache-2.0
// The default budgets of a run without sizes on its command line: DDR by the free memory of the machine and its
// control groups, CXL by the free memory of the pools. These are upper bounds: the manager enforces quotas and
// reservations with each lease.
//
// Place     Below cli/run/run_start.cc.
// Threads   Any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/session.h"

namespace terrace::cli {

// Memory that this process could still use: what the machine has available, or less where a control group
// (v1 or v2) of this process or above it leaves less. 0: that is not known. `proc` and `cgroup` are where those
// file systems are.
uint64_t available_memory_bytes(const std::string& proc = "/proc",
                                const std::string& cgroup = "/sys/fs/cgroup");

// Half of what is available, in whole granules, and at least some of them: the rest of the machine and other
// runs want memory as well.
uint64_t default_ddr_bytes(uint64_t available_bytes);

// Of the pools that can grant something, the one with the most that is free; nullptr: none has anything.
const PoolInfo* roomiest(const std::vector<PoolInfo>& pools);

// What `pool` can grant in whole granules, at most 1 TiB: the engine looks at each granule of the window.
uint64_t default_cxl_bytes(const PoolInfo& pool);

}  // namespace terrace::cli
