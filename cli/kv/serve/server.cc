// SPDX-License-Identifier: Apache-2.0
#include "cli/kv/serve/server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/kernel_clock.h"

namespace terrace::kv_serve {
namespace {

constexpr uint64_t look_ns = 1'000'000'000;
constexpr uint64_t ending_ns = 500'000'000;  // for last replies
constexpr int events_max = 64;
constexpr int accepted_at_once = 64;

}  // namespace

Server::Server(KvSpace& space, Commands::Options options, const Listener& listener, std::string version)
    : space_(space), listener_(listener), commands_(space, std::move(options), figures_) {
  figures_.started_ns = monotonic_ns();
  figures_.listening = listener.shown();
  figures_.version = std::move(version);
}

Status Server::watch(int fd, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0)
    return os_error(errno, "terrace kv serve", "cannot wait for a socket");
  return {};
}

Status Server::run(int signals) {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return os_error(errno, "terrace kv serve", "cannot wait for sockets");
  TERRACE_RETURN_IF_ERROR(watch(signals, EPOLLIN, EPOLL_CTL_ADD));
  TERRACE_RETURN_IF_ERROR(watch(listener_.fd(), EPOLLIN, EPOLL_CTL_ADD));
  accepting_ = true;
  looked_ns_ = monotonic_ns();
  const Status looped = loop(signals);
  connections_.clear();  // with their views, before the space
  return looped.ok() ? std::move(failure_) : looped;
}

int Server::wait_ms() const {
  if (!working_.empty()) return 0;
  const uint64_t now_ns = monotonic_ns(), until_ns = end_ns_ != 0 ? end_ns_ : looked_ns_ + look_ns;
  return until_ns > now_ns ? static_cast<int>((until_ns - now_ns) / 1'000'000 + 1) : 0;
}

Status Server::loop(int signals) {
  epoll_event events[events_max];
  while (end_ns_ == 0 || (!connections_.empty() && monotonic_ns() < end_ns_)) {
    const int count = ::epoll_wait(epoll_.get(), events, events_max, wait_ms());
    if (count < 0 && errno != EINTR) return os_error(errno, "terrace kv serve", "cannot wait for sockets");
    for (int index = 0; index < count; ++index) {
      if (events[index].data.fd == signals)
        take_signal(signals);
      else if (events[index].data.fd == listener_.fd())
        accept_all();
      else
        handle(events[index].data.fd, events[index].events);
    }
    work_for_all();
    look_at_the_time();
  }
  return {};
}

void Server::take_signal(int signals) {
  signalfd_siginfo signal{};
  if (::read(signals, &signal, sizeof(signal)) == sizeof(signal)) begin_to_end();
}

void Server::handle(int fd, uint32_t events) {
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return;  // closed by an event before, in the same batch
  Connection& connection = *found->second.connection;
  if ((events & EPOLLOUT) != 0) connection.on_writable();
  if ((events & EPOLLIN) != 0 && connection.wants_input()) {
    connection.on_readable();
  } else if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
    connections_.erase(found);  // there is nobody who reads replies
    return;
  }
  after(connection);
}

// What the connection waits for now.
void Server::after(Connection& connection) {
  const int fd = connection.fd();
  if (connection.memory_vanished() && end_ns_ == 0) {
    failure_ = space_.health();
    // One member of several: the others go on, and what this client was in the middle of is lost.
    if (failure_.ok() && space_.counters().members_joined > 0) {
      connections_.erase(fd);
      return;
    }
    if (failure_.ok())
      failure_ = Error{.code = ErrorCode::lease_expired,
                       .where = "terrace kv serve",
                       .detail = "the memory of the space is gone"};
    return begin_to_end();
  }
  if (connection.over()) {
    connections_.erase(fd);
    return;
  }
  if (connection.has_work()) working_.push_back(fd);
  const uint32_t events = (connection.wants_input() ? uint32_t{EPOLLIN} : 0u) |
                          (connection.wants_output() ? uint32_t{EPOLLOUT} : 0u);
  Watched& watched = connections_.at(fd);
  if (watched.events == events) return;
  watched.events = events;
  if (!watch(fd, events, EPOLL_CTL_MOD).ok()) connections_.erase(fd);
}

void Server::accept_all() {
  for (int count = 0; count < accepted_at_once && end_ns_ == 0; ++count) {
    UniqueFd socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      admit(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    // No descriptor left: the listener stays readable, so nobody is heard until the next look at the time.
    if (errno != EAGAIN && errno != EWOULDBLOCK && watch(listener_.fd(), 0, EPOLL_CTL_MOD).ok())
      accepting_ = false;
    return;
  }
}

void Server::admit(UniqueFd socket) {
  if (connections_.size() >= connections_max) {
    constexpr std::string_view refusal = "-ERR max number of clients reached\r\n";
    ++figures_.connections_refused;
    [[maybe_unused]] const ssize_t sent =
        ::send(socket.get(), refusal.data(), refusal.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  const int fd = socket.get(), one = 1;
  if (listener_.is_tcp()) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (!watch(fd, EPOLLIN, EPOLL_CTL_ADD).ok()) return;
  ++figures_.connections_total;
  connections_[fd] = {std::make_unique<Connection>(std::move(socket), next_id_++, commands_, figures_),
                      EPOLLIN};
  figures_.connections = connections_.size();
}

void Server::work_for_all() {
  for (const int fd : std::exchange(working_, {})) {
    const auto found = connections_.find(fd);
    if (found == connections_.end()) continue;
    found->second.connection->work();
    after(*found->second.connection);
  }
  figures_.connections = connections_.size();
}

void Server::look_at_the_time() {
  const uint64_t now_ns = monotonic_ns();
  if (now_ns - looked_ns_ < look_ns) return;
  looked_ns_ = now_ns;
  for (auto at = connections_.begin(); at != connections_.end();) {
    at->second.connection->look_at_the_time(now_ns);
    at = at->second.connection->over() ? connections_.erase(at) : std::next(at);
  }
  if (end_ns_ != 0) return;
  if (!accepting_ && watch(listener_.fd(), EPOLLIN, EPOLL_CTL_MOD).ok()) accepting_ = true;
  if (Status health = space_.health(); !health.ok()) {
    failure_ = std::move(health);
    begin_to_end();
  }
}

void Server::begin_to_end() {
  if (end_ns_ != 0) {
    end_ns_ = monotonic_ns();  // a second signal: at once
    return;
  }
  end_ns_ = monotonic_ns() + ending_ns;
  [[maybe_unused]] const Status ignored = watch(listener_.fd(), 0, EPOLL_CTL_MOD);
  working_.clear();
  std::vector<int> all;
  for (const auto& [fd, watched] : connections_) all.push_back(fd);
  for (const int fd : all) {
    Connection& connection = *connections_.at(fd).connection;
    connection.end();
    after(connection);
  }
}

}  // namespace terrace::kv_serve
