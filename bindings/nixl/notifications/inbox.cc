// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/notifications/inbox.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "bindings/nixl/notifications/hex.h"
#include "bindings/nixl/notifications/sockets.h"
#include "core/base/signals_blocked.h"

namespace terrace::nixl {
namespace {

constexpr const char* where = "nixl notifications";
constexpr size_t read_bytes = 64 << 10;
constexpr size_t senders_max = 4096;

bool watch(int poll, int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  return ::epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Status Inbox::open(const std::string& listen) {
  TERRACE_ASSIGN_OR_RETURN(token_, random_bytes(token_bytes));
  if (listen.empty()) {
    TERRACE_ASSIGN_OR_RETURN(const std::string name, random_bytes(token_bytes));
    address_ = "unix:@terrace-nixl-" + to_hex(name);
  } else if (listen.front() == '/') {
    remove_dead_sockets(listen);
    path_ = new_socket_path(listen);
    address_ = "unix:" + path_;
  } else {
    address_ = "tcp:" + listen;
  }
  auto listener = listen_at(address_);
  if (!listener.ok()) {
    path_.clear();
    return std::move(listener).error();
  }
  listener_ = std::move(listener).value();
  poll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poll_.valid() || !stop_.valid() || !watch(poll_.get(), listener_.get()) ||
      !watch(poll_.get(), stop_.get()))
    return os_error(errno, where, "cannot wait for notifications");
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { serve(); });
  return {};
}

Inbox::~Inbox() {
  if (thread_.joinable()) {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      room_.notify_all();
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }
  if (!path_.empty()) ::unlink(path_.c_str());
}

std::string Inbox::connection_info() const {
  return "address=" + address_ + " token=" + to_hex(token_);
}

void Inbox::add(Notification one) {
  const MutexLock lock(mutex_);
  bytes_ += one.agent.size() + one.message.size() + one.enclosure.size() + sizeof one;
  waiting_.push_back(std::move(one));
}

std::vector<Notification> Inbox::take() {
  const MutexLock lock(mutex_);
  bytes_ = 0;
  room_.notify_all();
  return std::exchange(waiting_, {});
}

bool Inbox::has_room() {
  const MutexLock lock(mutex_);
  room_.wait(mutex_, [&]() TERRACE_REQUIRES(mutex_) { return stopping_ || bytes_ < inbox_bytes_max; });
  return !stopping_;
}

void Inbox::serve() {
  epoll_event events[16];
  while (has_room()) {
    const int count = ::epoll_wait(poll_.get(), events, static_cast<int>(std::size(events)), -1);
    for (int at = 0; at < count; ++at) {
      const int fd = events[at].data.fd;
      if (fd == stop_.get()) return;
      if (fd == listener_.get()) {
        accept_one();
      } else if (const auto sender = senders_.find(fd);
                 sender != senders_.end() && !read_some(sender->second)) {
        senders_.erase(sender);
      }
    }
  }
}

void Inbox::accept_one() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    if (errno == EMFILE || errno == ENFILE)
      ::usleep(10'000);  // the descriptor stays readable until there is one
    return;
  }
  const int fd = socket.get();
  if (senders_.size() < senders_max && watch(poll_.get(), fd)) senders_[fd].socket = std::move(socket);
}

bool Inbox::read_some(Sender& sender) {
  char bytes[read_bytes];
  const ssize_t got = ::recv(sender.socket.get(), bytes, sizeof bytes, 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  sender.unread.append(bytes, static_cast<size_t>(got));
  return got > 0 && take_frames(sender);
}

bool Inbox::take_frames(Sender& sender) {
  size_t used = 0;
  if (!sender.known && !take_hello(sender, used)) return false;
  FrameHead head;
  while (sender.known && sender.unread.size() - used >= sizeof head) {
    std::memcpy(&head, sender.unread.data() + used, sizeof head);
    if (head.message_bytes > notification_bytes_max || head.enclosure_bytes > enclosure_bytes_max) return false;
    if (sender.unread.size() - used - sizeof head < size_t{head.message_bytes} + head.enclosure_bytes) break;
    used += sizeof head;
    add({sender.agent, sender.unread.substr(used, head.message_bytes),
         sender.unread.substr(used + head.message_bytes, head.enclosure_bytes)});
    used += size_t{head.message_bytes} + head.enclosure_bytes;
  }
  sender.unread.erase(0, used);
  return true;
}

bool Inbox::take_hello(Sender& sender, size_t& used) {
  Hello hello;
  const Hello right;
  if (sender.unread.size() < sizeof hello) return true;
  std::memcpy(&hello, sender.unread.data(), sizeof hello);
  unsigned differs = 0;
  for (size_t at = 0; at != token_bytes; ++at)
    differs |= hello.token[at] ^ static_cast<unsigned char>(token_[at]);
  if (std::memcmp(hello.what, right.what, sizeof hello.what) != 0 || differs != 0 ||
      hello.name_bytes > agent_name_bytes_max)
    return false;
  if (sender.unread.size() < sizeof hello + hello.name_bytes) return true;
  sender.agent = sender.unread.substr(sizeof hello, hello.name_bytes);
  sender.known = true;
  used = sizeof hello + hello.name_bytes;
  return ::send(sender.socket.get(), &hello_answer, 1, MSG_NOSIGNAL) == 1;
}

}  // namespace terrace::nixl
