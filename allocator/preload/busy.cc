// Calls that let the kernel or a device know pages of the program's memory for longer than the call's own
// stores: such granules must not move meanwhile. What moves a page by page tables cannot see that somebody
// holds it.
//
// Held for the call       reads and writes on descriptors with O_DIRECT, process_vm_writev into this process
// Held for good           vmsplice, sends with MSG_ZEROCOPY, libaio's io_submit, mprotect and mlock (a moved
// granule
//                         is mapped readable, writable and unlocked)
// Migration ends for good an io_uring of this process, mlockall, a filter of system calls
// terrace_hold            for whoever registers memory with a device: see terrace/hold.h
//
// Everything else passes through after one look at an address.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "allocator/preload/fold.h"
#include "allocator/preload/link.h"
#include "allocator/preload/migrate.h"
#include "allocator/preload/next.h"

#define TERRACE_EXPORT extern "C" __attribute__((visibility("default")))

namespace terrace::preload {
namespace {

// No smaller transfer is direct I/O.
constexpr size_t direct_bytes_min = 512;

bool is_direct(int fd) {
  const long flags = ::syscall(SYS_fcntl, fd, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0;
}

// Memory of one call, held until it returns.
class HeldBuffer {
 public:
  HeldBuffer(const void* buffer, size_t bytes)
      : buffer_(buffer), bytes_(bytes), held_(begin_hold(buffer, bytes)) {}
  ~HeldBuffer() {
    const int saved = errno;
    end_hold(buffer_, bytes_, held_);
    errno = saved;
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;

 private:
  const void* buffer_;
  size_t bytes_;
  Held held_;
};

template <typename Call>
ssize_t transfer(int fd, const void* buffer, size_t bytes, Call call) {
  if (!in_window(buffer)) [[likely]]
    return call();
  if (bytes < direct_bytes_min || !is_direct(fd)) return call();
  const HeldBuffer held(buffer, bytes);
  return call();
}

bool any_in_window(const iovec* parts, int count) {
  for (int i = 0; i < count; ++i)
    if (in_window(parts[i].iov_base)) return true;
  return false;
}

template <typename Call>
ssize_t transfer_parts(int fd, const iovec* parts, int count, Call call) {
  if (window_span.load(std::memory_order_relaxed) == 0 || parts == nullptr || !any_in_window(parts, count) ||
      !is_direct(fd))
    return call();
  // One part after the other: IOV_MAX of them would not fit a stack's worth of holds; from lowest to highest
  // they are one range nearly always.
  const char* from = nullptr;
  const char* to = nullptr;
  for (int i = 0; i < count; ++i) {
    const auto* at = static_cast<const char*>(parts[i].iov_base);
    if (!in_window(at)) continue;
    if (from == nullptr || at < from) from = at;
    if (to == nullptr || at + parts[i].iov_len > to) to = at + parts[i].iov_len;
  }
  const HeldBuffer held(from, static_cast<size_t>(to - from));
  return call();
}

void hold_parts_for_good(const iovec* parts, size_t count) {
  if (window_span.load(std::memory_order_relaxed) == 0 || parts == nullptr) return;
  for (size_t i = 0; i < count; ++i)
    if (in_window(parts[i].iov_base)) lend_for_good(parts[i].iov_base, parts[i].iov_len);
}

void hold_message_for_good(const msghdr* message, int flags) {
  if ((flags & MSG_ZEROCOPY) != 0 && message != nullptr)
    hold_parts_for_good(message->msg_iov, message->msg_iovlen);
}

template <typename Function>
Function* next_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// The program's memory is in the hands of a ring from here on: which of it, nobody tells.
void ring_made() {
  note_lent_in_child();
  end_migration("the program uses io_uring");
}

void hold_requests_for_good(long count, struct iocb** requests) {
  for (long i = 0; window_span.load(std::memory_order_relaxed) != 0 && i < count; ++i) {
    const iocb& request = *requests[i];
    const void* buffer = reinterpret_cast<const void*>(request.aio_buf);
    if (request.aio_lio_opcode == IOCB_CMD_PREADV || request.aio_lio_opcode == IOCB_CMD_PWRITEV)
      hold_parts_for_good(static_cast<const iovec*>(buffer), request.aio_nbytes);
    else if ((request.aio_lio_opcode == IOCB_CMD_PREAD || request.aio_lio_opcode == IOCB_CMD_PWRITE) &&
             in_window(buffer))
      lend_for_good(buffer, request.aio_nbytes);
  }
}

}  // namespace
}  // namespace terrace::preload

using namespace terrace::preload;

// ---- reads and writes

TERRACE_EXPORT ssize_t read(int fd, void* buffer, size_t bytes) {
  if (!ready()) return ::syscall(SYS_read, fd, buffer, bytes);
  return transfer(fd, buffer, bytes, [&] { return next.read(fd, buffer, bytes); });
}

TERRACE_EXPORT ssize_t write(int fd, const void* buffer, size_t bytes) {
  if (!ready()) return ::syscall(SYS_write, fd, buffer, bytes);
  return transfer(fd, buffer, bytes, [&] { return next.write(fd, buffer, bytes); });
}

TERRACE_EXPORT ssize_t pread(int fd, void* buffer, size_t bytes, off_t offset) {
  if (!ready()) return ::syscall(SYS_pread64, fd, buffer, bytes, offset);
  return transfer(fd, buffer, bytes, [&] { return next.pread(fd, buffer, bytes, offset); });
}

TERRACE_EXPORT ssize_t pwrite(int fd, const void* buffer, size_t bytes, off_t offset) {
  if (!ready()) return ::syscall(SYS_pwrite64, fd, buffer, bytes, offset);
  return transfer(fd, buffer, bytes, [&] { return next.pwrite(fd, buffer, bytes, offset); });
}

TERRACE_EXPORT ssize_t pread64(int fd, void* buffer, size_t bytes, off64_t offset) {
  return pread(fd, buffer, bytes, offset);
}

TERRACE_EXPORT ssize_t pwrite64(int fd, const void* buffer, size_t bytes, off64_t offset) {
  return pwrite(fd, buffer, bytes, offset);
}

// What _FORTIFY_SOURCE calls where it knows the buffer's size.
TERRACE_EXPORT ssize_t __read_chk(int fd, void* buffer, size_t bytes, size_t room) {
  if (bytes > room) abort();
  return read(fd, buffer, bytes);
}

TERRACE_EXPORT ssize_t __pread_chk(int fd, void* buffer, size_t bytes, off_t offset, size_t room) {
  if (bytes > room) abort();
  return pread(fd, buffer, bytes, offset);
}

TERRACE_EXPORT ssize_t __pread64_chk(int fd, void* buffer, size_t bytes, off64_t offset, size_t room) {
  if (bytes > room) abort();
  return pread(fd, buffer, bytes, offset);
}

TERRACE_EXPORT ssize_t readv(int fd, const iovec* parts, int count) {
  if (!ready()) return ::syscall(SYS_readv, fd, parts, count);
  return transfer_parts(fd, parts, count, [&] { return next.readv(fd, parts, count); });
}

TERRACE_EXPORT ssize_t writev(int fd, const iovec* parts, int count) {
  if (!ready()) return ::syscall(SYS_writev, fd, parts, count);
  return transfer_parts(fd, parts, count, [&] { return next.writev(fd, parts, count); });
}

TERRACE_EXPORT ssize_t preadv(int fd, const iovec* parts, int count, off_t offset) {
  if (!ready()) return ::syscall(SYS_preadv, fd, parts, count, offset, 0);
  return transfer_parts(fd, parts, count, [&] { return next.preadv(fd, parts, count, offset); });
}

TERRACE_EXPORT ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  if (!ready()) return ::syscall(SYS_pwritev, fd, parts, count, offset, 0);
  return transfer_parts(fd, parts, count, [&] { return next.pwritev(fd, parts, count, offset); });
}

TERRACE_EXPORT ssize_t preadv64(int fd, const iovec* parts, int count, off64_t offset) {
  return preadv(fd, parts, count, offset);
}

TERRACE_EXPORT ssize_t pwritev64(int fd, const iovec* parts, int count, off64_t offset) {
  return pwritev(fd, parts, count, offset);
}

TERRACE_EXPORT ssize_t preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  if (!ready()) return ::syscall(SYS_preadv2, fd, parts, count, offset, 0, flags);
  return transfer_parts(fd, parts, count, [&] { return next.preadv2(fd, parts, count, offset, flags); });
}

