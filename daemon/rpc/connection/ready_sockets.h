// SPDX-License-Identifier: Apache-2.0
// Which of many sockets have something to read, or room to write. kj reports 16 descriptors a look, whoever they are of: a
// tenant's only one may be behind hundreds of another's, with other work between two looks. These are one descriptor to
// kj, and all that are ready are reported at each look, for half a microsecond each.
//
// Place     RpcServer has one for the connections that it accepts (unix_stream.h).
// Threads   The event loop's thread only.
// Design    docs/design/0027-shares.md
#pragma once

#include <kj/async-unix.h>
#include <kj/timer.h>
#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/unique_fd.h"

namespace terrace::daemon {

class ReadySockets {
 public:
  class Socket {
   public:
    // `events`: EPOLLIN and others, of edges. Nothing is destroyed in it.
    virtual void ready(uint32_t events) = 0;

   protected:
    ~Socket() = default;
  };

  ReadySockets(kj::UnixEventPort& port, kj::Timer& timer);

  // `socket` is told from now on of what can be read, at first of what is so already, until remove(). Whether the kernel
  // had room.
  bool add(int fd, Socket& socket);
  // Of one that was added: whether it is told of room to write as well, also of what there is already.
  void watch_room(int fd, Socket& socket, bool watch);
  void remove(int fd);

 private:
  // A house of 4,096 connections is reported in eight rounds; then others are looked at.
  static constexpr size_t a_round = 512;
  static constexpr int rounds_max = 8;

  kj::Promise<void> report();

  kj::Timer& timer_;
  const UniqueFd epoll_;
  kj::UnixEventPort::FdObserver observer_;
  std::array<epoll_event, a_round> events_;
  kj::Promise<void> reporting_;
};

}  // namespace terrace::daemon
