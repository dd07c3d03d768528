// What /proc says about processes and their mappings.
//
// Errors    A process that ends meanwhile, or one that may not be read, has no mappings.
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

// From /proc/PID/maps (rss_bytes and anonymous_bytes stay 0).
std::vector<MappedRange> read_maps(pid_t pid);
// From /proc/PID/smaps: walks the page tables of the process, some 10 ms per GiB of small pages.
std::vector<MappedRange> read_smaps(pid_t pid);

std::vector<pid_t> all_processes();
// Children, grandchildren, ... of `root`, without it.
std::vector<pid_t> descendants(pid_t root);

// The kernel's name of the process (15 bytes), "?" when it is gone.
std::string process_name(pid_t pid);

}  // namespace terrace::supply