TERRACE_EXPORT ssize_t pwritev2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  if (!ready()) return ::syscall(SYS_pwritev2, fd, parts, count, offset, 0, flags);
  return transfer_parts(fd, parts, count, [&] { return next.pwritev2(fd, parts, count, offset, flags); });
}

TERRACE_EXPORT ssize_t preadv64v2(int fd, const iovec* parts, int count, off64_t offset, int flags) {
  return preadv2(fd, parts, count, offset, flags);
}

TERRACE_EXPORT ssize_t pwritev64v2(int fd, const iovec* parts, int count, off64_t offset, int flags) {
  return pwritev2(fd, parts, count, offset, flags);
}

// ---- pages that others keep

TERRACE_EXPORT ssize_t vmsplice(int fd, const iovec* parts, size_t count, unsigned flags) {
  hold_parts_for_good(parts, count);
  if (ready() && next.vmsplice != nullptr) return next.vmsplice(fd, parts, count, flags);
  return ::syscall(SYS_vmsplice, fd, parts, count, flags);
}

// Another process's writes into this one are not seen; its own into itself are.
TERRACE_EXPORT ssize_t process_vm_writev(pid_t pid, const iovec* local, unsigned long local_count,
                                         const iovec* remote, unsigned long remote_count, unsigned long flags) {
  auto call = [&] {
    return ::syscall(SYS_process_vm_writev, pid, local, local_count, remote, remote_count, flags);
  };
  if (window_span.load(std::memory_order_relaxed) == 0 || remote == nullptr || pid != ::getpid()) return call();
  const char* from = nullptr;
  const char* to = nullptr;
  for (unsigned long i = 0; i < remote_count; ++i) {
    const auto* at = static_cast<const char*>(remote[i].iov_base);
    if (!in_window(at)) continue;
    if (from == nullptr || at < from) from = at;
    if (to == nullptr || at + remote[i].iov_len > to) to = at + remote[i].iov_len;
  }
  if (from == nullptr) return call();
  const HeldBuffer held(from, static_cast<size_t>(to - from));
  return call();
}

