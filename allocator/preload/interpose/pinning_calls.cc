// SPDX-License-Identifier: Apache-2.0
// Calls that let the kernel or a device know pages of the program's memory for longer than the call's own
// stores: such granules must not move meanwhile. What moves a page by page tables cannot see that somebody
// holds it.
//
// Held for the call       reads and writes on descriptors with O_DIRECT, process_vm_writev into this process
// Held for good           vmsplice, sends with MSG_ZEROCOPY, libaio's io_submit; mappings.cc and futexes.cc
//                         have more
// Migration ends for good an io_uring of this process, where moves are not proved; syscalls.cc has more
// terrace_hold            for programs that register memory with a device: terrace/hold.h
//
// Calls that come by no function of ours pin pages as well. Moves ask the kernel about those
// (tiering/migration/pins.h, Mover): with that the holds here save attempts, and serve memory and kernels that
// cannot be asked.
//
// Everything else passes through after one look at an address.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "allocator/preload/fork/registered.h"
#include "allocator/preload/interpose/pinning_calls.h"
#include "allocator/preload/libc/export.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/libc/raw_calls.h"
#include "allocator/preload/migration/fold_after_fork.h"
#include "allocator/preload/window/movement.h"

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
    if (in_window(parts[i].iov_base)) hold_past_exit(parts[i].iov_base, parts[i].iov_len);
}

void hold_message_for_good(const msghdr* message, int flags) {
  if ((flags & MSG_ZEROCOPY) != 0 && message != nullptr)
    hold_parts_for_good(message->msg_iov, message->msg_iovlen);
}

template <typename Function>
Function* next_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

void ring_made() {
  has_ring.store(true, std::memory_order_relaxed);
  note_lent_in_child();
  // What it reads and writes is pinned, and moves ask for that. What is folded after a fork is not asked for.
  never_fold();
  if (!moves_are_proved()) end_migration(supply::EndReason::ring);
}

void hold_requests_for_good(long count, struct iocb** requests) {
  for (long i = 0; window_span.load(std::memory_order_relaxed) != 0 && i < count; ++i) {
    const iocb& request = *requests[i];
    const void* buffer = reinterpret_cast<const void*>(request.aio_buf);
    if (request.aio_lio_opcode == IOCB_CMD_PREADV || request.aio_lio_opcode == IOCB_CMD_PWRITEV)
      hold_parts_for_good(static_cast<const iovec*>(buffer), request.aio_nbytes);
    else if ((request.aio_lio_opcode == IOCB_CMD_PREAD || request.aio_lio_opcode == IOCB_CMD_PWRITE) &&
             in_window(buffer))
      hold_past_exit(buffer, request.aio_nbytes);
  }
}

bool transfer_by_number(long number, long fd, void* buffer, size_t bytes, long offset, long* result) {
  if (!in_window(buffer) || bytes < direct_bytes_min || !is_direct(static_cast<int>(fd))) return false;
  const HeldBuffer held(buffer, bytes);
  *result = terrace_raw_call(number, fd, reinterpret_cast<long>(buffer), static_cast<long>(bytes), offset);
  return true;
}

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
  return terrace_raw_call(SYS_vmsplice, fd, reinterpret_cast<long>(parts), static_cast<long>(count), flags);
}

// Another process's writes into this one are not seen; its own into itself are.
TERRACE_EXPORT ssize_t process_vm_writev(pid_t pid, const iovec* local, unsigned long local_count,
                                         const iovec* remote, unsigned long remote_count, unsigned long flags) {
  auto call = [&] {
    return terrace_raw_call(SYS_process_vm_writev, pid, reinterpret_cast<long>(local),
                            static_cast<long>(local_count), reinterpret_cast<long>(remote),
                            static_cast<long>(remote_count), static_cast<long>(flags));
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
  if ((flags & MSG_ZEROCOPY) != 0 && in_window(buffer)) hold_past_exit(buffer, bytes);
  return ready() ? next.send(fd, buffer, bytes, flags)
                 : ::syscall(SYS_sendto, fd, buffer, bytes, flags, nullptr, 0);
}

TERRACE_EXPORT ssize_t sendto(int fd, const void* buffer, size_t bytes, int flags, const sockaddr* to,
                              socklen_t to_bytes) {
  if ((flags & MSG_ZEROCOPY) != 0 && in_window(buffer)) hold_past_exit(buffer, bytes);
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
  keep_registered(memory, bytes);  // the queues
  auto* function = next_function<int(unsigned, void*, void*, void*, size_t)>("io_uring_queue_init_mem");
  return function == nullptr ? -ENOSYS : function(entries, ring, parameters, memory, bytes);
}

TERRACE_EXPORT int io_uring_setup(unsigned entries, void* parameters) {
  ring_made();
  auto* function = next_function<int(unsigned, void*)>("io_uring_setup");
  return function == nullptr ? -ENOSYS : function(entries, parameters);
}

// ---- for programs that know of Terrace: terrace/hold.h

TERRACE_EXPORT int terrace_hold(const void* address, size_t bytes) {
  return hold_counted(address, bytes) ? 1 : 0;
}

TERRACE_EXPORT void terrace_unhold(const void* address, size_t bytes) {
  unhold_counted(address, bytes);
}
