// SPDX-License-Identifier: Apache-2.0
// Children with memory of their own that are not made by fork(): glibc's clone, and fork, clone and clone3 by
// number. What shares its parent's memory (vfork, threads, posix_spawn) needs nothing.
#include <linux/sched.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "allocator/preload/fork/fork.h"
#include "allocator/preload/libc/export.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/libc/raw_calls.h"

namespace terrace::preload {
namespace {

struct Numbered {
  long number, arguments[5];
};

pid_t make_numbered(void* argument) {
  const auto& call = *static_cast<const Numbered*>(argument);
  return static_cast<pid_t>(terrace_raw_call(call.number, call.arguments[0], call.arguments[1],
                                             call.arguments[2], call.arguments[3], call.arguments[4]));
}

struct Cloned {
  int (*function)(void*);
  void* argument;
  void* stack;
  int flags;
  void *parent_tid, *tls, *child_tid;
};

// The child's first function, with its own copy of the parent's record.
int run_clone(void* record) {
  const Cloned mine = *static_cast<const Cloned*>(record);
  begin_child();
  return mine.function(mine.argument);
}

pid_t make_clone(void* record) {
  const auto& call = *static_cast<const Cloned*>(record);
  return next.clone(run_clone, call.stack, call.flags, record, call.parent_tid, call.tls, call.child_tid);
}

}  // namespace

bool fork_by_number(long number, long a, long b, long c, long d, long e, long* result) {
  // With a stack of its own the child comes back where this function's frame is not.
  if (number == SYS_clone && ((a & CLONE_VM) != 0 || b != 0)) return false;
  if (number == SYS_clone3) {
    clone_args wanted{};
    const auto bytes = static_cast<size_t>(b);
    if (a == 0) return false;
    memcpy(&wanted, reinterpret_cast<const void*>(a), bytes < sizeof(wanted) ? bytes : sizeof(wanted));
    if ((wanted.flags & CLONE_VM) != 0 || wanted.stack != 0) return false;
  }
  Numbered call{number, {a, b, c, d, e}};
  *result = fork_safely(make_numbered, &call);
  return true;
}

}  // namespace terrace::preload

using namespace terrace::preload;

TERRACE_EXPORT int clone(int (*function)(void*), void* stack, int flags, void* argument, ...) {
  va_list list;
  va_start(list, argument);
  void* const parent_tid = va_arg(list, void*);
  void* const tls = va_arg(list, void*);
  void* const child_tid = va_arg(list, void*);
  va_end(list);
  if (!ready()) {
    errno = EAGAIN;
    return -1;
  }
  if ((flags & CLONE_VM) != 0 || function == nullptr || stack == nullptr)
    return next.clone(function, stack, flags, argument, parent_tid, tls, child_tid);
  Cloned call{function, argument, stack, flags, parent_tid, tls, child_tid};
  return fork_safely(make_clone, &call);
}
