// SPDX-License-Identifier: Apache-2.0
// syscall(), for programs that make by number what this library exports by name, and the calls that lead to a
// filter of system calls. What is made by inline instructions is not seen.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "allocator/preload/fork/fork.h"
#include "allocator/preload/interpose/futexes.h"
#include "allocator/preload/interpose/pinning_calls.h"
#include "allocator/preload/interpose/seccomp_filters.h"
#include "allocator/preload/libc/export.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/libc/raw_calls.h"
#include "allocator/preload/window/mapped_blocks.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/supervisor_link.h"

#undef mmap
#undef munmap
#undef mremap

namespace terrace::preload {
namespace {

constexpr long futex_wait_number = 455, futex_requeue_number = 456;  // Linux 6.7

// The program filters its system calls: that may kill for what the engine's thread does, or for a socket. From
// the first filter on nothing is looked at any more, since that may kill too.
void before_filter() {
  quit_engine(supply::EndReason::filters);
  forbid_links();
}

void* pointer(long value) {
  return reinterpret_cast<void*>(value);
}

// What this library answers instead of the kernel. False: the kernel is asked.
bool answer(long number, long a, long b, long c, long d, long e, long* result) {
  const auto bytes = static_cast<size_t>(b);
  switch (number) {
    case SYS_read:
    case SYS_write:
    case SYS_pread64:
    case SYS_pwrite64: return transfer_by_number(number, a, pointer(b), static_cast<size_t>(c), d, result);
    case SYS_mprotect: *result = mprotect(pointer(a), bytes, static_cast<int>(c)); return true;
    case SYS_pkey_mprotect:
      *result = pkey_mprotect(pointer(a), bytes, static_cast<int>(c), static_cast<int>(d));
      return true;
    case SYS_munmap: *result = munmap(pointer(a), bytes); return true;
    case SYS_mremap:
      *result = reinterpret_cast<long>(
          mremap(pointer(a), bytes, static_cast<size_t>(c), static_cast<int>(d), pointer(e)));
      return true;
    case SYS_madvise: *result = madvise(pointer(a), bytes, static_cast<int>(c)); return true;
    case SYS_mlock: *result = mlock(pointer(a), bytes); return true;
    case SYS_mlock2: *result = mlock2(pointer(a), bytes, static_cast<unsigned>(c)); return true;
    case SYS_munlock: *result = munlock(pointer(a), bytes); return true;
    case SYS_mlockall: *result = mlockall(static_cast<int>(a)); return true;
    case SYS_munlockall: *result = munlockall(); return true;
    case SYS_remap_file_pages:
      *result =
          remap_file_pages(pointer(a), bytes, static_cast<int>(c), static_cast<size_t>(d), static_cast<int>(e));
      return true;
    case SYS_vmsplice:
      *result = vmsplice(static_cast<int>(a), static_cast<const iovec*>(pointer(b)), static_cast<size_t>(c),
                         static_cast<unsigned>(d));
      return true;
    case SYS_fork:
    case SYS_clone:
    case SYS_clone3: return fork_by_number(number, a, b, c, d, e, result);
    default: return false;
  }
}

void look(long number, long a, long b, long c, long e) {
  switch (number) {
    case SYS_io_uring_setup: return ring_made();
    // Its owner expects faults and holes, which files' pages do not have.
    case SYS_userfaultfd: return stop_serving_mappings();
    case SYS_io_submit: return hold_requests_for_good(b, static_cast<struct iocb**>(pointer(c)));
    case SYS_seccomp:
      if (!links_forbidden() && can_confine(static_cast<unsigned>(a), static_cast<unsigned>(b), pointer(c)))
        before_filter();
      return;
    case SYS_futex:
      if ((b & FUTEX_PRIVATE_FLAG) != 0) return;
      pin_futex(pointer(a), sizeof(uint32_t));
      return pin_futex(pointer(e), sizeof(uint32_t));  // of requeues; any other call's is not there
    case SYS_futex_waitv: return pin_waiters(pointer(a), static_cast<size_t>(b));
    case futex_wait_number: return pin_futex(pointer(a), sizeof(uint32_t));
    case futex_requeue_number: return pin_waiters(pointer(a), 2);
    default: return;
  }
}

}  // namespace
}  // namespace terrace::preload

using namespace terrace::preload;

struct Answer {
  long given;
  long result;
};