TERRACE_EXPORT ssize_t send(int fd, const void* buffer, size_t bytes, int flags) {
  if ((flags & MSG_ZEROCOPY) != 0 && in_window(buffer)) lend_for_good(buffer, bytes);
  return ready() ? next.send(fd, buffer, bytes, flags)
                 : ::syscall(SYS_sendto, fd, buffer, bytes, flags, nullptr, 0);
}

TERRACE_EXPORT ssize_t sendto(int fd, const void* buffer, size_t bytes, int flags, const sockaddr* to,
                              socklen_t to_bytes) {
  if ((flags & MSG_ZEROCOPY) != 0 && in_window(buffer)) lend_for_good(buffer, bytes);
  return ready() ? next.sendto(fd, buffer, bytes, flags, to, to_bytes)
                 : ::syscall(SYS_sendto, fd, buffer, bytes, flags, to, to_bytes);
}

TERRACE_EXPORT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  hold_message_for_good(message, flags);
  return ready() ? next.sendmsg(fd, message, flags) : ::syscall(SYS_sendmsg, fd, message, flags);
}

TERRACE_EXPORT int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  for (unsigned i = 0; (flags & MSG_ZEROCOPY) != 0 && i < count; ++i)
    hold_message_for_good(&messages[i].msg_hdr, flags);
  return ready() ? next.sendmmsg(fd, messages, count, flags)
                 : static_cast<int>(::syscall(SYS_sendmmsg, fd, messages, count, flags));
}

// libaio's. When a request ends is seen by whoever waits for it, on paths that need not come by here (a ring in
// user space): its memory stays.
TERRACE_EXPORT int io_submit(void* context, long count, struct iocb** requests) {
  hold_requests_for_good(count, requests);
  auto* function = next_function<int(void*, long, struct iocb**)>("io_submit");
  return function == nullptr ? -ENOSYS : function(context, count, requests);
}

// ---- protections and locks

TERRACE_EXPORT int mprotect(void* address, size_t bytes, int protection) {
  if (in_window(address)) hold_for_good(address, bytes);
  if (ready()) return next.mprotect(address, bytes, protection);
  return static_cast<int>(::syscall(SYS_mprotect, address, bytes, protection));
}

