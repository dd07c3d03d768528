// SPDX-License-Identifier: Apache-2.0
// A process that has connected to this one over a unix socket, as a holder has to its daemon, and then waits for its end.
#pragma once

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <utility>

#include "core/base/unique_fd.h"

namespace terrace::test {

class ConnectedChild {
 public:
  // `first`: what it does before it connects.
  explicit ConnectedChild(std::function<void()> first = {}) {
    const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    static int made = 0;
    const int length = std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                                     "terrace-consent-%d-%d", ::getpid(), ++made);
    const auto bytes =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
    auto* name = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener.get(), name, bytes) != 0 || ::listen(listener.get(), 1) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (first) first();
      const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
      if (::connect(fd, name, bytes) != 0) ::_exit(1);
      for (;;) ::pause();
    }
    socket_ = UniqueFd(::accept(listener.get(), nullptr, nullptr));
  }
  ~ConnectedChild() {
    ::kill(pid_, SIGKILL);
    wait();
  }
  ConnectedChild(const ConnectedChild&) = delete;
  ConnectedChild& operator=(const ConnectedChild&) = delete;

  int socket() const { return socket_.get(); }
  pid_t pid() const { return pid_; }
  bool runs() const { return !waited_ && !zombie(); }
  // Its status, once it has ended.
  int wait() {
    if (!std::exchange(waited_, true)) ::waitpid(pid_, &status_, 0);
    return status_;
  }

 private:
  bool zombie() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }

  pid_t pid_ = -1;
  UniqueFd socket_;
  bool waited_ = false;
  int status_ = 0;
};

}  // namespace terrace::test
