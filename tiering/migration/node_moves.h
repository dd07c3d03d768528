// SPDX-License-Identifier: Apache-2.0
// Moves between two memory nodes: the bytes stay in their memory file, its pages go to another node.
//
// Place     TieredMemory with two nodes → here → move_pages(2) and mbind(2).
// Threads   Any; one for a granule at a time. Others use the memory meanwhile: an access waits for the copy of
//           the page that it wants (2 MiB where that is huge).
// Memory    libc only (the system calls themselves, no libnuma); 8 KiB of stack.
//
// The kernel moves below the mappings, which a Mover replaces: addresses, mappings, shared futexes and the view
// of a fork do not change. It does not move pages that are pinned for a device or a pipe. It skips pages
// without a translation in this process, as a sampler leaves them: those get one first. It also skips pages
// that another process or a second mapping has touched: so there is no alias of such a file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiering/migration/mover.h"

namespace terrace::tiering {

// What is asked of the kernel, so that a test can be one with two nodes.
struct NodeCalls {
  // move_pages(2) of this process; `nodes` nullptr: `status` says where they are. -1 with errno, or how many
  // did not go; their `status` may be left as it was.
  long (*move_pages)(unsigned long count, void** pages, const int* nodes, int* status);
  // mbind(2): new pages of what is mapped there come from `node`, as long as it has any. 0, or -1 with errno.
  long (*prefer)(void* at, unsigned long bytes, int node);
};
extern const NodeCalls kernel_node_calls;

// Granules of the memory file `fd` and where they are mapped.
struct NodePart {
  char* at = nullptr;
  uint64_t bytes = 0;
  int fd = -1;
  uint64_t offset = 0;
  uint64_t granule_bytes = 0;
};

// What a part may leave behind and still be said to be there: a 64th of a granule (single pinned pages).
inline constexpr uint64_t left_behind_share = 64;

// Pages of the part that do not exist yet will come from `node`. 0 or an errno: EINVAL (no such node, or not
// for this process's cpuset), EPERM (a container's seccomp filter). The range's own mapping is not split.
int prefer_node(const NodeCalls& calls, const NodePart& part, int node);

// 0, or an errno, and then all that can is on `from` again: EBUSY (pinned), ENOMEM (no room on `to`), EACCES
// (mapped by somebody else too), others as the kernel says. Holes of the file are filled. What is waited for
// which page is the kernel's affair: both times are that of the whole call, an upper bound of any stall.
int move_to_node(const NodeCalls& calls, const NodePart& part, int from, int to, MoveTimes* times);

}  // namespace terrace::tiering