// A system call of `watched` below; the registers are those of syscall().
extern "C" __attribute__((visibility("hidden"))) Answer terrace_before_syscall(long number, long a, long b,
                                                                               long c, long d, long e) {
  Answer now{0, 0};
  if (number == SYS_mmap || !ready()) return now;
  if (answer(number, a, b, c, d, e, &now.result))
    now.given = 1;
  else
    look(number, a, b, c, e);
  return now;
}

// Six arguments: the last one is on the stack.
extern "C" __attribute__((visibility("hidden"))) long terrace_mmap_by_number(long a, long b, long c, long d,
                                                                             long e, long f) {
  return reinterpret_cast<long>(mmap(pointer(a), static_cast<size_t>(b), static_cast<int>(c),
                                     static_cast<int>(d), static_cast<int>(e), static_cast<off_t>(f)));
}

extern "C" __attribute__((visibility("hidden"))) long terrace_syscall_failed(long result) {
  errno = static_cast<int>(-result);
  return -1;
}

// Bits of the numbers that terrace_before_syscall() wants to see.
namespace {
constexpr size_t watched_words = 8;
struct WatchedNumbers {
  uint64_t words[watched_words] = {};
  constexpr WatchedNumbers() {
    for (long number :
         {long{SYS_read},        long{SYS_write},         long{SYS_pread64},          long{SYS_pwrite64},
          long{SYS_mprotect},    long{SYS_pkey_mprotect}, long{SYS_munmap},           long{SYS_mremap},
          long{SYS_madvise},     long{SYS_mlock},         long{SYS_mlock2},           long{SYS_munlock},
          long{SYS_mlockall},    long{SYS_munlockall},    long{SYS_remap_file_pages}, long{SYS_vmsplice},
          long{SYS_fork},        long{SYS_clone},         long{SYS_clone3},           long{SYS_io_uring_setup},
          long{SYS_io_submit},   long{SYS_userfaultfd},   long{SYS_seccomp},          long{SYS_futex},
          long{SYS_futex_waitv}, futex_wait_number,       futex_requeue_number})
      words[number / 64] |= uint64_t{1} << number % 64;
  }
};
}  // namespace
extern "C" __attribute__((visibility("hidden"), used)) constinit const WatchedNumbers terrace_watched_numbers{};

// As glibc's, to the stack's last word: it may be called for a vfork, which returns twice.
__asm__(R"(
  .text
  .globl syscall
  .type syscall, @function
syscall:
  .cfi_startproc
  cmpq $9, %rdi
  je 4f
  cmpq $511, %rdi
  ja 1f
  btq %rdi, terrace_watched_numbers(%rip)
  jc 2f
1:
  movq %rdi, %rax
  movq %rsi, %rdi
  movq %rdx, %rsi
  movq %rcx, %rdx
  movq %r8, %r10
  movq %r9, %r8
  movq 8(%rsp), %r9
  syscall
  cmpq $-4095, %rax
  jae 3f
  ret
2:
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  pushq %rdx
  .cfi_adjust_cfa_offset 8
  pushq %rcx
  .cfi_adjust_cfa_offset 8
  pushq %r8
  .cfi_adjust_cfa_offset 8
  pushq %r9
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call terrace_before_syscall
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %r9
  .cfi_adjust_cfa_offset -8
  popq %r8
  .cfi_adjust_cfa_offset -8
  popq %rcx
  .cfi_adjust_cfa_offset -8
  movq %rax, %r10
  movq %rdx, %rax
  popq %rdx
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  testq %r10, %r10
  jz 1b
  ret
3:
  movq %rax, %rdi
  jmp terrace_syscall_failed
4:
  movq %rsi, %rdi
  movq %rdx, %rsi
  movq %rcx, %rdx
  movq %r8, %rcx
  movq %r9, %r8
  movq 8(%rsp), %r9
  jmp terrace_mmap_by_number
  .cfi_endproc
  .size syscall, .-syscall
)");
static_assert(SYS_mmap == 9);

// The other way to a filter, which is for the calling thread alone: what it starts later inherits it, and so
// would the engine's thread.
TERRACE_EXPORT int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  long arguments[4];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (option == PR_SET_SECCOMP && ready() && !links_forbidden() &&
      can_confine_by_prctl(static_cast<unsigned long>(arguments[0]), pointer(arguments[1])))
    before_filter();
  return static_cast<int>(
      terrace_raw_call(SYS_prctl, option, arguments[0], arguments[1], arguments[2], arguments[3]));
}
