// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/connection/ready_sockets.h"

#include <kj/debug.h>

namespace terrace::daemon {
namespace {

constexpr uint32_t reading = EPOLLIN | EPOLLRDHUP | EPOLLET;

UniqueFd make_epoll() {
  UniqueFd made(::epoll_create1(EPOLL_CLOEXEC));
  KJ_REQUIRE(made.valid(), "no epoll for connections");
  return made;
}

}  // namespace

ReadySockets::ReadySockets(kj::UnixEventPort& port, kj::Timer& timer)
    : timer_(timer),
      epoll_(make_epoll()),
      observer_(port, epoll_.get(), kj::UnixEventPort::FdObserver::OBSERVE_READ),
      reporting_(kj::evalLater([this] { return report(); }).eagerlyEvaluate(nullptr)) {}

bool ReadySockets::add(int fd, Socket& socket) {
  epoll_event event{.events = reading, .data = {.ptr = &socket}};
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void ReadySockets::watch_room(int fd, Socket& socket, bool watch) {
  epoll_event event{.events = watch ? reading | EPOLLOUT : reading, .data = {.ptr = &socket}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void ReadySockets::remove(int fd) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

kj::Promise<void> ReadySockets::report() {
  for (int round = 0; round < rounds_max; ++round) {
    const int count = ::epoll_wait(epoll_.get(), events_.data(), a_round, 0);
    for (int i = 0; i < count; ++i) static_cast<Socket*>(events_[i].data.ptr)->ready(events_[i].events);
    // Once for all that comes until it is looked at: so only where nothing is left.
    if (count < static_cast<int>(a_round))
      return observer_.whenBecomesReadable().then([this] { return report(); });
  }
  return timer_.afterDelay(0 * kj::NANOSECONDS).then([this] { return report(); });
}

}  // namespace terrace::daemon
