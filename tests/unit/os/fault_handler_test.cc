// SPDX-License-Identifier: Apache-2.0
// Guarded accesses in programs that have handlers of their own, and what is left of SIGBUS for those.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "core/os/fault_guard.h"
#include "core/os/lossy_access.h"

namespace terrace::os {
namespace {

constexpr size_t page = 4096;
constexpr size_t handlers_max = 60;

// Mapped, and nothing behind it.
struct Gone {
  int fd = ::memfd_create("gone", MFD_CLOEXEC);
  std::byte* at = nullptr;
  Gone() {
    at = static_cast<std::byte*>(::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    REQUIRE(at != MAP_FAILED);
  }
  ~Gone() {
    ::munmap(at, page);
    ::close(fd);
  }
  bool guarded_touch() const {
    return guarded([this] { std::memset(at, 1, 64); });
  }
};

struct Ending {
  int exit_code = -1;
  int signal = 0;
};

// In a child of fork, so that handlers and deaths are its own; 99 when `body` returns.
Ending in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(200);
    body();
    ::_exit(99);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) return {.signal = WTERMSIG(status)};
  return {.exit_code = WEXITSTATUS(status)};
}

void plain_default() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGBUS, &action, nullptr);
}

void install(void (*handler)(int, siginfo_t*, void*), int flags = 0, struct sigaction* before = nullptr) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  ::sigaction(SIGBUS, &action, before);
}

std::atomic<int> seen = 0;
siginfo_t seen_info{};
sigjmp_buf way_out;
char alternate_stack[64 * 1024];

void fatal(int, siginfo_t*, void*) {
  ::_exit(7);
}
void counting(int, siginfo_t* info, void*) {
  seen_info = *info;
  ++seen;
}
void jumping(int, siginfo_t*, void*) {
  ++seen;
  siglongjmp(way_out, 1);
}
void on_alternate_stack(int, siginfo_t*, void*) {
  const char here = 0;
  ::_exit(&here >= alternate_stack && &here < alternate_stack + sizeof alternate_stack ? 11 : 12);
}

// An access of the program's own that fails.
void own_fault(const Gone& memory) {
  volatile std::byte* const at = memory.at;
  *at = std::byte{1};
}

#define CHILD_CHECK(condition) \
  if (!(condition)) ::_exit(__LINE__ % 90 + 1)

}  // namespace

TEST_CASE("guarded: a handler that the program installed later does not get the library's faults") {
  const Gone memory;
  for (const int flags : {0, SA_ONSTACK, SA_NODEFER, static_cast<int>(SA_RESETHAND)}) {
    const Ending ending = in_child([&] {
      CHILD_CHECK(!memory.guarded_touch());
      install(fatal, flags);
      for (int round = 0; round < 3; ++round) CHILD_CHECK(!memory.guarded_touch());
      own_fault(memory);  // which is the program's own
    });
    CHECK_MESSAGE(ending.exit_code == 7, "flags ", flags, " signal ", ending.signal);
  }
}

TEST_CASE("guarded: after a SIGBUS that the program survives, later accesses are guarded as before") {
  const Gone memory;
  const Ending ending = in_child([&] {
    install(jumping);
    for (int round = 1; round <= 3; ++round) {
      CHILD_CHECK(!memory.guarded_touch());
      if (sigsetjmp(way_out, 1) == 0) own_fault(memory);
      CHILD_CHECK(seen == round);
    }
    CHILD_CHECK(!memory.guarded_touch());
  });
  CHECK_MESSAGE(ending.exit_code == 99, "signal ", ending.signal);
}

TEST_CASE("guarded: a SIGBUS that somebody sends is not swallowed: handlers get it, else it kills") {
  const Gone memory;
  CHECK(in_child([&] {
          plain_default();
          CHILD_CHECK(!memory.guarded_touch());
          ::kill(::getpid(), SIGBUS);
        }).signal == SIGBUS);
  CHECK(in_child([&] {
          plain_default();
          // Also in the middle of a guarded access, which it does not cut off.
          (void)guarded([] { ::raise(SIGBUS); });
        }).signal == SIGBUS);
  const Ending handled = in_child([&] {
    install(counting);
    CHILD_CHECK(!memory.guarded_touch());
    bool went_on = false;
    CHILD_CHECK(guarded([&] {
      ::kill(::getpid(), SIGBUS);
      went_on = true;
    }));
    CHILD_CHECK(went_on && seen == 1 && seen_info.si_code == SI_USER && seen_info.si_pid == ::getpid());
  });
  CHECK_MESSAGE(handled.exit_code == 99, "signal ", handled.signal);
  const Ending ignored = in_child([&] {
    ::signal(SIGBUS, SIG_IGN);
    CHILD_CHECK(!memory.guarded_touch());
    ::kill(::getpid(), SIGBUS);
  });
  CHECK(ignored.exit_code == 99);
}

