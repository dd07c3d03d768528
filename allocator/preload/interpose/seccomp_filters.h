// SPDX-License-Identifier: Apache-2.0
// Tells calls that install a filter of system calls (seccomp, prctl) from calls that only ask for features of
// the kernel: libseccomp makes a handful of the latter at its start, and each of them fails.
//
// Threads   Any.
#pragma once

namespace terrace::preload {

// seccomp(operation, flags, filter) can succeed and confine the caller. False: the kernel refuses it for its
// arguments or the caller's rights, or it only asks. In doubt true.
bool can_confine(unsigned operation, unsigned flags, const void* filter);

// The same as prctl(PR_SET_SECCOMP, mode, filter).
bool can_confine_by_prctl(unsigned long mode, const void* filter);

}  // namespace terrace::preload
