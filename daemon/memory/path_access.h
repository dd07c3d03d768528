// SPDX-License-Identifier: Apache-2.0
// A memory object by a path, for one user more: an entry in the access control list of its file or device node.
// The owner and the mode stay the manager's, so that this user can neither hand the right on nor remove the file.
//
// The right is part of the inode: a fence leaves it and takes the memory; scrub() removes the file, a re-bound
// device gets a new node, a hand-over a new file, all without it.
//
// Nobody is told who opens it. What such a program can see is a time on the inode: while the lease is being taken back,
// the file's modification time lies in the future, at the end of the grace.
//
// Place     daemon/rpc and daemon/agent, for Lease.openPath and for revocations.
// Threads   One for each object and its directory at a time: a list is read, changed and written back.
#pragma once

#include <sys/types.h>

#include <string>

#include "core/base/result.h"
#include "daemon/memory/objects.h"

namespace terrace::daemon {

// Lets `user` open the object behind `fd`, and pass through the directory it lies in where that one is this
// process's own. A right to write that the user has already stays. Root needs none.
// Returns   the absolute path, as this process sees it
// Errors    permission_denied  a folder above the object's own is closed to the user; names it
//           not_found          the object has no name any more: its lease has ended
//           unsupported        the file system has no access control lists
//           limit_exceeded     32 users have been let in already
//           os errors
Result<std::string> allow_by_path(int fd, uid_t user, ObjectAccess access);

// Shows on the inode behind `fd` that its memory is taken away in `grace_ns`: as its modification time, by the wall
// clock. Who watches the file (inotify) is told of the change. A write(2) by a holder sets the time again.
// Errors    os errors
Status show_end_of_grace(int fd, uint64_t grace_ns);

// Whether the path of a lease's memory stays for the lease's life: `unsupported` for a movable one.
Status path_stays(uint64_t lease, bool movable, OnFence on_fence);
// What somebody is told who asks for another user and may not.
Error other_user_refused(const char* where);

}  // namespace terrace::daemon
