// SPDX-License-Identifier: Apache-2.0
#include "cli/program/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "allocator/supply/proc.h"
#include "core/base/clock.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

// What ends a process that does not want it, and is no fault or limit of its own; further those of real time.
constexpr int passed_on[] = {SIGINT,  SIGTERM,   SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2,  SIGWINCH,
                             SIGALRM, SIGVTALRM, SIGPROF, SIGIO,   SIGPWR,  SIGSTKFLT};
// How long what the program left behind may take to go before it is said that this process waits for it.
constexpr uint64_t quiet_wait_ns = 3 * ns_per_s;

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

// As /proc has it; 0: there is none.
char main_thread_state(pid_t pid) {
  const UniqueFd file(::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t bytes = file.valid() ? ::read(file.get(), text, sizeof(text)) : 0;
  const std::string_view line(text, bytes > 0 ? static_cast<size_t>(bytes) : 0);
  const size_t name_end = line.rfind(')');  // the name may hold any byte
  return name_end == std::string_view::npos || name_end + 2 >= line.size() ? '\0' : line[name_end + 2];
}

}  // namespace

Supervisor::Supervisor() {
  sigset_t handled;
  ::sigemptyset(&handled);
  for (int number : passed_on) ::sigaddset(&handled, number);
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) ::sigaddset(&handled, number);
  ::sigaddset(&handled, SIGCHLD);
  sigset_t blocked = handled;
  // Stopped, this process could not renew leases: Ctrl-Z stops the program only.
  ::sigaddset(&blocked, SIGTSTP);
  // Nobody reads what it says: the program goes on.
  ::sigaddset(&blocked, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  signals_.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  // A descriptor for each process and lease of the run; the program gets its own limit back.
  if (::getrlimit(RLIMIT_NOFILE, &files_before_) == 0) {
    rlimit most = files_before_;
    most.rlim_cur = most.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &most);
  }
}

Supervisor::~Supervisor() {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Status Supervisor::start(const std::string& path, const std::vector<std::string>& command,
                         const std::vector<std::string>& environment) {
  std::vector<char*> words = pointers(command);
  std::vector<char*> variables = pointers(environment);
  int report[2];
  if (!signals_.valid() || ::pipe2(report, O_CLOEXEC) != 0)
    return os_error(errno, "Supervisor::start", "cannot start " + path);
  UniqueFd report_read(report[0]), report_write(report[1]);
  pid_t supervisor = ::getpid();
  child_ = ::fork();
  if (child_ == 0) {
    // Only async-signal-safe calls here. If the supervisor is killed, the leases end with their TTL and the
    // program would die of SIGBUS: it is told to end while its memory is still there.
    ::prctl(PR_SET_PDEATHSIG, end_signal_, 0, 0, 0);
    if (::getppid() != supervisor) ::_exit(1);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    if (files_before_.rlim_max != 0) ::setrlimit(RLIMIT_NOFILE, &files_before_);
    ::execve(path.c_str(), words.data(), variables.data());
    int failed = errno;
    if (::write(report_write.get(), &failed, sizeof(failed)) < 0) ::_exit(126);
    ::_exit(126);
  }
  if (child_ < 0) return os_error(errno, "Supervisor::start", "cannot start " + path);
  report_write.reset();
  int failed = 0;
  ssize_t got;
  do got = ::read(report_read.get(), &failed, sizeof(failed));
  while (got < 0 && errno == EINTR);
  if (got != sizeof(failed)) return {};
  ::waitpid(child_, nullptr, 0);
  exec_errno_ = failed;
  return os_error(failed, "Supervisor::start", "cannot start " + path);
}

void Supervisor::reap(Leftovers& leftovers) {
  int status = 0;
  bool any = false;
  for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;) {
    if (WIFCONTINUED(status)) {
      if (pid == child_) stopped_ = false;
      continue;
    }
    if (WIFSTOPPED(status)) {
      if (pid != child_) continue;
      note_stopped();
      continue;
    }
    any = true;
    if (pid != child_) continue;  // an orphan of the program's
    ended_ = true;
    exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  if (any && ended_) leftovers.look();
  look_whether_stopped();
}

void Supervisor::note_stopped() {
  stopped_ = true;
  std::fprintf(stderr,
               "terrace: the program is stopped; terrace stays, to keep its leases (kill -CONT %d goes on, "
               "Ctrl-C ends it)\n",
               static_cast<int>(child_));
}

// While one of its threads waits in the kernel for another one that is stopped already (a move of memory, for
// who reads the events of userfaultfd) a process counts as running: no wait tells of the stop, nor of its end.
void Supervisor::look_whether_stopped() {
  if (ended_ || child_ <= 0) return;
  const bool looks_stopped = main_thread_state(child_) == 'T';
  if (looks_stopped && !stopped_) {
    // The wait for it tells of most stops, if a moment later.
    if (seen_stopped_) note_stopped();
    seen_stopped_ = true;
  } else if (!looks_stopped) {
    stopped_ = seen_stopped_ = false;
  }
}

void Supervisor::pass_on(const signalfd_siginfo& info, Leftovers& leftovers) {
  auto number = static_cast<int>(info.ssi_signo);
  if (!ended_) {
    // What the terminal sends goes to the whole foreground group: the program has it already, unless it made
    // its own group or session.
    const bool of_terminal = number == SIGINT || number == SIGQUIT || number == SIGHUP || number == SIGWINCH;
    const bool has_it = of_terminal && info.ssi_code == SI_KERNEL && ::getpgid(child_) == ::getpgrp();
    if (!has_it) ::kill(child_, number);
    // Stopped it would not see it, and this process holds the terminal meanwhile.
    look_whether_stopped();
    bool ends = number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
    if ((stopped_ || seen_stopped_) && ends) ::kill(child_, SIGCONT);
    return;
  }
  // What it left behind may have left the terminal's group too: then this is the only way to reach it. The
  // program itself may have said the numbers (the control page of a run), so only processes that it started get anything.
  std::vector<pid_t> own = supply::descendants(::getpid());
  for (pid_t pid : leftovers.processes())
    if (pid > 1 && std::find(own.begin(), own.end(), pid) != own.end()) ::kill(pid, number);
}

int Supervisor::wait(Leftovers& leftovers) {
  uint64_t ended_ns = 0;
  bool said = false;
  for (;;) {
    pollfd wait{.fd = signals_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, ended_ ? 20 : 1000) < 0 && errno != EINTR) return 1;
    reap(leftovers);  // whether it is stopped is known before a signal is passed on
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info))
      if (info.ssi_signo == SIGUSR1 && ask_)
        ask_();
      else if (info.ssi_signo != SIGCHLD)
        pass_on(info, leftovers);
    if (!ended_) continue;
    uint64_t now_ns = SystemClock().now_ns();
    if (ended_ns == 0) ended_ns = now_ns;
    if (!leftovers.in_use()) return exit_code_;
    if (!said && now_ns - ended_ns > quiet_wait_ns) {
      said = true;
      // Those that have just come, or map it and say nothing, are not among them.
      const size_t known = leftovers.processes().size();
      const std::string who = known == 0   ? "something of it still uses"
                              : known == 1 ? "a process of it still uses"
                                           : std::to_string(known) + " processes of it still use";
      std::fprintf(stderr, "terrace: the program ended, %s its memory; waiting\n", who.c_str());
    }
  }
}

}  // namespace terrace::cli
