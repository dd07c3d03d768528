// SPDX-License-Identifier: Apache-2.0
#include "cli/program/end_by_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>

namespace terrace::cli {
namespace {

bool ends(uint32_t signal) {
  if (signal != SIGINT && signal != SIGTERM && signal != SIGHUP && signal != SIGQUIT) return false;
  struct sigaction now {};  // nohup ignores one
  return ::sigaction(static_cast<int>(signal), nullptr, &now) == 0 && now.sa_handler != SIG_IGN;
}

// As if it had never been blocked.
void end_by(int signal) {
  ::signal(signal, SIG_DFL);
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::kill(::getpid(), signal);
}

}  // namespace

EndBySignal::EndBySignal(const Supervisor& supervisor) : done_(::eventfd(0, EFD_CLOEXEC)) {
  if (done_.valid() && supervisor.signals() >= 0)
    thread_ = std::thread([this, signals = supervisor.signals()] { watch(signals); });
}

EndBySignal::~EndBySignal() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!::write(done_.get(), &one, sizeof(one));
  thread_.join();
}

void EndBySignal::watch(int signals) const {
  for (;;) {
    pollfd both[] = {{.fd = done_.get(), .events = POLLIN, .revents = 0},
                     {.fd = signals, .events = POLLIN, .revents = 0}};
    if (::poll(both, 2, -1) < 0) continue;
    // What comes at the same moment as the end of the wait is the program's.
    if (both[0].revents != 0) return;
    signalfd_siginfo info;
    if (::read(signals, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info)) && ends(info.ssi_signo))
      end_by(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace terrace::cli
