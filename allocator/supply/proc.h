// SPDX-License-Identifier: Apache-2.0
// Processes and their mappings, read from /proc.
//
// Errors    A process that has ended, or may not be read (PR_SET_DUMPABLE, a program that is executable only),
//           has no mappings here: "unknown", never "maps nothing". A living process always has some.
// Threads   Any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::supply {

struct MappedRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t device = 0;  // as st_dev
  uint64_t inode = 0;   // 0: anonymous
  uint64_t rss_bytes = 0;
  uint64_t anonymous_bytes = 0;
};

// From /proc/PID/maps (rss_bytes and anonymous_bytes stay 0). Where the first thread has ended and others go
// on, from one of those.
std::vector<MappedRange> read_maps(pid_t pid);
// From /proc/PID/smaps: walks the page tables of the process, some 10 ms per GiB of small pages.
std::vector<MappedRange> read_smaps(pid_t pid);

// Anonymous memory that is resident, of all mappings. 0: not known.
uint64_t anonymous_bytes(pid_t pid);

// No thread of the process runs any more. Without a pidfd, so only for want of one: `pid` may have been reused.
bool has_ended(pid_t pid);

std::vector<pid_t> all_processes();
// Children, grandchildren, ... of `root`, without it.
std::vector<pid_t> descendants(pid_t root);

// Of this process: how many filters (before Linux 5.9: 2 when there are any).
uint64_t seccomp_filters();

// The kernel's name of the process (15 bytes), "?" when it is gone and in the place of what is not printable
// ASCII.
std::string process_name(pid_t pid);

}  // namespace terrace::supply
