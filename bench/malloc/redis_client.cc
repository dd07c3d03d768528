// SPDX-License-Identifier: Apache-2.0
#include "bench/malloc/redis_client.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace terrace::bench {

bool RedisClient::connect(const std::string& socket) {
  socket_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket.c_str(), sizeof(address.sun_path) - 1);
  timeval patience{.tv_sec = 30, .tv_usec = 0};  // a server that hangs is one that failed
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  return ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

void RedisClient::add(const std::vector<std::string>& words) {
  out_ += '*' + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) out_ += '$' + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  ++pending_;
}

bool RedisClient::more() {
  if (at_ > 0) {
    in_.erase(0, at_);
    at_ = 0;
  }
  char text[64 * 1024];
  const ssize_t got = ::recv(socket_.get(), text, sizeof(text), 0);
  if (got <= 0) return false;
  in_.append(text, static_cast<size_t>(got));
  return true;
}

bool RedisClient::read_answer(std::string* answer) {
  size_t end;
  while ((end = in_.find("\r\n", at_)) == std::string::npos)
    if (!more()) return false;
  const std::string line = in_.substr(at_, end - at_);
  at_ = end + 2;
  if (line[0] != '$') {
    *answer = line[0] == '-' ? line : line.substr(1);
    return true;
  }
  const long length = std::atol(line.c_str() + 1);
  *answer = "(nil)";
  if (length < 0) return true;
  while (in_.size() - at_ < static_cast<size_t>(length) + 2)
    if (!more()) return false;
  *answer = in_.substr(at_, static_cast<size_t>(length));
  at_ += static_cast<size_t>(length) + 2;
  return true;
}

std::vector<std::string> RedisClient::exchange() {
  std::vector<std::string> answers(pending_);
  for (size_t sent = 0; sent < out_.size();) {
    const ssize_t got = ::send(socket_.get(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
    if (got <= 0) return {};
    sent += static_cast<size_t>(got);
  }
  out_.clear();
  pending_ = 0;
  for (std::string& answer : answers)
    if (!read_answer(&answer)) return {};
  return answers;
}

std::string RedisClient::ask(const std::vector<std::string>& words) {
  add(words);
  auto answers = exchange();
  return answers.empty() ? std::string() : answers.front();
}

std::string RedisClient::info(const std::string& field) {
  const std::string text = ask({"INFO"});
  const size_t at = text.find("\n" + field + ":");
  if (at == std::string::npos) return {};
  const size_t begin = at + field.size() + 2;
  return text.substr(begin, text.find('\r', begin) - begin);
}

}  // namespace terrace::bench
