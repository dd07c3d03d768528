// Buffers that the program has registered with an io_uring, over forks.
//
// The kernel keeps the pages of such a buffer, and reads and writes those whatever is mapped at its addresses
// later. A private mapping in their place, as a fork's switch makes it (fork.cc), would part the two at the next
// store: nobody would see what the ring writes. So they stay as they are in the parent, and the child gets a
// copy, which is what a kernel does with pinned pages of anonymous memory.
//
// Which buffers those are, the kernel is asked at each fork: it lists them with each ring's descriptor, however
// the ring was made. Not seen: rings without a descriptor (IORING_SETUP_REGISTERED_FD_ONLY); what devices
// have registered (RDMA, CUDA); rings of provided buffers in memory of the program's own
// (IORING_REGISTER_PBUF_RING); what another thread registers during the fork.
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
