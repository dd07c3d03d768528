// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/notifications/channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "bindings/nixl/notifications/frames.h"
#include "bindings/nixl/notifications/hex.h"
#include "bindings/nixl/notifications/sockets.h"

namespace terrace::nixl {
namespace {

constexpr const char* where = "nixl notifications";
constexpr int patience_s = 30;  // for an agent whose machine is busy; one that is stopped counts as ended then

}  // namespace

Channel::Channel(std::string from, std::string address, std::string token)
    : from_(std::move(from)), address_(std::move(address)), token_(std::move(token)) {}

Result<std::shared_ptr<Channel>> Channel::make(std::string from, const std::string& info) {
  const size_t space = info.find(" token=");
  const auto token = space == std::string::npos ? std::nullopt : from_hex(info.substr(space + 7));
  if (!info.starts_with("address=") || !token || token->size() != token_bytes)
    return Error{ErrorCode::corrupt, 0, where, "these are no words about an agent: " + info.substr(0, 200)};
  return std::shared_ptr<Channel>(new Channel(std::move(from), info.substr(8, space - 8), *token));
}

Error Channel::ended(const char* how) const {
  return {ErrorCode::unavailable, 0, where, "the agent at " + address_ + " " + how};
}

Status Channel::check() {
  const MutexLock lock(mutex_);
  return check_locked();
}

Status Channel::check_locked() {
  if (over_) return ended("has ended");
  if (!socket_.valid()) return connect();
  char none = 0;
  const ssize_t got = ::recv(socket_.get(), &none, 1, MSG_DONTWAIT | MSG_PEEK);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  over_ = true;  // it sends nothing after its answer: this is the end
  socket_.reset();
  return ended("has ended");
}

Status Channel::connect() {
  auto socket = connect_to(address_, patience_s);
  over_ = true;  // until it has answered
  if (!socket.ok()) return std::move(socket).error();
  socket_ = std::move(socket).value();
  Hello hello;
  std::memcpy(hello.token, token_.data(), token_bytes);
  hello.name_bytes = static_cast<uint32_t>(from_.size());
  TERRACE_RETURN_IF_ERROR(write_all(std::string(reinterpret_cast<const char*>(&hello), sizeof hello) + from_));
  char answer = 0;
  ssize_t got = 0;
  do got = ::recv(socket_.get(), &answer, 1, 0);
  while (got < 0 && errno == EINTR);
  if (got != 1 || answer != hello_answer) {
    socket_.reset();
    return ended("does not answer as the one whose metadata was loaded; it has ended, or is stopped");
  }
  over_ = false;
  return {};
}

Status Channel::write_all(const std::string& bytes) {
  for (size_t done = 0; done != bytes.size();) {
    const ssize_t put = ::send(socket_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (put >= 0) {
      done += static_cast<size_t>(put);
    } else if (errno != EINTR) {
      const bool slow = errno == EAGAIN;
      over_ = true;  // a part of a frame may be on its way
      socket_.reset();
      return ended(slow ? "takes no notifications: it fetches none, and has many unread" : "has ended");
    }
  }
  return {};
}

Status Channel::send(const std::string& message) {
  if (message.size() > notification_bytes_max)
    return Error{ErrorCode::limit_exceeded, 0, where, "a notification has at most 16 MiB"};
  const MutexLock lock(mutex_);
  TERRACE_RETURN_IF_ERROR(check_locked());
  const std::string enclosure = std::exchange(enclosure_, {});
  const FrameHead head{static_cast<uint32_t>(message.size()), static_cast<uint32_t>(enclosure.size())};
  return write_all(std::string(reinterpret_cast<const char*>(&head), sizeof head) + message + enclosure);
}

bool Channel::enclose(const std::string& words, const std::string& instead) {
  const MutexLock lock(mutex_);
  const bool fits = enclosure_.size() + words.size() <= enclosure_bytes_max;
  if (fits)
    enclosure_ += words;
  else
    enclosure_ = instead;
  return fits;
}

}  // namespace terrace::nixl
