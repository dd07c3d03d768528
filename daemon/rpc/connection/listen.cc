// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/connection/listen.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace terrace::daemon {
namespace {

constexpr const char* listen_where = "listen_unix";

bool answers(const sockaddr_un& address) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return probe.valid() &&
         ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// By a descriptor of the file itself: a name could mean another file by the time it is looked up again, where a container
// has the folder and may write to it.
Result<SocketFile> own_file(const SocketPlace& place) {
  UniqueFd file(::open(place.path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat found {};
  if (!file.valid() || ::fstat(file.get(), &found) != 0)
    return os_error(errno, listen_where, "cannot look at " + place.path);
  if (!S_ISSOCK(found.st_mode)) {
    return Error{.code = ErrorCode::busy,
                 .where = listen_where,
                 .detail = "somebody put another file into the place of " + place.path +
                           "; close its folder to other writers"};
  }
  const int fd = file.get();
  SocketFile made(place.path, std::move(file));
  if ((place.owner.has_value() || place.group.has_value()) &&
      ::fchownat(fd, "", place.owner.value_or(static_cast<uid_t>(-1)),
                 place.group.value_or(static_cast<gid_t>(-1)), AT_EMPTY_PATH) != 0) {
    return os_error(errno, listen_where,
                    "cannot give " + place.path + " its owner or group (only root may give it to others)");
  }
  const std::string through = "/proc/self/fd/" + std::to_string(fd);
  if (::chmod(through.c_str(), place.mode) != 0)
    return os_error(errno, listen_where, "cannot set the mode of " + place.path);
  return made;
}

}  // namespace

void SocketFile::remove() {
  const UniqueFd itself = std::move(itself_);
  struct stat ours {
  }, now{};
  if (itself.valid() && ::fstat(itself.get(), &ours) == 0 && ::lstat(path_.c_str(), &now) == 0 &&
      now.st_dev == ours.st_dev && now.st_ino == ours.st_ino)
    ::unlink(path_.c_str());
}

Result<BoundSocket> listen_unix(const SocketPlace& place) {
  const std::string& path = place.path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = listen_where,
                 .detail = "the socket path " + path + " is longer than the " +
                           std::to_string(sizeof(address.sun_path) - 1) +
                           " bytes that a unix socket can have; choose a shorter runtime directory"};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return os_error(errno, listen_where, "no unix socket can be made");
  if (answers(address)) {
    return Error{.code = ErrorCode::busy, .where = listen_where, .detail = "another daemon answers at " + path};
  }
  struct stat existing {};
  if (::lstat(path.c_str(), &existing) == 0) {
    if (!S_ISSOCK(existing.st_mode)) {
      return Error{.code = ErrorCode::already_exists,
                   .where = listen_where,
                   .detail = path + " exists and is no socket; remove it or choose another --socket"};
    }
    ::unlink(path.c_str());  // left by a daemon that was killed
  }
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return os_error(errno, listen_where, "cannot bind " + path);
  TERRACE_ASSIGN_OR_RETURN(SocketFile file, own_file(place));
  if (::listen(listener.get(), SOMAXCONN) != 0)
    return os_error(errno, listen_where, "cannot listen at " + path);
  return BoundSocket{std::move(file), std::move(listener)};
}

}  // namespace terrace::daemon
