// SPDX-License-Identifier: Apache-2.0
// The memory nodes of pages, and the node for new pages of a file: the kernel's move_pages and mbind.
//
// Place     core/os; the numa backend binds the objects that it carves, and checks them.
// Threads   Any; plain functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/base/result.h"

namespace terrace::os {

// A part of a file, in multiples of a page.
struct FileRange {
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// Has the pages of a shared memory file that are allocated from now on come from `node` and no other, whoever
// touches them first: the policy is the file's, not this process's. No memory is taken. Beyond the file's end
// is fine.
// Errors    invalid_argument   the node has no memory
//           permission_denied  mbind is forbidden here (a container's filter)
Status bind_file(int fd, FileRange range, int node);

struct PageNodes {
  std::map<int, uint64_t> on;  // node -> how many of the pages that were looked at
  uint64_t elsewhere(int node) const;
  std::string words() const;  // "120 on node 1, 8 on node 0"
};

// Where pages of the range lie: all of them where they are `samples_max` or fewer, else so many, evenly spread,
// the first and the last among them. Pages without memory get some. A file that is cut off meanwhile is an
// error, never a signal.
// Errors    io_error      the file ends within the range, or a page has gone bad
//           unsupported   the kernel does not tell (before Linux 5.14, or a container's filter)
Result<PageNodes> nodes_of_file(int fd, FileRange range, uint64_t samples_max);

}  // namespace terrace::os
