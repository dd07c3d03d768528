// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/connection/unix_stream.h"

#include <kj/debug.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/limits.h"

namespace terrace::daemon {
namespace {

using Bytes = kj::ArrayPtr<const kj::byte>;

// Of one call; an answer has a few segments.
constexpr size_t pieces_max = 16;

// One sendmsg of as much as fits; what went out, or -1.
ssize_t send_some(int fd, Bytes first, kj::ArrayPtr<const Bytes> more, kj::ArrayPtr<const int> fds) {
  std::array<iovec, pieces_max> pieces{};
  size_t count = 0;
  const auto add = [&](Bytes bytes) { pieces[count++] = {const_cast<kj::byte*>(bytes.begin()), bytes.size()}; };
  if (first.size() > 0) add(first);
  for (size_t i = 0; i < more.size() && count < pieces_max; ++i)
    if (more[i].size() > 0) add(more[i]);
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(limits::rpc_fds_per_message_max * sizeof(int))> control{};
  if (fds.size() > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.begin(), fds.size() * sizeof(int));
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

// Resolves when `waiting` is told.
kj::Promise<void> until(kj::Own<kj::PromiseFulfiller<void>>& waiting) {
  auto pair = kj::newPromiseAndFulfiller<void>();
  waiting = kj::mv(pair.fulfiller);
  return kj::mv(pair.promise);
}

bool would_wait(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

}  // namespace

UnixStream::UnixStream(ReadySockets& sockets, UniqueFd fd, Turn turn)
    : sockets_(sockets), fd_(std::move(fd)), turn_(kj::mv(turn)) {
  KJ_REQUIRE(sockets_.add(fd_.get(), *this), "a connection that the kernel does not watch");
}

UnixStream::~UnixStream() noexcept(false) {
  sockets_.remove(fd_.get());
}

void UnixStream::ready(uint32_t events) {
  const auto tell = [](Waiting& waiting) {
    if (waiting.get() != nullptr) kj::mv(waiting)->fulfill();
  };
  const bool gone = (events & (EPOLLHUP | EPOLLERR)) != 0;
  if (gone || (events & (EPOLLIN | EPOLLRDHUP)) != 0) tell(readable_);
  if (writable_.get() != nullptr && (gone || (events & EPOLLOUT) != 0)) {
    tell(writable_);
    sockets_.watch_room(fd_.get(), *this, false);
  }
  if (!gone) return;
  is_gone_ = true;
  tell(gone_);
}

kj::Promise<size_t> UnixStream::tryRead(void* buffer, size_t bytes_min, size_t bytes_max) {
  return kj::evalNow([&] { return read_on(static_cast<std::byte*>(buffer), bytes_min, bytes_max, 0); });
}

// A descriptor is reported once for all that has come: it is read until there is nothing more, and only then waited for.
kj::Promise<size_t> UnixStream::read_on(std::byte* out, size_t bytes_min, size_t bytes_max, size_t had) {
  while (had < bytes_min) {
    const ssize_t bytes = ::recv(fd_.get(), out + had, bytes_max - had, MSG_DONTWAIT);
    if (bytes > 0) {
      had += static_cast<size_t>(bytes);
    } else if (bytes == 0) {
      break;
    } else if (would_wait(errno)) {
      return until_readable().then(
          [this, out, bytes_min, bytes_max, had] { return read_on(out, bytes_min, bytes_max, had); });
    } else if (errno != EINTR) {
      KJ_FAIL_SYSCALL("recv", errno);
    }
  }
  return had;
}

kj::Promise<void> UnixStream::until_readable() {
  return until(readable_).then([this] {
    had_turn_ = true;
    return turn_();
  });
}

kj::Promise<void> UnixStream::write(const void* buffer, size_t size) {
  const Bytes bytes(static_cast<const kj::byte*>(buffer), size);
  return kj::evalNow([&] { return write_on(bytes, nullptr, nullptr); });
}

kj::Promise<void> UnixStream::write(kj::ArrayPtr<const Bytes> pieces) {
  return kj::evalNow([&] { return write_on(nullptr, pieces, nullptr); });
}

kj::Promise<void> UnixStream::writeWithFds(Bytes data, kj::ArrayPtr<const Bytes> more,
                                           kj::ArrayPtr<const int> fds) {
  KJ_REQUIRE(fds.size() <= limits::rpc_fds_per_message_max);
  return kj::evalNow([&] { return write_on(data, more, fds); });
}

kj::Promise<void> UnixStream::write_on(Bytes first, kj::ArrayPtr<const Bytes> more,
                                       kj::ArrayPtr<const int> fds) {
  while (first.size() > 0 || more.size() > 0) {
    const ssize_t sent = send_some(fd_.get(), first, more, fds);
    if (sent < 0) {
      if (!would_wait(errno)) KJ_FAIL_SYSCALL("sendmsg", errno);
      auto room = until(writable_);
      sockets_.watch_room(fd_.get(), *this, true);
      return room.then([this, first, more, fds] { return write_on(first, more, fds); });
    }
    fds = nullptr;  // they went with the first byte
    auto left = static_cast<size_t>(sent);
    while (true) {
      const size_t gone = std::min(left, first.size());
      first = first.slice(gone, first.size());
      left -= gone;
      if (first.size() > 0 || more.size() == 0) break;
      first = more.front();
      more = more.slice(1, more.size());
    }
  }
  return kj::READY_NOW;
}

kj::Promise<void> UnixStream::whenWriteDisconnected() {
  KJ_IF_MAYBE (forked, when_gone_) return forked->addBranch();
  if (is_gone_) return kj::READY_NOW;
  return when_gone_.emplace(until(gone_).fork()).addBranch();
}

void UnixStream::shutdownWrite() {
  ::shutdown(fd_.get(), SHUT_WR);
}

void UnixStream::abortRead() {
  ::shutdown(fd_.get(), SHUT_RD);
}

void UnixStream::getsockopt(int level, int option, void* value, kj::uint* length) {
  socklen_t size = *length;
  KJ_SYSCALL(::getsockopt(fd_.get(), level, option, value, &size));
  *length = size;
}

kj::Promise<kj::AsyncCapabilityStream::ReadResult> UnixStream::tryReadWithFds(void*, size_t, size_t,
                                                                              kj::AutoCloseFd*, size_t) {
  KJ_UNIMPLEMENTED("descriptors of peers are not taken");
}

kj::Promise<kj::AsyncCapabilityStream::ReadResult> UnixStream::tryReadWithStreams(
    void*, size_t, size_t, kj::Own<kj::AsyncCapabilityStream>*, size_t) {
  KJ_UNIMPLEMENTED("descriptors of peers are not taken");
}

kj::Promise<void> UnixStream::writeWithStreams(Bytes, kj::ArrayPtr<const Bytes>,
                                               kj::Array<kj::Own<kj::AsyncCapabilityStream>>) {
  KJ_UNIMPLEMENTED("streams are not handed on");
}

}  // namespace terrace::daemon