TEST_CASE("guarded: where the program has no handler, its own fault is death by SIGBUS") {
  const Gone memory;
  CHECK(in_child([&] {
          plain_default();
          CHILD_CHECK(!memory.guarded_touch());
          own_fault(memory);
        }).signal == SIGBUS);
  CHECK(in_child([&] {
          ::signal(SIGBUS, SIG_IGN);  // which the kernel does not let it do with a fault
          CHILD_CHECK(!memory.guarded_touch());
          own_fault(memory);
        }).signal == SIGBUS);
}

TEST_CASE("guarded: SA_RESETHAND handles one signal and no more; the next one kills") {
  const Gone memory;
  const Ending ending = in_child([&] {
    install(counting, static_cast<int>(SA_RESETHAND));
    CHILD_CHECK(!memory.guarded_touch());
    ::raise(SIGBUS);
    CHILD_CHECK(seen == 1 && !memory.guarded_touch());
    ::raise(SIGBUS);
  });
  CHECK_MESSAGE(ending.signal == SIGBUS, "exit ", ending.exit_code);
}

TEST_CASE("guarded: SA_ONSTACK, the mask and SA_NODEFER of the program's handler are kept") {
  const Gone memory;
  for (const bool wanted : {true, false}) {
    const Ending ending = in_child([&] {
      const stack_t stack{.ss_sp = alternate_stack, .ss_flags = 0, .ss_size = sizeof alternate_stack};
      ::sigaltstack(&stack, nullptr);
      install(on_alternate_stack, wanted ? SA_ONSTACK : 0);
      for (int round = 0; round < 3; ++round) CHILD_CHECK(!memory.guarded_touch());
      own_fault(memory);
    });
    CHECK(ending.exit_code == (wanted ? 11 : 12));
  }
  for (const bool deferred : {true, false}) {
    static sigset_t within;
    const Ending ending = in_child([&] {
      struct sigaction action {};
      action.sa_handler = [](int) { ::pthread_sigmask(SIG_BLOCK, nullptr, &within); };
      ::sigaddset(&action.sa_mask, SIGUSR1);
      action.sa_flags = deferred ? 0 : SA_NODEFER;
      ::sigaction(SIGBUS, &action, nullptr);
      CHILD_CHECK(!memory.guarded_touch());
      ::raise(SIGBUS);
      CHILD_CHECK(::sigismember(&within, SIGUSR1) == 1 && ::sigismember(&within, SIGUSR2) == 0);
      CHILD_CHECK(::sigismember(&within, SIGBUS) == (deferred ? 1 : 0));
      sigset_t after;
      ::pthread_sigmask(SIG_BLOCK, nullptr, &after);
      CHILD_CHECK(::sigismember(&after, SIGUSR1) == 0 && ::sigismember(&after, SIGBUS) == 0);
    });
    CHECK_MESSAGE(ending.exit_code == 99, "signal ", ending.signal);
  }
}

TEST_CASE("guarded: handlers that call or put back the one before them end where they would without us") {
  const Gone memory;
  static struct sigaction before {};
  static const auto call_before = [](int signal, siginfo_t* info, void* context) {
    ++seen;
    if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
    ::_exit(before.sa_handler == SIG_DFL ? 20 : 21);
  };
  // Calls the one before it, which is the library's, which takes the default action: once, not for ever.
  CHECK(in_child([&] {
          plain_default();
          CHILD_CHECK(!memory.guarded_touch());
          install(call_before, 0, &before);
          CHILD_CHECK(!memory.guarded_touch());
          own_fault(memory);
        }).signal == SIGBUS);
  // Puts it back and lets the access be done again, as crash reporters do.
  CHECK(in_child([&] {
          plain_default();
          CHILD_CHECK(!memory.guarded_touch());
          install([](int, siginfo_t*, void*) { ::sigaction(SIGBUS, &before, nullptr); }, 0, &before);
          CHILD_CHECK(!memory.guarded_touch());
          own_fault(memory);
        }).signal == SIGBUS);
  // Many of them, in turn.
  const Ending ending = in_child([&] {
    for (int round = 0; round < 100; ++round) {
      install(round % 2 == 0 ? counting : jumping);
      CHILD_CHECK(!memory.guarded_touch());
    }
    if (sigsetjmp(way_out, 1) == 0) own_fault(memory);
    CHILD_CHECK(seen == 1);
  });
  CHECK_MESSAGE(ending.exit_code == 99, "signal ", ending.signal);
}

