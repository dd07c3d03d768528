// SPDX-License-Identifier: Apache-2.0
// The kernel's own checks of the arguments that a program confines itself with. What is not looked at counts as
// good.
#include "allocator/preload/interpose/seccomp_filters.h"

#include <errno.h>
#include <linux/bpf_common.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace terrace::preload {
namespace {

// Newer than some headers: Linux 5.7 and 5.19.
constexpr unsigned flag_tsync = 1u << 0, flag_new_listener = 1u << 3, flag_tsync_esrch = 1u << 4,
                   flag_wait_killable = 1u << 5;
constexpr unsigned flags_known = (1u << 6) - 1;

// The kernel can read there. Asked by a call that hardly any filter of before forbids: a wait for a word that
// ends at once.
bool is_readable(const void* from, size_t bytes) {
  constexpr uintptr_t page = 4096;
  const auto begin = reinterpret_cast<uintptr_t>(from);
  const uintptr_t last = begin + bytes - 1;
  if (last < begin) return false;
  const int saved = errno;
  bool readable = true;
  for (uintptr_t at = begin; readable && at <= last; at = (at / page + 1) * page) {
    const timespec at_once{};
    readable = ::syscall(SYS_futex, at & ~uintptr_t{3}, FUTEX_WAIT_PRIVATE, 0, &at_once, nullptr, 0) == 0 ||
               errno != EFAULT;
  }
  errno = saved;
  return readable;
}

// seccomp's subset of classic BPF.
bool is_known(uint16_t code) {
  switch (code) {
    case BPF_LD | BPF_W | BPF_ABS:
    case BPF_LD | BPF_W | BPF_LEN:
    case BPF_LDX | BPF_W | BPF_LEN:
    case BPF_LD | BPF_IMM:
    case BPF_LDX | BPF_IMM:
    case BPF_LD | BPF_MEM:
    case BPF_LDX | BPF_MEM:
    case BPF_ST:
    case BPF_STX:
    case BPF_MISC | BPF_TAX:
    case BPF_MISC | BPF_TXA:
    case BPF_RET | BPF_K:
    case BPF_RET | BPF_A:
    case BPF_ALU | BPF_NEG:
    case BPF_JMP | BPF_JA: return true;
    default: break;
  }
  const unsigned operation = code & 0xf0u;
  if ((code & ~0xf8u) == BPF_ALU) return operation <= BPF_RSH || operation == BPF_XOR;
  if ((code & ~0xf8u) == BPF_JMP) return operation >= BPF_JEQ && operation <= BPF_JSET;
  return false;
}

bool is_valid_instruction(const sock_filter& line, uint32_t at, uint32_t count) {
  if (!is_known(line.code)) return false;
  const uint32_t behind = count - at - 1;  // lines after this one
  switch (line.code) {
    case BPF_LD | BPF_W | BPF_ABS: return line.k % 4 == 0 && line.k < sizeof(seccomp_data);
    case BPF_ALU | BPF_DIV | BPF_K: return line.k != 0;
    case BPF_ALU | BPF_LSH | BPF_K:
    case BPF_ALU | BPF_RSH | BPF_K: return line.k < 32;
    case BPF_LD | BPF_MEM:
    case BPF_LDX | BPF_MEM:
    case BPF_ST:
    case BPF_STX: return line.k < BPF_MEMWORDS;
    case BPF_JMP | BPF_JA: return line.k < behind;
    default: return BPF_CLASS(line.code) != BPF_JMP || (line.jt < behind && line.jf < behind);
  }
}

bool is_valid_program(const sock_filter* lines, uint32_t count) {
  if (!is_readable(lines, sizeof(sock_filter) * count)) return false;
  for (uint32_t at = 0; at < count; ++at)
    if (!is_valid_instruction(lines[at], at, count)) return false;
  return BPF_CLASS(lines[count - 1].code) == BPF_RET;
}

// What the kernel wants of whoever confines himself by a program.
bool may_confine() {
  const int saved = errno;
  bool may = ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0;
  if (!may) {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct data[2] = {};
    may = ::syscall(SYS_capget, &header, data) != 0 || (data[0].effective >> CAP_SYS_ADMIN & 1) != 0;
  }
  errno = saved;
  return may;
}

bool can_filter(unsigned flags, const void* filter) {
  if ((flags & ~flags_known) != 0) return false;
  if ((flags & flag_tsync) != 0 && (flags & flag_new_listener) != 0 && (flags & flag_tsync_esrch) == 0)
    return false;
  if ((flags & flag_wait_killable) != 0 && (flags & flag_new_listener) == 0) return false;
  if (!is_readable(filter, sizeof(sock_fprog))) return false;
  sock_fprog program;
  memcpy(&program, filter, sizeof(program));
  return program.len != 0 && program.len <= BPF_MAXINSNS && is_valid_program(program.filter, program.len) &&
         may_confine();
}

}  // namespace

bool can_confine(unsigned operation, unsigned flags, const void* filter) {
  switch (operation) {
    case SECCOMP_SET_MODE_STRICT: return flags == 0 && filter == nullptr;
    case SECCOMP_SET_MODE_FILTER: return can_filter(flags, filter);
    default: return false;  // asks only, or is not known
  }
}

bool can_confine_by_prctl(unsigned long mode, const void* filter) {
  if (mode == SECCOMP_MODE_STRICT) return true;  // the third argument is not looked at
  return mode == SECCOMP_MODE_FILTER && can_filter(0, filter);
}

}  // namespace terrace::preload
