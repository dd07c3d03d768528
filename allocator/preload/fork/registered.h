// SPDX-License-Identifier: Apache-2.0
// Buffers that the program has registered with an io_uring, over forks.
//
// The kernel keeps the pages of such a buffer, and uses them even if other pages are mapped there later. With a
// private mapping, as a fork's switch makes it (fork.cc), the program's next store would go to another page:
// the program would not see the ring's writes. So the pages stay in the parent, and the child gets a copy. The
// kernel treats pinned pages of anonymous memory in the same way.
//
// At each fork the kernel is asked for these buffers: it lists them with each ring's descriptor, for every kind
// of ring. Not seen: rings without a descriptor (IORING_SETUP_REGISTERED_FD_ONLY); buffers registered with
// devices (RDMA, CUDA); rings of provided buffers in the program's own memory (IORING_REGISTER_PBUF_RING);
// buffers that another thread registers during the fork.
//
// Place     fork_call.cc; fork.cc leaves marked pages alone (stays_shared).
// Threads   With the locks of a fork, or the only thread of its child. Allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>

namespace terrace::preload {

// There is a ring, or was. Any thread.
extern std::atomic<bool> has_ring;
// Memory that a ring has been given for its queues. Any thread; takes heap_lock.
void keep_registered(const void* address, size_t bytes);

// Marks them. False: a ring does not tell of its buffers, or no memory for the marks.
bool mark_registered();
// Copies of all marked pages, which the child inherits. False: no memory.
bool copy_registered();
void take_copies_in_child();
void drop_copies();  // of the parent, after the fork

}  // namespace terrace::preload
