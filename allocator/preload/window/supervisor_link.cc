// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/window/supervisor_link.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>

namespace terrace::preload {
namespace {

sockaddr_un supply_address;
std::atomic<bool> forbidden{false};
thread_local constinit int open_socket __attribute__((tls_model("initial-exec"))) = -1;
constexpr time_t reply_timeout_s = 40;  // above the 30 s that the supervisor waits for a pool manager's restart

template <typename Call>
long retry(Call call) {
  long result;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace

void close_raw(int fd) {
  if (fd >= 0) ::syscall(SYS_close, fd);
}

void forbid_links() {
  forbidden.store(true, std::memory_order_relaxed);
}

bool links_forbidden() {
  return forbidden.load(std::memory_order_relaxed);
}

const char* link_failure(int failure) {
  if (links_forbidden())
    return "the program filters its system calls (seccomp), and a filter may kill for a socket";
  switch (failure) {
    case ENOENT:
      return "the supervisor's socket is not there: 'terrace run' ended, or the program changed its root";
    case ECONNREFUSED: return "the supervisor ('terrace run') has ended";
    case EACCES:
    case EPERM:
      return "the supervisor's socket is not for this user: the program changed its uid or is confined";
    case EMFILE:
    case ENFILE: return "no descriptor is left for the way to the supervisor (ulimit -n)";
    case EAGAIN: return "the supervisor did not answer in time";
    case ECONNRESET:
    case EPIPE: return "the supervisor closed the connection: it ended, or the program changed its uid";
    case EPROTO: return "the supervisor and libterrace_malloc.so are of different versions of Terrace";
    default: return "the supervisor cannot be reached";
  }
}

bool set_supply_path(const char* path) {
  if (strlen(path) >= sizeof(supply_address.sun_path)) return false;
  supply_address.sun_family = AF_UNIX;
  strcpy(supply_address.sun_path, path);
  return true;
}

void break_link_in_child() {
  if (open_socket < 0) return;
  // The number stays taken: the interrupted code closes it.
  const int broken = static_cast<int>(::syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (broken < 0) return;
  ::syscall(SYS_dup3, broken, open_socket, O_CLOEXEC);
  close_raw(broken);
}

Link::~Link() {
  if (socket_ < 0) return;
  open_socket = interrupted_;
  close_raw(socket_);
}

bool Link::open() {
  if (forbidden.load(std::memory_order_relaxed)) {
    errno = EPERM;
    return false;
  }
  socket_ = static_cast<int>(::syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket_ < 0) return false;
  interrupted_ = open_socket;
  open_socket = socket_;
  timeval timeout{.tv_sec = reply_timeout_s, .tv_usec = 0};
  ::syscall(SYS_setsockopt, socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  ::syscall(SYS_setsockopt, socket_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  return retry([&] { return ::syscall(SYS_connect, socket_, &supply_address, sizeof(supply_address)); }) == 0;
}

bool Link::ask(const supply::Request& request, supply::Reply* reply, int* fd) {
  *fd = -1;
  if (retry([&] {
        return ::syscall(SYS_sendto, socket_, &request, sizeof(request), MSG_NOSIGNAL, nullptr, 0);
      }) != sizeof(request))
    return false;
  iovec part{.iov_base = reply, .iov_len = sizeof(*reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  long received = retry([&] { return ::syscall(SYS_recvmsg, socket_, &message, MSG_CMSG_CLOEXEC); });
  if (received < 0) return false;
  if (received == 0) {
    errno = ECONNRESET;
    return false;
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header))
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
      memcpy(fd, CMSG_DATA(header), sizeof(*fd));
  if (received == sizeof(*reply) && reply->magic == supply::magic && reply->version == supply::version &&
      (message.msg_flags & MSG_CTRUNC) == 0)
    return true;
  close_raw(*fd);
  *fd = -1;
  errno = (message.msg_flags & MSG_CTRUNC) != 0 ? EMFILE : EPROTO;
  return false;
}

}  // namespace terrace::preload
