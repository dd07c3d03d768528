// SPDX-License-Identifier: Apache-2.0
#include "daemon/lines/datagram_socket.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "daemon/log/log.h"

namespace terrace::daemon {

Status DatagramSocket::connect() {
  socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
  // A service that takes nothing holds up the end of terraced for so long, and nothing else.
  const timeval patience{.tv_sec = 1, .tv_usec = 0};
  if (socket_.valid() &&
      ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) == 0 &&
      ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return {};
  const int why = errno;
  socket_ = UniqueFd();
  return os_error(why, "DatagramSocket", "cannot reach the logging service at " + path_);
}

Status DatagramSocket::send(std::string_view datagram) {
  if (!socket_.valid()) TERRACE_RETURN_IF_ERROR(connect());
  while (::send(socket_.get(), datagram.data(), datagram.size(), MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EMSGSIZE) {
      log::error("{} of {} bytes is too large for {}", what_, datagram.size(), path_);
      return {};
    }
    const int why = errno;
    socket_ = UniqueFd();  // it may have been started anew
    return os_error(why, "DatagramSocket", "cannot write to the logging service at " + path_);
  }
  return {};
}

}  // namespace terrace::daemon
