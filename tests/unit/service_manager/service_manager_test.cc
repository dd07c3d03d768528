// SPDX-License-Identifier: Apache-2.0
// What a service manager hears of terraced: real datagrams at a real socket, with a path and without one.
#include <doctest/doctest.h>

#include <kj/async-io.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "core/base/unique_fd.h"
#include "daemon/service_manager/service_manager.h"
#include "daemon/service_manager/watchdog.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

// A service manager's end of it. `name`: a path, or "@" and an abstract name.
class Listener {
 public:
  explicit Listener(std::string name)
      : name_(std::move(name)), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name_.data(), name_.size());
    const bool abstract = name_[0] == '@';
    if (abstract) address.sun_path[0] = '\0';
    if (!abstract) ::unlink(name_.c_str());
    const size_t length = offsetof(sockaddr_un, sun_path) + name_.size() + (abstract ? 0 : 1);
    REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address),
                   static_cast<socklen_t>(length)) == 0);
  }
  ~Listener() {
    if (name_[0] != '@') ::unlink(name_.c_str());
  }
  // The next message; none within `wait_ms`: "".
  std::string next(int wait_ms = 2000) {
    pollfd wait{socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, wait_ms) != 1) return "";
    std::string message(4096, '\0');
    const ssize_t bytes = ::recv(socket_.get(), message.data(), message.size(), 0);
    message.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    return message;
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  UniqueFd socket_;
};

Result<ServiceManager> from(const std::string& socket, const char* watchdog_us = nullptr,
                            const char* pid = nullptr) {
  ::setenv("NOTIFY_SOCKET", socket.c_str(), 1);
  watchdog_us == nullptr ? ::unsetenv("WATCHDOG_USEC") : ::setenv("WATCHDOG_USEC", watchdog_us, 1);
  pid == nullptr ? ::unsetenv("WATCHDOG_PID") : ::setenv("WATCHDOG_PID", pid, 1);
  return ServiceManager::from_environment();
}

std::string unique_name(const char* begin) {
  return std::string(begin) + "terrace-notify-" + std::to_string(::getpid());
}

}  // namespace

TEST_CASE("service manager: each step arrives, at a path and at an abstract name") {
  for (const char* begin : {"/tmp/", "@"}) {
    CAPTURE(begin);
    Listener listener(unique_name(begin));
    const auto manager = from(listener.name());
    REQUIRE(manager.ok());
    CHECK(manager->listens());
    CHECK(manager->watchdog_ns() == 0);
    manager->status("recovering");
    CHECK(listener.next() == "STATUS=recovering");
    manager->ready("serving 3 leases");
    CHECK(listener.next() == "READY=1\nSTATUS=serving 3 leases");
    manager->reloading();
    const std::string reloading = listener.next();
    CHECK(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="));
    CHECK(reloading.find("MONOTONIC_USEC=0\n") == std::string::npos);
    manager->stopping("SIGTERM");
    CHECK(listener.next() == "STOPPING=1\nSTATUS=SIGTERM");
  }
}

TEST_CASE("service manager: what it is told is one line, whatever is in it") {
  Listener listener(unique_name("/tmp/"));
  const auto manager = from(listener.name());
  REQUIRE(manager.ok());
  manager->status("refused:\nREADY=1\tx");
  CHECK(listener.next() == "STATUS=refused: READY=1 x");
}

TEST_CASE("service manager: processes that are started do not speak in its name") {
  Listener listener(unique_name("/tmp/"));
  REQUIRE(from(listener.name(), "1000000", "1").ok());
  CHECK(std::getenv("NOTIFY_SOCKET") == nullptr);
  CHECK(std::getenv("WATCHDOG_USEC") == nullptr);
  CHECK(std::getenv("WATCHDOG_PID") == nullptr);
}

TEST_CASE("service manager: none, one that cannot be, and one that is gone") {
  ::unsetenv("NOTIFY_SOCKET");
  const auto none = ServiceManager::from_environment();
  REQUIRE(none.ok());
  CHECK_FALSE(none->listens());
  none->ready("nobody hears it");

  CHECK(from("relative/path").error().code == ErrorCode::invalid_argument);
  CHECK(from("/" + std::string(200, 'x')).error().code == ErrorCode::invalid_argument);

  const auto gone = from(unique_name("/tmp/gone-"));
  REQUIRE(gone.ok());
  gone->ready("nor does anybody this");
}

TEST_CASE("service manager: a watchdog is another process's, or none, where its number says so") {
  Listener listener(unique_name("/tmp/"));
  const std::string own = std::to_string(::getpid());
  CHECK(from(listener.name(), "3000000", own.c_str())->watchdog_ns() == 3'000'000'000);
  CHECK(from(listener.name(), "3000000")->watchdog_ns() == 3'000'000'000);
  CHECK(from(listener.name(), "3000000", "1")->watchdog_ns() == 0);
  CHECK(from(listener.name(), "soon", own.c_str())->watchdog_ns() == 0);
  CHECK(from(listener.name(), "18446744073709551615", own.c_str())->watchdog_ns() == 0);
}

TEST_CASE("service manager: the watchdog hears of a loop that turns, and nothing of one that hangs") {
  Listener listener(unique_name("/tmp/"));
  const auto manager = from(listener.name(), "40000");
  REQUIRE(manager.ok());
  auto io = kj::setupAsyncIo();
  kj::Timer& timer = io.provider->getTimer();
  int told = 0;
  const auto telling =
      tell_watchdog(*manager, timer, [&told] { return std::to_string(++told); }).eagerlyEvaluate(nullptr);
  timer.afterDelay(200 * kj::MILLISECONDS).wait(io.waitScope);
  CHECK(told >= 3);
  for (int at = 1; at <= told; ++at) CHECK(listener.next(0) == "WATCHDOG=1\nSTATUS=" + std::to_string(at));
  CHECK(listener.next(0) == "");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the loop does not turn
  CHECK(listener.next(0) == "");
  timer.afterDelay(40 * kj::MILLISECONDS).wait(io.waitScope);
  CHECK(listener.next(0).starts_with("WATCHDOG=1"));
}