// More of them than the library has functions to go in front with: the last ones are behind nobody, and none comes back
// to itself.
TEST_CASE("guarded: any number of handlers that call the one before them come to an end") {
  const Gone memory;
  static struct sigaction before[handlers_max];
  static size_t next = 0, calls = 0;
  for (const size_t handlers : {size_t{31}, size_t{32}, size_t{33}, handlers_max}) {
    const Ending ending = in_child([&] {
      plain_default();
      // As different to the library as different functions are: each has a mask of its own.
      static const auto chained = [](int signal, siginfo_t* info, void* context) {
        if (++calls > 1000) ::_exit(30);
        const struct sigaction& older = before[--next];
        if ((older.sa_flags & SA_SIGINFO) != 0) return older.sa_sigaction(signal, info, context);
        ::_exit(older.sa_handler == SIG_DFL ? 20 : 21);
      };
      for (; next < handlers; ++next) {
        (void)guarded([] {});
        struct sigaction action {};
        action.sa_sigaction = chained;
        action.sa_flags = SA_SIGINFO;
        for (size_t bit = 0; bit < 6; ++bit)
          if ((next >> bit & 1) != 0) ::sigaddset(&action.sa_mask, SIGRTMIN + static_cast<int>(bit));
        ::sigaction(SIGBUS, &action, &before[next]);
      }
      (void)guarded([] {});
      own_fault(memory);
    });
    CHECK_MESSAGE(ending.signal == SIGBUS, handlers, " handlers: exit ", ending.exit_code, " signal ",
                  ending.signal);
  }
}

TEST_CASE(
    "guarded: in threads that block signals, in handlers, after a fork, on an alternate stack that disarms") {
  const Gone memory;
  const Ending ending = in_child([&] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    CHILD_CHECK(!memory.guarded_touch() && !memory.guarded_touch());
    sigset_t now;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &now);
    CHILD_CHECK(::sigismember(&now, SIGBUS) == 1 && ::sigismember(&now, SIGUSR1) == 1);
    ::sigemptyset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    stack_t stack{.ss_sp = alternate_stack, .ss_flags = 0, .ss_size = sizeof alternate_stack};
#if defined(SS_AUTODISARM)
    stack.ss_flags = static_cast<int>(SS_AUTODISARM);
#endif
    CHILD_CHECK(::sigaltstack(&stack, nullptr) == 0);
    install(on_alternate_stack, SA_ONSTACK);
    for (int round = 0; round < 3; ++round) CHILD_CHECK(!memory.guarded_touch());
    own_fault(memory);
  });
  CHECK_MESSAGE(ending.exit_code == 11, "exit ", ending.exit_code, " signal ", ending.signal);
  const Ending forked = in_child([&] {
    install(fatal);
    CHILD_CHECK(!memory.guarded_touch());
    const Ending grandchild = in_child([&] { CHILD_CHECK(!memory.guarded_touch()); });
    ::_exit(grandchild.exit_code);
  });
  CHECK(forked.exit_code == 99);
}

TEST_CASE("guarded: a fault outside of its ranges is not the guard's, but maybe of one around it") {
  const Gone memory, other;
  const auto bytes = [](const Gone& of) { return std::span<const std::byte>(of.at, page); };
  CHECK_FALSE(guarded({bytes(other), bytes(memory)}, [&] { memory.at[0] = std::byte{1}; }));
  bool inner = true;
  CHECK_FALSE(guarded({bytes(memory)}, [&] {
    inner = guarded({bytes(other)}, [&] { memory.at[0] = std::byte{1}; });
    inner = false;
  }));
  CHECK(inner);  // both were left
  CHECK(in_child([&] {
          plain_default();
          (void)guarded({bytes(other)}, [&] { memory.at[0] = std::byte{1}; });
        }).signal == SIGBUS);
}

