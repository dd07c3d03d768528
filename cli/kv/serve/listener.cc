// SPDX-License-Identifier: Apache-2.0
#include "cli/kv/serve/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace terrace::kv_serve {
namespace {

constexpr const char* listen_where = "terrace kv serve";
constexpr const char* unix_prefix = "unix:";
constexpr int backlog = 512;

Error listen_error(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = listen_where, .detail = std::move(detail)};
}

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  bool loopback = false;
};

bool set_host(const std::string& host, uint16_t port, Address& address) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  if (::inet_pton(AF_INET, host == "localhost" ? "127.0.0.1" : host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.bytes = sizeof(*v4);
    address.loopback = (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
    return true;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) != 1) return false;
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(port);
  address.bytes = sizeof(*v6);
  address.loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) != 0;
  return true;
}

Result<Address> parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const std::string digits = colon == std::string::npos ? "" : text.substr(colon + 1);
  uint16_t port = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  Address address;
  if (digits.empty() || read.ec != std::errc() || read.ptr != digits.data() + digits.size() ||
      !set_host(host, port, address))
    return listen_error(ErrorCode::invalid_argument,
                        "--listen '" + text + "' is no address: unix:PATH, 127.0.0.1:6399 or [::1]:6399");
  return address;
}

std::string shown_address(int fd) {
  sockaddr_storage own{};
  socklen_t bytes = sizeof(own);
  char host[INET6_ADDRSTRLEN] = "";
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes);
  if (own.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&own);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
    return "[" + std::string(host) + "]:" + std::to_string(ntohs(v6->sin6_port));
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&own);
  ::inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
  return std::string(host) + ":" + std::to_string(ntohs(v4->sin_port));
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A number of an inode is given again at once; the time at which it was made is not.
bool is_same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

// Whether somebody accepts at the path; false: a socket that its server left behind.
Result<bool> is_served(const sockaddr_un& address) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return os_error(errno, listen_where, "cannot make a socket");
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return true;
  return errno != ECONNREFUSED;  // EAGAIN: its queue is full
}

// Makes way for a new socket: removes one that nobody serves.
Status clear_path(const std::string& path, const sockaddr_un& address) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0)
    return errno == ENOENT ? Status() : os_error(errno, listen_where, "cannot look at " + path);
  if (!S_ISSOCK(there.st_mode))
    return listen_error(ErrorCode::already_exists, path + " is there, and is no socket; choose another path");
  TERRACE_ASSIGN_OR_RETURN(const bool served, is_served(address));
  if (served) return listen_error(ErrorCode::busy, "somebody listens at " + path + " already");
  if (::unlink(path.c_str()) != 0)
    return os_error(errno, listen_where, "cannot remove " + path + ", which nobody serves");
  return {};
}

}  // namespace

Listener::Listener(Listener&& other) noexcept
    : socket_(std::move(other.socket_)),
      shown_(std::move(other.shown_)),
      path_(std::exchange(other.path_, {})),
      made_(other.made_) {}

Listener::~Listener() {
  struct stat there {};
  if (!path_.empty() && ::lstat(path_.c_str(), &there) == 0 && is_same_file(there, made_))
    ::unlink(path_.c_str());
}

Result<Listener> Listener::open(const std::string& address, bool anywhere) {
  if (!address.starts_with(unix_prefix)) return open_tcp(address, anywhere);
  return open_path(address.substr(std::strlen(unix_prefix)));
}

Result<Listener> Listener::open_tcp(const std::string& address, bool anywhere) {
  TERRACE_ASSIGN_OR_RETURN(const Address parsed, parse_address(address));
  if (!parsed.loopback && !anywhere)
    return listen_error(
        ErrorCode::permission_denied,
        "--listen " + address +
            ": other machines could reach it, and it knows no passwords: whoever connects reads, "
            "replaces and erases every block. Listen on 127.0.0.1 or unix:PATH and forward that "
            "(ssh -L), or say --insecure on a network that is yours alone");
  Listener listener;
  listener.socket_.reset(::socket(parsed.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.socket_.valid()) return os_error(errno, listen_where, "cannot make a socket");
  const int one = 1;
  ::setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (::bind(listener.fd(), reinterpret_cast<const sockaddr*>(&parsed.storage), parsed.bytes) != 0 ||
      ::listen(listener.fd(), backlog) != 0) {
    if (errno == EADDRINUSE)
      return listen_error(ErrorCode::busy, "somebody listens at " + address +
                                               " already: another server, maybe; --listen takes another port");
    return os_error(errno, listen_where, "cannot listen on " + address);
  }
  listener.shown_ = shown_address(listener.fd());
  return listener;
}

// The folder is locked meanwhile, so that of two servers that find one stale socket only one replaces it.
Result<Listener> Listener::open_path(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path))
    return listen_error(ErrorCode::invalid_argument, "--listen unix:" + path + ": a socket's path has 1 to " +
                                                         std::to_string(sizeof(address.sun_path) - 1) +
                                                         " bytes");
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return os_error(errno, listen_where, "cannot open the folder of " + path);
  if (::flock(folder.get(), LOCK_EX) != 0)
    return os_error(errno, listen_where, "cannot lock the folder of " + path);
  TERRACE_RETURN_IF_ERROR(clear_path(path, address));
  Listener listener;
  listener.socket_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.socket_.valid()) return os_error(errno, listen_where, "cannot make a socket");
  const mode_t before = ::umask(0177);  // nobody else's
  const int bound = ::bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int code = errno;
  ::umask(before);
  struct stat made {};
  if (bound != 0 || ::lstat(path.c_str(), &made) != 0)
    return os_error(bound != 0 ? code : errno, listen_where, "cannot listen on unix:" + path);
  listener.path_ = path;
  listener.made_ = made;
  if (::listen(listener.fd(), backlog) != 0)
    return os_error(errno, listen_where, "cannot listen on unix:" + path);
  listener.shown_ = unix_prefix + path;
  return listener;
}

}  // namespace terrace::kv_serve
