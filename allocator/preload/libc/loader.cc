// SPDX-License-Identifier: Apache-2.0
// dlopen without RTLD_DEEPBIND. A library that is opened so would call the C library's malloc, free and fork
// past this one's, and free with the one what the other made. (Sanitizers refuse such a dlopen for the same
// reason.)
//
// The call goes on by a jump: dlopen looks at who calls it, for its search path and its namespace.
#include <dlfcn.h>

#include <atomic>

#include "allocator/preload/libc/message.h"
#include "allocator/preload/libc/next_functions.h"

using namespace terrace::preload;

// The next dlopen.
extern "C" __attribute__((visibility("hidden"))) void* terrace_find_dlopen() {
  if (!ready()) fatal("dlopen while this library looks up the next malloc");
  return reinterpret_cast<void*>(next.dlopen);
}

extern "C" __attribute__((visibility("hidden"))) void terrace_note_deepbind() {
  static constinit std::atomic<bool> said{false};
  if (!said.exchange(true, std::memory_order_relaxed))
    say("dlopen with RTLD_DEEPBIND: opened without it, since the program has one heap (said once)");
}

__asm__(R"(
  .text
  .globl dlopen
  .type dlopen, @function
dlopen:
  .cfi_startproc
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  testl $8, %esi
  jz 1f
  call terrace_note_deepbind
1:
  call terrace_find_dlopen
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  andl $-9, %esi
  jmp *%rax
  .cfi_endproc
  .size dlopen, .-dlopen
)");
static_assert(RTLD_DEEPBIND == 8);
