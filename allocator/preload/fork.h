// fork as POSIX has it, although leased memory is shared by nature. See fork.cc.
#pragma once

#include <sys/types.h>

namespace terrace::preload {

// Calls `real` (fork or _Fork) with the window made safe for it.
// Errors    -1 and EAGAIN  leased pages could not be made private, or a signal handler that interrupted this
//                          library forks; nothing was changed.
pid_t fork_safely(pid_t (*real)());

}  // namespace terrace::preload