// The program's threads install handlers without end while others are in guards. A handler that comes in the
// middle of an access may see its fault; nothing hangs, dies or is lost.
TEST_CASE("guarded: in several threads while another one installs handlers") {
  const Gone memory;
  const Ending ending = in_child([&] {
    std::atomic<bool> stop = false;
    std::atomic<int> rounds = 0;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread)
      threads.emplace_back([&] {
        while (!stop) {
          // The handler of this program returns: the access is done again, by then under the library's.
          CHILD_CHECK(!memory.guarded_touch());
          ++rounds;
        }
      });
    std::thread healer([&] {  // whoever met the program's handler goes on once a guard was begun anywhere
      while (!stop) CHILD_CHECK(guarded([] {}));
    });
    for (int round = 0; round < 100; ++round) {
      install(counting, round % 2 == 0 ? SA_ONSTACK : 0);
      for (const int begun = rounds; rounds == begun;) std::this_thread::yield();
    }
    stop = true;
    healer.join();
    for (std::thread& thread : threads) thread.join();
  });
  CHECK_MESSAGE(ending.exit_code == 99, "exit ", ending.exit_code, " signal ", ending.signal);
}

#if !defined(TERRACE_LOSSY_PLAIN)
TEST_CASE("lossy accesses that come often notice a handler of the program's by the clock's next tick") {
  const Gone gone;
  const auto* const word = reinterpret_cast<const uint64_t*>(gone.at);
  const Ending ending = in_child([&] {
    { const LossyAccesses first(LossyAccesses::Often{}); }
    install(fatal);
    timespec begin{}, now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &begin);
    do ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    while (now.tv_sec == begin.tv_sec && now.tv_nsec == begin.tv_nsec);
    const LossyAccesses later(LossyAccesses::Often{});
    CHILD_CHECK(load_or_zero(word) == 0 && LossyAccesses::lost_address() == word);
  });
  CHECK_MESSAGE(ending.exit_code == 99, "exit ", ending.exit_code, " signal ", ending.signal);
}

TEST_CASE("lossy accesses: they go on without their memory, say so, and lose nothing else") {
  const Gone gone;
  auto* const word = reinterpret_cast<uint64_t*>(gone.at);
  uint64_t replaced = 4;
  replace_or_drop(&replaced, 3, 9);
  CHECK(replaced == 4);
  replace_or_drop(&replaced, 4, 9);
  CHECK(replaced == 9);
  std::vector<std::byte> bytes(page, std::byte{3});
  uint64_t there = 5;
  {
    const LossyAccesses outer;
    CHECK(load_or_zero(&there) == 5);
    CHECK(LossyAccesses::lost_address() == nullptr);
    {
      const LossyAccesses accesses;
      CHECK(load_or_zero(word + 1) == 0);
      CHECK(LossyAccesses::lost_address() == word + 1);
      store_or_drop(word, 7);
      copy_or_drop(bytes.data(), gone.at, bytes.size());
      copy_or_drop(gone.at, bytes.data(), bytes.size());
      CHECK(LossyAccesses::lost_address() == word + 1);
    }
    CHECK(LossyAccesses::lost_address() == word + 1);
    store_or_drop(&there, 6);
    CHECK(there == 6);
    const LossyAccesses next;
    CHECK(LossyAccesses::lost_address() == nullptr);
  }
  CHECK(load_alone(word) == 0);
  {
    const LossyAccesses accesses;
    CHECK(LossyAccesses::lost_address() == nullptr);
  }
  {
    const LossyAccesses accesses(LossyAccesses::Often{});
    CHECK(load_or_zero(word) == 0);
    CHECK(LossyAccesses::lost_address() == word);
  }
  CHECK(bytes == std::vector<std::byte>(page, std::byte{3}));
  const Ending ending = in_child([&] {
    sigset_t all;
    ::sigfillset(&all);
    install(fatal);
    std::thread([&] {
      ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
      for (int round = 0; round < 3; ++round) {
        const LossyAccesses accesses;
        CHILD_CHECK(load_or_zero(word) == 0 && LossyAccesses::lost_address() == word);
      }
    }).join();
    own_fault(gone);
  });
  CHECK(ending.exit_code == 7);
}
#endif

}  // namespace terrace::os