TERRACE_EXPORT int pkey_mprotect(void* address, size_t bytes, int protection, int key) {
  if (in_window(address)) hold_for_good(address, bytes);
  return static_cast<int>(::syscall(SYS_pkey_mprotect, address, bytes, protection, key));
}

TERRACE_EXPORT int mlock(const void* address, size_t bytes) {
  if (in_window(address)) hold_for_good(address, bytes);
  return static_cast<int>(::syscall(SYS_mlock, address, bytes));
}

TERRACE_EXPORT int mlock2(const void* address, size_t bytes, unsigned flags) {
  if (in_window(address)) hold_for_good(address, bytes);
  return static_cast<int>(::syscall(SYS_mlock2, address, bytes, flags));
}

TERRACE_EXPORT int mlockall(int flags) {
  end_migration("the program locks its memory (mlockall)");
  return static_cast<int>(::syscall(SYS_mlockall, flags));
}

// ---- liburing's ways to a ring

TERRACE_EXPORT int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) {
  ring_made();
  auto* function = next_function<int(unsigned, void*, unsigned)>("io_uring_queue_init");
  return function == nullptr ? -ENOSYS : function(entries, ring, flags);
}

TERRACE_EXPORT int io_uring_queue_init_params(unsigned entries, void* ring, void* parameters) {
  ring_made();
  auto* function = next_function<int(unsigned, void*, void*)>("io_uring_queue_init_params");
  return function == nullptr ? -ENOSYS : function(entries, ring, parameters);
}

TERRACE_EXPORT int io_uring_queue_init_mem(unsigned entries, void* ring, void* parameters, void* memory,
                                           size_t bytes) {
  ring_made();
  auto* function = next_function<int(unsigned, void*, void*, void*, size_t)>("io_uring_queue_init_mem");
  return function == nullptr ? -ENOSYS : function(entries, ring, parameters, memory, bytes);
}

TERRACE_EXPORT int io_uring_setup(unsigned entries, void* parameters) {
  ring_made();
  auto* function = next_function<int(unsigned, void*)>("io_uring_setup");
  return function == nullptr ? -ENOSYS : function(entries, parameters);
}

// The program filters its system calls: that may kill for what the engine's thread does, or for a socket.
static void before_filter() {
  quit_engine("the program filters its system calls");
  forbid_links();
}

// ---- syscall(): how programs without liburing and libaio make rings and submit

// A system call that wants a look before it is made; the registers are those of syscall().
extern "C" __attribute__((visibility("hidden"))) void terrace_before_syscall(long number, long, long second,
                                                                             long third) {
  if (number == SYS_io_uring_setup) ring_made();
  if (number == SYS_io_submit) hold_requests_for_good(second, reinterpret_cast<struct iocb**>(third));
  // A filter for all threads may kill for what the engine's thread does.
  if (number == SYS_seccomp) before_filter();
}

extern "C" __attribute__((visibility("hidden"))) long terrace_syscall_failed(long result) {
  errno = static_cast<int>(-result);
  return -1;
}

// As glibc's, to the stack's last word: it may be called for a vfork, which returns twice.
__asm__(R"(
  .text
  .globl syscall
  .type syscall, @function
syscall:
  .cfi_startproc
  cmpl $425, %edi
  je 2f
  cmpl $209, %edi
  je 2f
  cmpl $317, %edi
  je 2f
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
  popq %rdx
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  jmp 1b
3:
  movq %rax, %rdi
  jmp terrace_syscall_failed
  .cfi_endproc
  .size syscall, .-syscall
)");
static_assert(SYS_io_uring_setup == 425 && SYS_io_submit == 209 && SYS_seccomp == 317);

// The other way to a filter, which is for the calling thread alone: what it starts later inherits it, and so
// would the engine's thread.
TERRACE_EXPORT int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  long arguments[4];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (option == PR_SET_SECCOMP) before_filter();
  return static_cast<int>(::syscall(SYS_prctl, option, arguments[0], arguments[1], arguments[2], arguments[3]));
}

// ---- for programs that know of Terrace: terrace/hold.h

TERRACE_EXPORT int terrace_hold(const void* address, size_t bytes) {
  return hold_counted(address, bytes) ? 1 : 0;
}

TERRACE_EXPORT void terrace_unhold(const void* address, size_t bytes) {
  unhold_counted(address, bytes);
}
