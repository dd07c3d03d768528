// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/notifications/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>

namespace terrace::nixl {
namespace {

constexpr const char* where = "nixl notifications";
constexpr std::string_view socket_prefix = "terrace-nixl-";
constexpr int backlog = 128;

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  int family = AF_UNIX;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Result<Address> unix_address(std::string_view name) {
  Address all;
  auto* const to = reinterpret_cast<sockaddr_un*>(&all.storage);
  if (name.empty() || name.size() >= sizeof to->sun_path)
    return Error{ErrorCode::invalid_argument, 0, where,
                 "the path of a socket has at most 107 bytes: " + std::string(name)};
  to->sun_family = AF_UNIX;
  std::memcpy(to->sun_path, name.data(), name.size());
  if (name.front() == '@') to->sun_path[0] = '\0';
  all.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + (name.front() == '@' ? 0 : 1));
  return all;
}

Result<Address> tcp_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  std::string host(text.substr(0, colon));
  const std::string port(colon == std::string_view::npos ? "" : text.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed =
      host.empty() || port.empty() ? EAI_NONAME : ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0)
    return Error{ErrorCode::invalid_argument, 0, where,
                 std::string(text) + " is no ADDRESS:PORT: " + ::gai_strerror(failed)};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> keep(found, ::freeaddrinfo);
  Address all;
  std::memcpy(&all.storage, found->ai_addr, found->ai_addrlen);
  all.length = found->ai_addrlen;
  all.family = found->ai_family;
  return all;
}

Result<Address> parse(const std::string& address) {
  const std::string_view text = address;
  if (text.starts_with("unix:")) return unix_address(text.substr(5));
  if (text.starts_with("tcp:")) return tcp_address(text.substr(4));
  return Error{ErrorCode::invalid_argument, 0, where, "no address of a socket: " + address};
}

Error failed_at(const std::string& address, const char* what) {
  const int number = errno;
  return os_error(number, where, std::string(what) + " " + address);
}

// Notifications are short and waited for; a host that lost its power is noticed within half a minute.
void tune(int socket) {
  const int on = 1, first_s = 10, each_s = 5, times = 3, unanswered_ms = 25'000;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &first_s, sizeof first_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &each_s, sizeof each_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
}

bool is_wildcard(const Address& address) {
  if (address.family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr == INADDR_ANY;
  return address.family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
}

uint16_t port_of(int socket) {
  Address bound;
  bound.length = sizeof bound.storage;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) return 0;
  // The port lies at the same place in both.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
}

}  // namespace

Result<UniqueFd> listen_at(std::string& address) {
  TERRACE_ASSIGN_OR_RETURN(const Address at, parse(address));
  if (is_wildcard(at))
    return Error{ErrorCode::invalid_argument, 0, where,
                 address + ": give the address at which other agents reach this one"};
  UniqueFd socket(::socket(at.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return failed_at(address, "no socket for");
  if (at.family != AF_UNIX) {
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (::bind(socket.get(), at.get(), at.length) != 0 || ::listen(socket.get(), backlog) != 0)
    return failed_at(address, "cannot listen at");
  if (at.family != AF_UNIX)
    address = address.substr(0, address.rfind(':') + 1) + std::to_string(port_of(socket.get()));
  return socket;
}

Result<UniqueFd> connect_to(const std::string& address, int seconds) {
  TERRACE_ASSIGN_OR_RETURN(const Address at, parse(address));
  UniqueFd socket(::socket(at.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return failed_at(address, "no socket for");
  const timeval patience{.tv_sec = seconds, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (at.family != AF_UNIX) tune(socket.get());
  if (::connect(socket.get(), at.get(), at.length) == 0) return socket;
  Error error = failed_at(address, "no agent listens at");
  error.code = ErrorCode::unavailable;
  return error;
}

void remove_dead_sockets(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (!entry.path().filename().string().starts_with(socket_prefix) || !entry.is_socket(ignored)) continue;
    const auto at = unix_address(entry.path().string());
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (at.ok() && ::connect(socket.get(), at->get(), at->length) != 0 && errno == ECONNREFUSED)
      ::unlink(entry.path().c_str());
  }
}

std::string new_socket_path(const std::string& folder) {
  const auto bytes = random_bytes(8);
  std::string name = folder + "/" + std::string(socket_prefix) + std::to_string(::getpid()) + "-";
  for (const char one : bytes.ok() ? *bytes : std::string())
    name += "0123456789abcdef"[static_cast<unsigned char>(one) % 16];
  return name;
}

Result<std::string> random_bytes(size_t bytes) {
  std::string all(bytes, '\0');
  if (::getrandom(all.data(), bytes, 0) == static_cast<ssize_t>(bytes)) return all;
  return os_error(errno, where, "no random bytes");
}

}  // namespace terrace::nixl
